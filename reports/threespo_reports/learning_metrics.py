"""The learning-efficiency metrics of SPO++ over equally spaced plotted steps, and their matched comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

LAST = 5  # plotted steps that the end reward is the mean of
DEFINITIONS = {
    "area": "mean over t < T of (r(t) + r(t+1)) / 2, or r(1) if there is one step only",
    "end reward": f"mean of the last {LAST} plotted steps, without smoothing",
    "C10": "half the area of r(1) ... r(10) plus half the mean of r(6) ... r(10)",
}


def area(rewards: ArrayLike) -> float:
    """The trapezoid mean over equally spaced plotted steps."""
    values = np.asarray(rewards, dtype=np.float64)
    if not values.size:
        return float("nan")
    return float(values[0]) if values.size == 1 else float(((values[:-1] + values[1:]) / 2).mean())


def end_reward(rewards: ArrayLike, last: int = LAST) -> float:
    """The mean of the last five plotted steps (of all where there are fewer)."""
    values = np.asarray(rewards, dtype=np.float64)
    return float(values[-last:].mean()) if values.size else float("nan")


def composite10(rewards: ArrayLike) -> float:
    """C10: half the area of the first ten steps and half the mean of steps 6 to 10; NaN for fewer than ten."""
    values = np.asarray(rewards, dtype=np.float64)
    if values.size < 10:
        return float("nan")
    return 0.5 * (area(values[:10]) + float(values[5:10].mean()))


METRICS: Mapping[str, Callable[[ArrayLike], float]] = {"area": area, "end": end_reward, "c10": composite10}


@dataclass(frozen=True)
class Matched:
    """Method minus baseline over replicates: ``mean`` and sample standard deviation ``std`` (ddof 1), and the ``seeds`` that entered."""

    mean: float
    std: float
    seeds: tuple[int, ...]


def matched_difference(method: Mapping[int, Any], baseline: Mapping[int, Any], metric: Callable[[ArrayLike], float]) -> Matched | None:
    """The matched comparison: both curves of a replicate are cut to their common number of points, and ``metric`` is compared.

    Args:
        method, baseline: seed -> plotted steps. A replicate with a point that is not finite is dropped.

    Returns:
        The difference, or None if there is no replicate to compare.
    """
    differences = {}
    for seed in sorted(set(method) & set(baseline)):
        length = min(len(method[seed]), len(baseline[seed]))
        pair = [np.asarray(values, dtype=np.float64)[:length] for values in (method[seed], baseline[seed])]
        if length and all(np.isfinite(values).all() for values in pair):
            value = metric(pair[0]) - metric(pair[1])
            if np.isfinite(value):
                differences[seed] = value
    if not differences:
        return None
    values = np.array(list(differences.values()))
    return Matched(float(values.mean()), float(values.std(ddof=1)) if values.size > 1 else float("nan"), tuple(differences))
