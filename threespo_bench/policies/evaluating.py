"""A policy played on every task of a split, once for each evaluation seed, and what came out."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from threespo_bench.contracts.environment import Task
from threespo_bench.policies.opened import OpenedPolicy
from threespo_bench.rollout.evaluation import evaluate
from threespo_bench.seeding import Streams


@dataclass(frozen=True)
class Measured:
    """One quantity.

    Attributes:
        name: ``success``, ``success/<kind of task>``, ``turns``, ``invalid_actions``, ``truncated``, ``return``, and ``score`` where the environment gives one.
        episodes: played for each seed. values: one for each seed, the mean over these episodes.
    """

    name: str
    episodes: int
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over seeds."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """The standard deviation over seeds, with n - 1; None for one seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


def evaluate_seeds(policy: OpenedPolicy, tasks: Sequence[Task], seeds: Sequence[int], ended: Callable[[], None] = lambda: None) -> list[Measured]:
    """Play every task once for each seed; a seed decides the sampling noise, the tasks are the same.

    Args:
        ended: called after every episode.

    Returns:
        Success over all and by kind of task, then turns, share of invalid actions, share of truncated episodes, return, and the score if there is one.
    """

    async def rows_of_seeds() -> list[dict[str, float]]:
        common = (policy.sampling, policy.max_turns, ended, policy.workers, policy.engine.learner.verify)
        return [await evaluate(policy.environment, policy.engine.rollout, tasks, Streams(seed), *common) for seed in seeds]

    rows = asyncio.run(rows_of_seeds())
    kinds = Counter(task.kind for task in tasks)
    measured = [Measured("success", len(tasks), tuple(row["success"] for row in rows))]
    measured += [Measured(f"success/{kind}", kinds[kind], tuple(row[f"success/{kind}"] for row in rows)) for kind in sorted(kinds)]
    invalid = tuple(1.0 - row["valid_actions"] for row in rows)
    measured += [Measured("turns", len(tasks), tuple(row["turns"] for row in rows)), Measured("invalid_actions", len(tasks), invalid)]
    further = ["truncated", "return"] + ["score"] * any("score" in row for row in rows)
    return measured + [Measured(name, len(tasks), tuple(row.get(name, 0.0) for row in rows)) for name in further]


def as_json(about: dict[str, Any], measured: Sequence[Measured]) -> str:
    """All as one JSON object: what was evaluated and how, then the results."""
    results = [{"name": m.name, "episodes": m.episodes, "values": m.values, "mean": m.mean, "std": m.deviation} for m in measured]
    return json.dumps({**about, "results": results}, indent=2, ensure_ascii=False) + "\n"


def as_csv(seeds: Sequence[int], measured: Sequence[Measured]) -> str:
    """A row for each quantity: name, episodes, one column for each seed, mean and standard deviation."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["name", "episodes", *(f"seed_{seed}" for seed in seeds), "mean", "std"])
    for m in measured:
        writer.writerow([m.name, m.episodes, *m.values, m.mean, "" if m.deviation is None else m.deviation])
    return out.getvalue()
