"""How long the comparison report takes and how much memory, on a synthetic store of many long runs.

    python benchmarks/report_speed.py [--algorithms 20] [--seeds 10] [--points 20000] [--training 0.5] [--folder FOLDER]

A point is a row of a run's metrics; the share ``--training`` of them are training iterations with diagnostics, the others evaluations. The
store is written first and not measured. The report runs in a process of its own, of which CPU seconds, wall-clock seconds and the peak of
resident memory are printed, and whether the targets were met: 30 s of CPU time and 1 GB for 20 algorithms x 10 seeds x 20,000 points.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

TARGET_SECONDS, TARGET_MB = 30.0, 1000.0
BUDGET = 1_000_000
REPORT = "import sys; from pathlib import Path; from threespo_reports.comparison import write_report; write_report([Path(sys.argv[1])], Path(sys.argv[2]))"


def write_store(folder: Path, algorithms: int, seeds: int, points: int, training: float) -> int:
    """Write the runs and return the bytes of their metrics."""
    size = 0
    for algorithm in range(algorithms):
        for seed in range(seeds):
            size += write_run(folder / f"algorithm{algorithm:02d}-s{seed}", f"algorithm{algorithm:02d}", algorithm, seed, points, training)
    return size


def write_run(folder: Path, name: str, level: int, seed: int, points: int, training: float) -> int:
    """One run whose curve rises towards a level of its own."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng([level, seed])
    steps = np.linspace(0, BUDGET, points).astype(int)
    rate = np.clip(0.2 + (0.3 + 0.02 * level) * (1 - np.exp(-steps / 250_000)) + 0.02 * rng.standard_normal(points), 0, 1)
    share = rng.random((points, 3))
    is_training = np.arange(points) % 1000 < 1000 * training
    is_training[[0, -1]] = False
    lines = []
    for place, (at, value, train, (one, two, three)) in enumerate(zip(steps.tolist(), rate.tolist(), is_training.tolist(), share.tolist(), strict=True)):
        totals = f'"iteration": {place}, "env_steps": {at}, "tokens": {12 * at}, "prompt_tokens": {60 * at}, "episodes": {at // 20}, "updates": {2 * place}'
        if train:
            more = f'"train/success": {value:.4f}, "group/zero_variance_share": {one:.4f}, "update/kl": {two:.5f}, "update/entropy": {three:.5f}'
            lines.append(f'{{"kind": "train", {totals}, {more}}}')
        else:
            lines.append(f'{{"kind": "eval", {totals}, "success": {value:.4f}, "success/pick": {one:.4f}}}')
    content = "\n".join(lines) + "\n"
    (folder / "metrics.jsonl").write_text(content)
    times = (
        f'{{"kind": "{"train" if train else "eval"}", "iteration": {n}, "env_steps": {at}, "seconds": {n}.5}}'
        for n, (at, train) in enumerate(zip(steps.tolist(), is_training.tolist(), strict=True))
    )
    (folder / "timings.jsonl").write_text("\n".join(times) + "\n")
    config = {"algorithm": {"name": name, "options": {"group_size": 8}}, "env": {"name": "household"}, "seed": seed, "budget": {"env_steps": BUDGET}}
    (folder / "config.yaml").write_text(json.dumps(config))
    (folder / "manifest.json").write_text(json.dumps({"starting_weights_digest": "0", "task_order_digest": str(seed)}))
    (folder / "status.json").write_text('{"state": "finished", "error": null}')
    return len(content)


def measure(store: Path, out: Path) -> tuple[float, float, float]:
    """CPU seconds, wall-clock seconds and peak MB of the report."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", REPORT, str(store), str(out)], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall, after.ru_maxrss / 1024


def main() -> None:
    """Write the store, make the report, print what it took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithms", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--points", type=int, default=20_000)
    parser.add_argument("--training", type=float, default=0.5, help="share of the points that are training iterations")
    parser.add_argument("--folder", type=Path, help="where the store is kept and used again; by default it is temporary")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        store = folder / "store"
        if not store.exists():
            size = write_store(store, options.algorithms, options.seeds, options.points, options.training)
            print(f"{options.algorithms} algorithms x {options.seeds} seeds x {options.points:,} points: {size / 1e6:,.0f} MB of metrics", flush=True)
        cpu, wall, peak = measure(store, folder / "report")
        size = sum(path.stat().st_size for path in (folder / "report").rglob("*") if path.is_file())
        met = cpu <= TARGET_SECONDS and peak <= TARGET_MB
        print(
            f"{cpu:.1f} s of CPU time, {wall:.1f} s of wall clock, {peak:,.0f} MB at most; report of {size / 1e6:.1f} MB; targets {'met' if met else 'missed'}"
        )


if __name__ == "__main__":
    main()
