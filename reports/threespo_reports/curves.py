"""Curves over seeds: on a common grid, with a band and the number of seeds at every place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from threespo_reports.frames import ByRun
from threespo_reports.resampling import mean_band, stratified_mean_band
from threespo_reports.selection import TOLERANCE
from threespo_reports.statistics import Floats, interpolate

POINTS = 101  # of a grid
AXES = {"env_steps": "environment steps", "tokens": "generated tokens", "updates": "optimiser updates", "seconds": "wall clock, seconds"}
CURVE_COLUMNS = ["env", "axis", "algorithm", "x", "mean", "low", "high", "seeds"]
Curve = tuple[Floats, Floats]


@dataclass(frozen=True)
class Band:
    """A curve over seeds: ``x``, ``mean``, ``low``, ``high`` and number of ``seeds`` of one length (low and high are NaN where there is one seed)."""

    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    seeds: NDArray[np.int64]

    def table(self, **keys: str) -> pd.DataFrame:
        """As rows, with ``keys`` in front."""
        return pd.DataFrame({**keys, "x": self.x, "mean": self.mean, "low": self.low, "high": self.high, "seeds": self.seeds})


def band(curves: Sequence[tuple[ArrayLike, ArrayLike]], points: int = POINTS) -> Band:
    """Mean over seeds and its 95% bootstrap band, linear between evaluations.

    The grid has ``points`` equal steps over the range that all seeds cover, and goes on as far as any seed goes, with the seeds that are
    left. Seeds that end less than 5% later than the first count as ending there. Nothing is extrapolated.

    Args:
        curves: (x, success) of every seed, x ascending.
    """
    arrays = [(np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)) for x, y in curves]
    first, last = max(x[0] for x, _ in arrays), min(x[-1] for x, _ in arrays)
    grid = np.linspace(first, last, points) if last > first else np.array([first])
    pieces = [_piece(arrays, grid)]
    if last > first:
        step = (last - first) / (points - 1)
        for end in _later_ends([x[-1] for x, _ in arrays], last, (last - first) * TOLERANCE):
            begun = pieces[-1].x[-1]
            grid = np.linspace(begun, end, max(2, round((end - begun) / step) + 1))[1:]
            pieces.append(_piece([(x, y) for x, y in arrays if x[-1] >= end], grid))
    return Band(*(np.concatenate([getattr(piece, name) for piece in pieces]) for name in ("x", "mean", "low", "high", "seeds")))


def _later_ends(found: Sequence[float], last: float, tolerance: float) -> list[float]:
    """Where the number of seeds changes after ``last``, in ascending order; seeds that end close together end together."""
    ends: list[float] = []
    for end in sorted(set(found)):
        if end > (ends[-1] if ends else last) + tolerance:
            ends.append(end)
    return ends


def _piece(arrays: Sequence[Curve], grid: Floats) -> Band:
    rows = np.stack([interpolate(x, y, grid) for x, y in arrays])
    low, high = mean_band(rows)
    return Band(grid, rows.mean(axis=0), low, high, np.full(len(grid), len(arrays)))


def smoothed(values: Floats, window: int) -> Floats:
    """Trailing mean over ``window`` evaluations (of as many as there are at the beginning); the values themselves for a window of 1."""
    if window <= 1 or not values.size:
        return values
    total = np.concatenate([[0.0], np.cumsum(values)])
    stop = np.arange(1, values.size + 1)
    start = np.maximum(stop - window, 0)
    return (total[stop] - total[start]) / (stop - start)


def seed_curve(points: ByRun, run: str, axis: str, window: int = 1) -> Curve:
    """(x, success) of one run in ascending order, without points at which x was not recorded."""
    x, y = points.curve(run, axis)
    return x, smoothed(y, window)


def success_curves(runs: pd.DataFrame, points: ByRun, window: int) -> pd.DataFrame:
    """Mean and band over seeds for every environment, axis and algorithm: :data:`CURVE_COLUMNS`."""
    frames = []
    for (env, algorithm), group in runs[runs["counted"]].groupby(["env", "algorithm"], sort=True):
        for axis in AXES:
            lines = [seed_curve(points, run, axis, window) for run in group["run"]]
            lines = [(x, y) for x, y in lines if len(x)]
            if lines:
                frames.append(band(lines).table(env=env, axis=axis, algorithm=algorithm))
    return pd.concat(frames, ignore_index=True)[CURVE_COLUMNS] if frames else pd.DataFrame(columns=CURVE_COLUMNS)


def difference_band(treatment: Mapping[int, Curve], baseline: Mapping[int, Curve]) -> Band | None:
    """Treatment minus baseline seed by seed, on the range that all their common seeds cover; None if there is none."""
    seeds = sorted(seed for seed in set(treatment) & set(baseline) if len(treatment[seed][0]) and len(baseline[seed][0]))
    pairs = [(treatment[seed], baseline[seed]) for seed in seeds]
    if not pairs:
        return None
    first, last = max(x[0] for pair in pairs for x, _ in pair), min(x[-1] for pair in pairs for x, _ in pair)
    if not last > first:
        return None
    grid = np.linspace(first, last, POINTS)
    rows = np.stack([interpolate(*mine, grid) - interpolate(*theirs, grid) for mine, theirs in pairs])
    low, high = mean_band(rows)
    return Band(grid, rows.mean(axis=0), low, high, np.full(len(grid), len(pairs)))


def aggregate_band(strata: Sequence[Sequence[Curve]], limits: Sequence[float]) -> Band | None:
    """Mean over environments of the means over seeds against the share of the budget; seeds are drawn within each environment.

    Args:
        strata: for each environment the (x, success) of its seeds. limits: for each environment the x that is the whole budget.
    """
    scaled = [[(x / limit, y) for x, y in lines] for lines, limit in zip(strata, limits, strict=True)]
    ends = [(x[0], x[-1]) for lines in scaled for x, _ in lines]
    first, last = max(start for start, _ in ends), min(1.0, min(stop for _, stop in ends))
    if not last > first:
        return None
    grid = np.linspace(first, last, POINTS)
    rows = [np.stack([interpolate(x, y, grid) for x, y in lines]) for lines in scaled]
    low, high = stratified_mean_band(rows)
    mean = np.mean([values.mean(axis=0) for values in rows], axis=0)
    return Band(grid, mean, low, high, np.full(len(grid), min(map(len, strata))))
