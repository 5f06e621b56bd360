"""A run up to the horizon, judged there and nowhere else: success at the budget is read off the curve, linear between the evaluations around it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from threespo_bench.contracts.report import Horizon
from threespo_reports.frames import ByRun, Floats
from threespo_reports.selection import TOLERANCE

RULE = "at the budget, linear between the evaluation before and the first one at or after it; at the last evaluation of a run that ends just before"


def judged_at(points: ByRun, run: str, horizon: Horizon) -> float:
    """Where a run is judged on the axis of the horizon: at the limit, or at its last evaluation if that comes before; NaN without evaluations."""
    x = points.column(run, horizon.axis)
    return float(min(horizon.limit, x.max())) if x.size else float("nan")


def judged(points: ByRun, run: str, horizon: Horizon, value: str = "success") -> float:
    """``value`` (success, or that of one type of task) where the run is judged; NaN if an evaluation on one side lacks it."""
    ends = up_to_horizon(points, run, horizon, horizon.axis, value)[1]
    return float(ends[-1]) if ends.size else float("nan")


def up_to_horizon(points: ByRun, run: str, horizon: Horizon, axis: str, value: str = "success") -> tuple[Floats, Floats]:
    """(x on ``axis``, value): the evaluations before the place where the run is judged, and then that place, where both are interpolated.

    Empty where the first evaluation comes after the limit: nothing is extrapolated.
    """
    place = points.column(run, horizon.axis)
    order = np.argsort(place, kind="stable")
    place, x, y = place[order], points.column(run, axis)[order], points.column(run, value)[order]
    stop = judged_at(points, run, horizon)
    if not place.size or place[0] > stop:
        return x[:0], y[:0]
    before = place < stop
    return tuple(np.append(column[before], np.interp(stop, place, column)) for column in (x, y))  # type: ignore[return-value]


def last_evaluations(runs: pd.DataFrame, points: ByRun, limits: Mapping[str, Horizon]) -> pd.DataFrame:
    """A row per run with evaluations, counted or not: the last one as it was measured, and where that was."""
    rows = []
    for run, env in zip(runs["run"], runs["env"], strict=True):
        axis = limits[env].axis if env in limits else "env_steps"
        x = points.column(run, axis)
        if x.size:
            last = int(np.argsort(x, kind="stable")[-1])
            rows.append({"run": run, "last_success": points.column(run, "success")[last], "last_at": x[last]})
    return pd.DataFrame(rows, columns=["run", "last_success", "last_at"])


def wide_gap(points: ByRun, run: str, horizon: Horizon) -> tuple[float, float] | None:
    """The evaluations that the value at the limit lies between, if the later one passes it by more than a little."""
    x = np.sort(points.column(run, horizon.axis))
    before, after = x[x <= horizon.limit], x[x >= horizon.limit]
    if before.size and after.size and after[0] > horizon.limit * (1 + TOLERANCE):
        return float(before[-1]), float(after[0])
    return None
