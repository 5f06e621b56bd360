"""How long runs will take, judged by finished ones of the same algorithm and environment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median

from threespo_bench.errors import StorageError
from threespo_bench.inspection.summary import RunSummary, runs_in, summarise

_NEWEST = 9  # finished runs that are asked


def finished_runs(store: Path) -> list[RunSummary]:
    """The finished runs of a store; none if there is no such folder."""
    try:
        found = [summarise(path) for path in runs_in(store)]
    except StorageError:
        return []
    return [run for run in found if run.state == "finished" and run.seconds]


def seconds_needed(
    algorithm: str, env: str, budget: Mapping[str, int | None], finished: Iterable[RunSummary], spent: Mapping[str, int] | None = None
) -> float | None:
    """Seconds that a run of ``budget`` takes, less what it has ``spent``; None if no finished run tells.

    The time is taken as proportional to whatever the budget limits; of several limits the one that ends the run first decides.
    The median of the newest finished runs counts.
    """
    like = sorted((run for run in finished if (run.algorithm, run.env) == (algorithm, env)), key=lambda run: run.changed or 0.0)[-_NEWEST:]
    known = [need for run in like if (need := _seconds(run, budget, spent or {})) is not None]
    return median(known) if known else None


def _seconds(run: RunSummary, budget: Mapping[str, int | None], spent: Mapping[str, int]) -> float | None:
    costs = [
        (run.seconds or 0.0) / run.spent[name] * max(0, limit - spent.get(name, 0))
        for name, limit in budget.items()
        if limit is not None and run.spent.get(name)
    ]
    return min(costs, default=None)
