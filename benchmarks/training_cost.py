"""What methods cost on this engine, next to what their papers say: SAPO against PPO, SPO-chain against VinePPO, SPO++ against GRPO.

    python benchmarks/training_cost.py [--only memory|generation|waiting ...] [--iterations N] [--repeat N] [--hidden N --layers N]

Every arm is a training run in a process of its own, the arms of a comparison in turn. Seconds are CPU time of that process and memory is its
largest resident size, so other work on the machine changes little. Nothing is kept: runs go to a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Figures = dict[str, float]
Arms = dict[str, list[str]]
"""Overrides of each algorithm of a comparison."""
Runs = dict[str, list[dict[str, Any]]]
"""What :func:`train` returns, of every run of each algorithm."""

MEMORY = ["rollout.max_turns=3", "rollout.max_new_tokens=12", "algorithm.tasks_per_iteration=16", "engine.micro_batch_tokens=1024"]
ONE_PASS = ["algorithm.critic.epochs=1", "algorithm.critic.mini_batch_turns=512"]  # as many passes as over the policy
EPISODES = ["algorithm.tasks_per_iteration=2", "algorithm.episodes_per_task=2", "algorithm.continuations=3", "rollout.max_turns=20"]


# ---- one arm, in its own process


class Clock:
    """Reads CPU time at the events of a run: generation ends with the last environment step of an iteration, the rest is learning."""

    def __init__(self) -> None:
        self.rows: list[Figures] = []
        self._begin = self._step = 0.0

    def start(self, run: Any, path: Path) -> None:
        self._begin = self._step = time.process_time()

    def tick(self) -> None:
        self._step = time.process_time()

    def iteration(self, row: Mapping[str, Any]) -> None:
        now = time.process_time()
        kept = {name: value for name, value in row.items() if isinstance(value, (int, float))}
        self.rows.append(kept | {"generation_s": self._step - self._begin, "learning_s": now - self._step, "iteration_s": now - self._begin})
        self._begin = self._step = now

    def evaluation(self, row: Mapping[str, Any]) -> None:
        self._begin = self._step = time.process_time()

    def message(self, text: str) -> None:
        print(text, file=sys.stderr)

    def stop(self) -> None: ...


def train(algorithm: str, overrides: Sequence[str], out: Path) -> dict[str, Any]:
    """Run one arm; returns its figures of every iteration and its memory in MiB, before the model was loaded and at its peak."""
    from threespo_bench import runner
    from threespo_bench.config.compose import compose
    from threespo_bench.host import PluginHost

    host = PluginHost.discover()
    settings = ["budget.env_steps=null", "evaluation.episodes=1", "tracker=none", "save_turns=true", "checkpoint.every_iterations=1000", *overrides]
    config = compose(algorithm, "household", settings, host, seed=0, out=str(out), experiment="cost")
    import torch  # noqa: F401  # what every run loads is no cost of a method
    import transformers  # noqa: F401

    before = _peak_mib()
    clock = Clock()
    outcome = runner.run(config, host, progress=clock)
    if outcome.state != "finished":
        raise SystemExit(f"{algorithm}: {outcome.error}")
    return {"rows": clock.rows, "before_mib": before, "peak_mib": _peak_mib(), "slots": _slots(outcome.run)}


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # Linux: KiB


def _slots(run: Path) -> list[Figures]:
    """Of every recorded batch: trajectories, their turns, and the turns of the longest, which all others are waited for."""
    from threespo_bench.turns import TurnBatch

    found = []
    for file in sorted((run / "turns").rglob("*.parquet")):
        lengths = Counter(TurnBatch.load(file).traj_id.tolist()).values()
        found.append({"trajectories": len(lengths), "turns": sum(lengths), "longest": max(lengths)})
    return found


# ---- all arms


def arm(algorithm: str, overrides: Sequence[str]) -> dict[str, Any]:
    """The figures of one run, made in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--arm", algorithm, "--out", folder, "--set", *overrides]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{algorithm} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def alternately(arms: Arms, repeat: int) -> Runs:
    """``repeat`` runs of every arm, one after another in turn."""
    found: Runs = {name: [] for name in arms}
    for _ in range(repeat):
        for name, overrides in arms.items():
            found[name].append(arm(name, overrides))
    return found


def per_iteration(runs: Sequence[Mapping[str, Any]], name: str) -> float:
    """The median of a figure over the iterations of all runs but the first of each, in which everything is loaded and filled."""
    return statistics.median(row[name] for run in runs for row in run["rows"][1:] or run["rows"])


def change(new: float, old: float) -> str:
    return f"{(new - old) / old:+.1%}"


