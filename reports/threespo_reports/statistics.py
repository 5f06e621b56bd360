"""The statistics of the reports, by SciPy, in float64 and seeded. A *replicate* is a seed: episodes and checkpoints are averaged
before anything here sees them, so every interval says how much another seed could change the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import integrate, stats

from threespo_reports.resampling import CONFIDENCE, RESAMPLES, SEED, draws, ends

EXACT_UP_TO = 16  # seeds: 2^16 sign patterns are enumerated, beyond that they are sampled
ALPHA = 0.05

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A two-sided confidence interval; both ends are NaN where one seed cannot give any."""

    low: float
    high: float


@dataclass(frozen=True)
class Paired:
    """Treatment minus baseline over their common seeds.

    Attributes:
        seeds: the seeds that both have. mean, std: of the differences (std with n - 1; NaN for one seed).
        low, high: 95% bootstrap interval of the mean. t_low, t_high: the same by Student's t.
        p: exact two-sided sign-flip p-value. smallest_p: what p can reach with this many seeds.
    """

    seeds: tuple[int, ...]
    mean: float
    std: float
    low: float
    high: float
    t_low: float
    t_high: float
    p: float
    smallest_p: float

    @property
    def too_few(self) -> bool:
        """Whether no result whatever could have been called significant with this many seeds."""
        return self.smallest_p > ALPHA


def per_seed(values: ArrayLike) -> Floats:
    """``values`` as one float64 number per seed. Raises ValueError for anything with another axis, such as episodes x seeds."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"one number per seed is needed, got an array of shape {array.shape}: average episodes and checkpoints first")
    return array


def iqm(values: ArrayLike) -> float:
    """Interquartile mean: the mean of the middle half (of all values when there are fewer than four)."""
    array = per_seed(values)
    return float(stats.trim_mean(array, 0.25)) if array.size else float("nan")


def interval(values: ArrayLike, statistic: Callable[..., ArrayLike] = np.mean) -> Interval:
    """95% percentile bootstrap interval of ``statistic`` (which takes ``axis``) over seeds; NaN for fewer than two seeds."""
    array = per_seed(values)
    if array.size < 2:
        return Interval(math.nan, math.nan)
    if not np.ptp(array):
        return Interval(float(array[0]), float(array[0]))
    low, high = ends(np.asarray(statistic(array[draws(array.size, RESAMPLES)], axis=1)))
    return Interval(float(low), float(high))


def trimmed(values: NDArray[np.float64], axis: int = 0) -> Floats:
    """The interquartile mean along an axis: the form of :func:`iqm` that :func:`interval` takes."""
    return np.asarray(stats.trim_mean(values, 0.25, axis=axis), dtype=np.float64)


def stratified_interval(strata: Sequence[ArrayLike], statistic: Callable[..., ArrayLike] = np.mean) -> Interval:
    """The interval of ``statistic`` of all values together when seeds are drawn anew within each stratum (environment)."""
    arrays = [per_seed(values) for values in strata]
    if any(array.size < 2 for array in arrays):
        return Interval(math.nan, math.nan)
    drawn = [array[draws(array.size, RESAMPLES, stream)] for stream, array in enumerate(arrays)]
    low, high = ends(np.asarray(statistic(np.concatenate(drawn, axis=1), axis=1)))
    return Interval(float(low), float(high))


def interpolate(x: ArrayLike, y: ArrayLike, at: ArrayLike) -> Floats:
    """Success between evaluations by linear interpolation; NaN outside the range that was evaluated (no extrapolation)."""
    return np.interp(np.asarray(at, dtype=np.float64), np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64), left=np.nan, right=np.nan)


def normalised_area(x: ArrayLike, y: ArrayLike, start: float, stop: float) -> float:
    """Mean height of the interpolated curve between ``start`` and ``stop``; NaN where the curve does not cover them."""
    xs = np.asarray(x, dtype=np.float64)
    if not stop > start:
        return float("nan")
    inside = xs[(xs > start) & (xs < stop)]
    grid = np.concatenate([[start], inside, [stop]])
    return float(integrate.trapezoid(interpolate(x, y, grid), grid) / (stop - start))


def sign_flip_p(differences: ArrayLike) -> float:
    """Two-sided p of the mean under random signs; exact (all 2^n patterns) up to 16 seeds, sampled and seeded beyond."""
    array = per_seed(differences)
    if not array.size:
        return float("nan")
    if array.size == 1 or not array.any():
        return 1.0
    resamples = np.inf if array.size <= EXACT_UP_TO else RESAMPLES
    test = stats.permutation_test((array,), np.mean, permutation_type="samples", n_resamples=resamples, rng=np.random.default_rng(SEED))
    return float(test.pvalue)


def paired(treatment: Mapping[int, float], baseline: Mapping[int, float]) -> Paired | None:
    """Compare two algorithms on the seeds they share; None if they share none.

    Args:
        treatment: seed -> result. baseline: the same.
    """
    seeds = tuple(sorted(set(treatment) & set(baseline)))
    if not seeds:
        return None
    differences = np.array([treatment[seed] - baseline[seed] for seed in seeds], dtype=np.float64)
    span, n = interval(differences), len(seeds)
    std = float(differences.std(ddof=1)) if n > 1 else float("nan")
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, n - 1)) * std / np.sqrt(n) if n > 1 else float("nan")
    mean = float(differences.mean())
    return Paired(seeds, mean, std, span.low, span.high, mean - half, mean + half, sign_flip_p(differences), min(1.0, 2.0 ** (1 - n)))
