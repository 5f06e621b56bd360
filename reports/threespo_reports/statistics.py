"""The statistics of the reports, by SciPy, in float64 and seeded. A *replicate* is a seed: episodes and checkpoints are averaged
before anything here sees them, so every interval says how much another seed could change the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import integrate, stats

SEED = 20_240_613  # of every resampling, so that equal inputs give equal bytes
RESAMPLES = 9_999
CONFIDENCE = 0.95
EXACT_UP_TO = 16  # seeds: 2^16 sign patterns are enumerated, beyond that they are sampled
ALPHA = 0.05

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A two-sided confidence interval; both ends are NaN where one seed cannot give any."""

    low: float
    high: float


@dataclass(frozen=True)
class Band:
    """A curve over seeds: ``x``, ``mean``, ``low`` and ``high`` of one length (low and high are NaN for one seed); ``seeds`` entered."""

    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    seeds: int


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
    """95% percentile bootstrap interval of ``statistic`` over seeds; NaN for fewer than two seeds."""
    array = per_seed(values)
    if array.size < 2:
        return Interval(float("nan"), float("nan"))
    low, high = _bootstrap(array[:, None], statistic, RESAMPLES)
    return Interval(float(low[0]), float(high[0]))


def trimmed(values: NDArray[np.float64], axis: int = 0) -> Floats:
    """The interquartile mean along an axis: the form of :func:`iqm` that :func:`interval` takes."""
    return np.asarray(stats.trim_mean(values, 0.25, axis=axis), dtype=np.float64)


def _bootstrap(rows: Floats, statistic: Callable[..., ArrayLike], resamples: int) -> tuple[Floats, Floats]:
    """Ends of the interval for each column of ``rows`` (seeds x columns); one draw of seeds serves all columns."""
    result = stats.bootstrap(
        (rows,),
        statistic,
        axis=0,
        n_resamples=resamples,
        batch=500,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(SEED),
    )
    return np.asarray(result.confidence_interval.low), np.asarray(result.confidence_interval.high)


def interpolate(x: ArrayLike, y: ArrayLike, at: ArrayLike) -> Floats:
    """Success between evaluations by linear interpolation; NaN outside the range that was evaluated (no extrapolation)."""
    return np.interp(np.asarray(at, dtype=np.float64), np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64), left=np.nan, right=np.nan)


def band(curves: Sequence[tuple[ArrayLike, ArrayLike]], points: int = 101, resamples: int = 2_000) -> Band:
    """Mean over seeds and its 95% bootstrap band, on ``points`` equal steps of the range that all seeds cover.

    Args:
        curves: (x, success) of every seed, x ascending.
        points: grid points. resamples: bootstrap draws.
    """
    arrays = [(np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)) for x, y in curves]
    first, last = max(x[0] for x, _ in arrays), min(x[-1] for x, _ in arrays)
    grid = np.linspace(first, last, points) if last > first else np.array([first])
    rows = np.stack([interpolate(x, y, grid) for x, y in arrays])
    if len(arrays) < 2:
        blank = np.full_like(grid, np.nan)
        return Band(grid, rows[0], blank, blank, 1)
    low, high = _bootstrap(rows, np.mean, resamples)
    return Band(grid, rows.mean(axis=0), low, high, len(arrays))


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
    ends, n = interval(differences), len(seeds)
    std = float(differences.std(ddof=1)) if n > 1 else float("nan")
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, n - 1)) * std / np.sqrt(n) if n > 1 else float("nan")
    mean = float(differences.mean())
    return Paired(seeds, mean, std, ends.low, ends.high, mean - half, mean + half, sign_flip_p(differences), min(1.0, 2.0 ** (1 - n)))


def area(rewards: ArrayLike) -> float:
    """SPO++'s area: the trapezoid mean over equally spaced plotted steps."""
    values = np.asarray(rewards, dtype=np.float64)
    return float(values[0]) if values.size == 1 else float(((values[:-1] + values[1:]) / 2).mean())


def end_reward(rewards: ArrayLike, last: int = 5) -> float:
    """SPO++'s end reward: the mean of the last five plotted steps."""
    return float(np.asarray(rewards, dtype=np.float64)[-last:].mean())


def composite10(rewards: ArrayLike) -> float:
    """SPO++'s C10: half the area of the first ten steps and half the mean of steps 6 to 10."""
    values = np.asarray(rewards, dtype=np.float64)
    if values.size < 10:
        return float("nan")
    return 0.5 * (area(values[:10]) + float(values[5:10].mean()))