def write_model(folder: Path, hidden: int, layers: int) -> None:
    """A Qwen2 model of random weights with the tokenizer of household-tiny."""
    from transformers import AutoTokenizer

    from threespo_plugins.models import household_tiny
    from threespo_plugins.models.word_level import make_model

    tokenizer = AutoTokenizer.from_pretrained(household_tiny.path())
    model = make_model(tokenizer, hidden, layers, heads=hidden // 64, intermediate=hidden * 5 // 2, seed=0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def memory(iterations: int, hidden: int, layers: int, folder: Path) -> Arms:
    """SAPO has no critic of its own. The model is new and large enough that its weights are most of the memory."""
    write_model(folder, hidden, layers)
    common = [f"model.path={folder}", f"budget.iterations={iterations}", *MEMORY]
    return {"ppo_turn": [*common, *ONE_PASS], "sapo_autoreg": common}


def memory_table(found: Runs) -> None:
    """Memory above that of the imported libraries, and all of it; CPU time."""
    print("\nSAPO against PPO over turns: equal episodes, one pass over the batch for each network")
    print(f"{'':34}{'ppo_turn':>12}{'sapo_autoreg':>14}{'change':>10}{'paper':>10}")
    own = {name: statistics.median(run["peak_mib"] - run["before_mib"] for run in runs) for name, runs in found.items()}
    whole = {name: statistics.median(run["peak_mib"] for run in runs) for name, runs in found.items()}
    spent = {name: per_iteration(runs, "iteration_s") for name, runs in found.items()}
    learning = {name: per_iteration(runs, "learning_s") for name, runs in found.items()}
    for label, values, paper in (
        ("peak memory above libraries, MiB", own, "-24.8%"),
        ("peak memory of the process, MiB", whole, ""),
        ("CPU seconds an iteration", spent, "-23.1%"),
        ("  of it learning", learning, ""),
    ):
        old, new = values["ppo_turn"], values["sapo_autoreg"]
        print(f"{label:34}{old:12,.1f}{new:14,.1f}{change(new, old):>10}{paper:>10}")


def generation(iterations: int) -> Arms:
    """SPO-chain values few states, VinePPO all."""
    common = [f"budget.iterations={iterations}", *EPISODES]
    every_turn = [
        "algorithm.boundary_interval=1",
        "algorithm.max_boundaries=12",
        "algorithm.optimization.epochs=1",
        "algorithm.optimization.mini_batch_turns=512",
    ]
    return {"vineppo": [*common, *every_turn], "spo_segment_chain": common}


def generation_table(found: Runs) -> None:
    """What values by continuations cost."""
    print("\nSPO-chain against VinePPO: 4 episodes of at most 20 turns an iteration, 3 continuations of every valued state")
    print(f"{'':34}{'vineppo':>12}{'spo_segment_chain':>19}{'change':>10}")
    for label, name in (
        ("CPU seconds of generation", "generation_s"),
        ("environment steps to value states", "monte_carlo/env_steps"),
        ("states valued", "monte_carlo/states"),
        ("turns learned from", "train/turns"),
        ("CPU seconds an iteration", "iteration_s"),
    ):
        old, new = (per_iteration(found[arm_name], name) for arm_name in ("vineppo", "spo_segment_chain"))
        print(f"{label:34}{old:12,.1f}{new:19,.1f}{change(new, old):>10}")


def waiting(iterations: int) -> Arms:
    """SPO++ starts the next rollout where one has ended; GRPO waits for the last."""
    return {
        "grpo": [f"budget.iterations={iterations}", "algorithm.tasks_per_iteration=8", "algorithm.group_size=8"],
        "spopp": [f"budget.iterations={iterations}", "algorithm.tasks_per_iteration=64", "algorithm.batch_episodes=64", "algorithm.in_flight=32"],
    }


def waiting_table(found: Runs) -> None:
    """How many places in flight have nothing to do until the update, and what that takes."""
    batches = [batch for run in found["grpo"] for batch in run["slots"]]
    idle = 1 - sum(batch["turns"] for batch in batches) / sum(batch["trajectories"] * batch["longest"] for batch in batches)
    rows = [row for run in found["spopp"] for row in run["rows"]]
    completed = sum(row["stream/completed"] * row["stream/completed_turns"] for row in rows)
    dropped = sum(row["stream/dropped"] * row["stream/dropped_turns"] for row in rows)
    idle_stream = statistics.fmean(row["stream/waiting_share"] for row in rows)
    print("\nSPO++ against GRPO: an update after 64 finished episodes, 32 places in flight (GRPO: 64)")
    print(f"{'':34}{'grpo':>12}{'spopp':>12}")
    print(f"{'share of places that wait':34}{idle:12.1%}{idle_stream:12.1%}")
    lost = dropped / (completed + dropped)
    print(f"{'share of turns thrown away':34}{0:12.1%}{lost:12.1%}")
    print(f"{'share of places that is used':34}{1 - idle:12.1%}{(1 - idle_stream) * (1 - lost):12.1%}")
    for label, name in (("turns learned from", "train/turns"), ("CPU seconds of generation", "generation_s")):
        print(f"{label:34}{per_iteration(found['grpo'], name):12,.1f}{per_iteration(found['spopp'], name):12,.1f}")


COMPARISONS = ("memory", "generation", "waiting")


def main() -> None:
    """Run the comparisons, or one arm of one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=COMPARISONS, default=COMPARISONS)
    parser.add_argument("--iterations", type=int, default=3, help="of each run; the first is not counted")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each arm")
    parser.add_argument("--hidden", type=int, default=512, help="width of the model of the comparison of memory, a multiple of 64")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--set", nargs="*", default=[], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.arm:
        print(json.dumps(train(options.arm, options.set, options.out)))
        return
    with tempfile.TemporaryDirectory() as folder:
        if "memory" in options.only:
            memory_table(alternately(memory(options.iterations, options.hidden, options.layers, Path(folder)), options.repeat))
    if "generation" in options.only:
        generation_table(alternately(generation(options.iterations), options.repeat))
    if "waiting" in options.only:
        waiting_table(alternately(waiting(options.iterations), options.repeat))


if __name__ == "__main__":
    main()
