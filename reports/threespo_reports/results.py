"""What each run achieved up to the horizon: success at its start and at the budget, area, end reward, and how soon it reached a level."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from threespo_bench.contracts.report import Horizon
from threespo_reports import statistics
from threespo_reports.curves import AXES
from threespo_reports.frames import ByRun, Floats
from threespo_reports.judging import judged_at, up_to_horizon
from threespo_reports.learning_metrics import end_reward

RESULTS = ("start_success", "final_success", "final_at", "gain", "area", "end_reward", "plotted_steps", "reached_at")
THRESHOLD = 0.6  # of the verdict: the level that 3SPO's authors compare speed at
THRESHOLDS = (0.5, 0.6, 0.8, 0.95)
EFFICIENCY_COLUMNS = ["env", "axis", "threshold", "algorithm", "median", "reached", "seeds", "budget", "speed_up", "bound"]


def run_results(runs: pd.DataFrame, points: ByRun, limits: Mapping[str, Horizon]) -> pd.DataFrame:
    """A row per counted run: :data:`RESULTS`. ``reached_at`` is infinite for a run that stayed below :data:`THRESHOLD`."""
    rows = []
    for run, env in zip(runs["run"], runs["env"], strict=True):
        if run not in points or env not in limits:
            continue
        horizon = limits[env]
        x, success = up_to_horizon(points, run, horizon, horizon.axis)
        if not success.size:
            continue
        steps = plotted_steps(points, run, horizon)
        rows.append(
            {
                "run": run,
                "start_success": success[0],
                "final_success": success[-1],
                "final_at": judged_at(points, run, horizon),
                "gain": success[-1] - success[0],
                "area": statistics.normalised_area(x, success, x[0], x[-1]),
                "end_reward": end_reward(steps),
                "plotted_steps": float(steps.size),
                "reached_at": first_reached(x, success, THRESHOLD),
            }
        )
    return pd.DataFrame(rows, columns=["run", *RESULTS])


def plotted_steps(points: ByRun, run: str, horizon: Horizon) -> Floats:
    """The evaluations that follow training and, last, success where the run is judged: what the learning metrics are computed of."""
    x, success = up_to_horizon(points, run, horizon, horizon.axis)
    return success[x > 0]


def first_reached(x: Floats, y: Floats, level: float) -> float:
    """Where the curve, linear between evaluations, first is at ``level`` or above; infinite if it never is."""
    above = np.flatnonzero(y >= level)
    if not above.size:
        return math.inf
    place = int(above[0])
    if place == 0:
        return float(x[0])
    share = (level - y[place - 1]) / (y[place] - y[place - 1])
    return float(x[place - 1] + share * (x[place] - x[place - 1]))


def sample_efficiency(
    runs: pd.DataFrame, points: ByRun, limits: Mapping[str, Horizon], baseline: str | None, thresholds: Sequence[float] = THRESHOLDS
) -> pd.DataFrame:
    """How much each algorithm spends until it reaches a level: the median over seeds, unknown (censored) if half of them or more never do.

    ``budget`` is what the seeds spent in the compared range (median). ``speed_up`` is the baseline's median over the algorithm's; where one
    side is censored its budget stands in, and ``bound`` says whether the ratio is ``at least`` or ``at most`` that.
    """
    rows = []
    for (env, algorithm), group in runs[runs["counted"]].groupby(["env", "algorithm"], sort=True):
        if env not in limits:
            continue
        horizon = limits[str(env)]
        for axis in AXES:
            curves = []
            for run in group["run"]:
                x, y = up_to_horizon(points, run, horizon, axis)
                if x.size and np.isfinite(x).all() and np.isfinite(y).all():
                    curves.append((x, y))
            if not curves:
                continue
            budget = min(float(np.median([x[-1] for x, _ in curves])), horizon.limit if axis == horizon.axis else math.inf)
            for level in thresholds:
                found = [first_reached(x, y, level) for x, y in curves]
                median = median_reached(found)
                rows.append([env, axis, level, algorithm, median, sum(map(math.isfinite, found)), len(found), budget])
    frame = pd.DataFrame(rows, columns=EFFICIENCY_COLUMNS[:-2])
    return _with_speed_ups(frame, baseline)


def median_reached(values: Sequence[float]) -> float:
    """The median of numbers of which some are infinite; NaN if half of them or more are, or there is none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    middle = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return sum(middle) / 2 if all(map(math.isfinite, middle)) else math.nan


def _with_speed_ups(frame: pd.DataFrame, baseline: str | None) -> pd.DataFrame:
    keys = ["env", "axis", "threshold"]
    of = {tuple(row[key] for key in keys): row for row in frame[frame["algorithm"] == baseline].to_dict("records")}
    found = [_speed_up(row, of.get(tuple(row[key] for key in keys))) for row in frame.to_dict("records")]
    return frame.assign(speed_up=[ratio for ratio, _ in found], bound=[bound for _, bound in found])[EFFICIENCY_COLUMNS]


def _speed_up(row: Mapping[str, object], base: Mapping[str, object] | None) -> tuple[float, str]:
    if base is None or row["algorithm"] == base["algorithm"]:
        return math.nan, ""
    mine, theirs = (float(side["median"]) for side in (row, base))  # type: ignore[arg-type]
    if math.isnan(mine) and math.isnan(theirs):
        return math.nan, ""
    bound = "at most" if math.isnan(mine) else "at least" if math.isnan(theirs) else ""
    mine, theirs = (float(side["budget"]) if math.isnan(value) else value for side, value in ((row, mine), (base, theirs)))  # type: ignore[arg-type]
    return (theirs / mine, bound) if mine > 0 and theirs > 0 else (math.nan, "")
