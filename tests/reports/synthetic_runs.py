"""Run directories made by code: realistic learning curves and everything that goes wrong in a store.

``python tests/reports/synthetic_runs.py FOLDER`` writes the golden store, to look at its report. ``UPDATE_GOLDEN=1 python -m pytest tests/reports``
accepts the report of the golden store as the new snapshot in ``golden/``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

EPISODES = 128
BUDGET = 40_000
KINDS = ("pick_and_place", "look_at_in_light", "clean_and_place", "heat_and_place", "cool_and_place", "pick_two_and_place")
SHAPES = {  # name: start, end, env steps to the middle, tokens per env step, env steps per iteration, optimiser steps per iteration
    "threespo": (0.31, 0.86, 13_000, 9.0, 900, 6),
    "gigpo": (0.31, 0.70, 17_000, 12.5, 1500, 2),
    "grpo": (0.31, 0.58, 20_000, 12.0, 1500, 2),
}


def write_run(
    folder: Path,
    algorithm: str,
    seed: int,
    env: str = "household",
    steps: int = BUDGET,
    budget: int = BUDGET,
    state: str = "finished",
    error: str | None = None,
    level: float | None = None,
    options: dict[str, Any] | None = None,
    manifest: dict[str, Any] | None = None,
    temperature: float = 0.4,
    rollout: dict[str, Any] | None = None,
) -> Path:
    """One run up to ``steps`` environment steps. ``level`` makes a constant curve; ``manifest`` overrides digests."""
    folder.mkdir(parents=True)
    start, end, middle, tokens, per_iteration, updates = SHAPES.get(algorithm, SHAPES["grpo"])
    rng = np.random.default_rng([seed, sum(map(ord, algorithm + env))])
    end = end + 0.05 * rng.standard_normal()

    def success(x: float) -> float:
        if level is not None:
            return level
        return start + (end - start) / (1 + np.exp(-(x - middle) / 5_000)) - (end - start) / (1 + np.exp(middle / 5_000))

    metrics, timings = _rows(success, rng, steps, tokens, per_iteration, updates, search=algorithm == "threespo")
    config = {
        "algorithm": {"name": algorithm, "options": {"group_size": 8, **(options or {})}},
        "env": {"name": env, "options": {}},
        "engine": {"name": "embedded", "options": {}},
        "evaluation": {"every_env_steps": 4000, "episodes": EPISODES, "split": "valid_unseen", "temperature": temperature},
        "train_split": "train",
        "rollout": rollout or {},
        "seed": seed,
        "budget": {"env_steps": budget, "tokens": None, "updates": None, "iterations": None},
        "experiment": "first",
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    digests = {"task_order_digest": f"{seed:02d}a7c1e4b9d2f0", "starting_weights_digest": "5e1f00c4a2b7d9", "evaluation_tasks_digest": "91bd03e7aa54c8"}
    content = {"algorithm": {"name": algorithm, "owner": "threespo-bench 0.1.0"}, "env": {"name": env}, "seed": seed}
    content |= {"versions": {"torch": "2.9", "numpy": "2.4"}, **digests, **(manifest or {})}
    write_json(folder / "manifest.json", content)
    write_json(folder / "status.json", {"state": state, "error": error})
    write_lines(folder / "metrics.jsonl", metrics)
    write_lines(folder / "timings.jsonl", timings)
    return folder


def _rows(
    success: Callable[[float], float], rng: np.random.Generator, steps: int, tokens: float, per_iteration: int, updates: int, search: bool
) -> tuple[list, list]:
    metrics: list[dict[str, Any]] = []
    timings: list[dict[str, Any]] = []
    spent, iteration, seconds, due = 0, 0, 0.0, 0
    while True:
        totals = _totals(iteration, spent, tokens, updates)
        if spent >= due or spent >= steps:
            metrics.append({"kind": "eval", **totals, **_evaluation(success(spent), rng)})
            seconds += 6.0
            timings.append({"kind": "eval", **totals, "seconds": round(seconds, 3), "seconds/evaluation": 6.0})
            due = (spent // 4_000 + 1) * 4_000
        if spent >= steps:
            return metrics, timings
        spent += int(per_iteration * rng.uniform(0.9, 1.1))
        iteration += 1
        totals = _totals(iteration, spent, tokens, updates)
        rate = float(np.clip(success(spent) - 0.08 + 0.06 * rng.standard_normal(), 0, 1))
        metrics.append({"kind": "train", **totals, "train/success": round(rate, 4), **_diagnostics(success(spent), per_iteration * tokens, search)})
        seconds += per_iteration * 0.012
        phases = {"seconds/rollout": per_iteration * 0.008, "seconds/update": per_iteration * 0.004, "peak_memory_mb": 780.0 + iteration}
        timings.append({"kind": "train", **totals, "seconds": round(seconds, 3), **phases})


def _totals(iteration: int, spent: int, tokens: float, updates: int) -> dict[str, int]:
    counts = {"tokens": int(spent * tokens), "prompt_tokens": int(spent * tokens * 5), "updates": iteration * updates, "episodes": spent // 20}
    return {"iteration": iteration, "env_steps": spent, **counts}


def _diagnostics(rate: float, tokens: float, search: bool) -> dict[str, float]:
    """What a training row says of the algorithm; the numbers follow from the rate of success."""
    row = {
        "group/groups": 8.0,
        "group/zero_variance_share": round(0.1 + 0.5 * abs(rate - 0.5), 4),
        "group/singleton_share": 0.0,
        "update/clip_fraction": round(0.02 * (1 - rate), 5),
        "update/kl": 0.01,
        "update/entropy": round(0.4 - 0.2 * rate, 4),
        "update/tokens": tokens,
        "update/logprob_gap_mean": 1e-7,
        "train/batches": 30 if search else 1,
        "train/response_tokens": round(3.5 + rate, 4),
        "train/valid_actions": round(0.9 + 0.1 * rate, 4),
    }
    if search:
        row |= {"state/mean_score": round(1 - 0.3 * rate, 4), "state/unique_ratio": 0.13, "tree/mean_samples": round(8 - 2 * rate, 4)}
        row |= {"tree/samples_6": round(0.4 * rate, 4), "tree/samples_7": 0.2, "tree/samples_8": round(0.8 - 0.4 * rate, 4)}
    return row


def _evaluation(rate: float, rng: np.random.Generator) -> dict[str, float]:
    counts = [EPISODES // 6 + (place < EPISODES % 6) for place in range(6)]
    wins = [int(rng.binomial(count, np.clip(rate + 0.12 - 0.05 * place, 0.0, 1.0))) for place, count in enumerate(counts)]
    kinds = {f"success/{kind}": won / count for kind, won, count in zip(KINDS, wins, counts, strict=True)}
    return {"success": sum(wins) / EPISODES, **kinds, "valid_actions": 0.97, "turns": 14.5}


def write_json(path: Path, value: Any) -> None:
    """``value`` as a JSON file."""
    path.write_text(json.dumps(value, indent=1))


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Rows as a JSON-lines file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_curve(folder: Path, algorithm: str, seed: int, values: Sequence[float], x: Sequence[float] | None = None, **more: Any) -> Path:
    """A run whose evaluations are exactly ``values``, at ``x`` environment steps (by default 0, 1000, ...)."""
    places = list(x) if x is not None else [1_000 * place for place in range(len(values))]
    write_run(folder, algorithm, seed, steps=1, budget=int(places[-1]), **more)
    rows = [
        {"kind": "eval", "iteration": n, "env_steps": at, "tokens": 10 * at, "updates": n, "episodes": n, "success": v}
        for n, (at, v) in enumerate(zip(places, values, strict=True))
    ]
    write_lines(folder / "metrics.jsonl", rows)
    return folder


def golden_store(root: Path) -> Path:
    """Two environments. On household three algorithms x three seeds with a failed run, a missing seed, unequal lengths, an algorithm with one seed
    and constant results, a resumed and a torn run; on alfworld two algorithms x two seeds, of which one has another step limit, and a third algorithm
    of which one run lost its last rows and the other its configuration."""
    store = root / "first"
    for seed in (0, 1, 2):
        write_run(store / f"threespo-household-s{seed}", "threespo", seed)
        if seed == 1:
            error = "Traceback (most recent call last):\n  ...\nEngineError: the loss is not finite at iteration 14"
            write_run(store / "gigpo-household-s1", "gigpo", 1, steps=21_000, state="failed", error=error)
        else:
            write_run(store / f"gigpo-household-s{seed}", "gigpo", seed)
        if seed != 2:
            write_run(store / f"grpo-household-s{seed}", "grpo", seed, steps=BUDGET if seed else 38_500)
    write_run(store / "mirror-household-s0", "mirror", 0, level=0.31)
    for seed in (0, 1):
        write_run(store / f"threespo-alfworld-s{seed}", "threespo", seed, env="alfworld", steps=20_000, budget=20_000)
        write_run(store / f"grpo-alfworld-s{seed}", "grpo", seed, env="alfworld", steps=20_000, budget=20_000, rollout={"max_turns": 30} if seed else None)
    torn = store / "threespo-household-s2" / "metrics.jsonl"
    torn.write_text(torn.read_text() + '{"kind": "train", "iterat')
    resumed = store / "gigpo-household-s0" / "metrics.jsonl"
    lines = resumed.read_text().splitlines()
    before = [json.dumps({**json.loads(line), "tokens": 7}) for line in lines[9:12]]  # what the killed process had measured
    resumed.write_text("\n".join([*lines[:9], *before, *lines[9:]]) + "\n")
    for seed in (0, 1):
        write_run(store / f"gigpo-alfworld-s{seed}", "gigpo", seed, env="alfworld", steps=20_000, budget=20_000)
    lost = store / "gigpo-alfworld-s0" / "metrics.jsonl"
    lost.write_bytes(lost.read_bytes()[: lost.stat().st_size // 2])
    (store / "gigpo-alfworld-s1" / "config.yaml").unlink()
    return store


if __name__ == "__main__":
    print(golden_store(Path(sys.argv[1])))
