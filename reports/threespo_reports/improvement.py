"""Probability of improvement, as Agarwal et al. (arXiv:2108.13264) define it: a run of one algorithm, drawn at random, ends above a run of the
other, drawn at random; a tie counts one half. Runs are not paired by seed. Over several environments it is the mean of theirs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from threespo_reports.resampling import CURVE_RESAMPLES, Floats, ends, weights

IMPROVEMENT_COLUMNS = ["env", "algorithm", "other", "probability", "low", "high"]
ALL = "all environments"


def probability_of_improvement(first: Sequence[Floats], second: Sequence[Floats]) -> tuple[float, float, float]:
    """P(first > second) + P(equal) / 2 over all pairs of runs, and its 95% bootstrap interval, seeds drawn by themselves on both sides.

    Args:
        first, second: for each environment the results of the seeds.

    Returns:
        Probability, low, high; both ends are NaN if a side has fewer than two seeds somewhere.
    """
    values, resampled = [], np.zeros(CURVE_RESAMPLES)
    for place, (mine, theirs) in enumerate(zip(first, second, strict=True)):
        wins = (mine[:, None] > theirs[None, :]) + 0.5 * (mine[:, None] == theirs[None, :])
        values.append(float(wins.mean()))
        resampled += ((weights(len(mine), stream=2 * place) @ wins) * weights(len(theirs), stream=2 * place + 1)).sum(axis=1)
    if not values:
        return math.nan, math.nan, math.nan
    if min(len(results) for results in (*first, *second)) < 2:
        return float(np.mean(values)), math.nan, math.nan
    low, high = ends(resampled / len(values))
    return float(np.mean(values)), float(low), float(high)


def improvement_table(runs: pd.DataFrame, environments: Sequence[str], algorithms: Sequence[str]) -> pd.DataFrame:
    """A row per environment and ordered pair of algorithms, and over all environments for those that have results in each."""
    done = runs[runs["counted"] & runs["final_success"].notna()]
    finals = {key: group["final_success"].to_numpy(float) for key, group in done.groupby(["env", "algorithm"])}
    places: list[tuple[str, Sequence[str]]] = [(env, (env,)) for env in environments]
    if len(environments) > 1:
        places.append((ALL, environments))
    rows = []
    for name, included in places:
        present = [label for label in algorithms if all((env, label) in finals for env in included)]
        for place, label in enumerate(present):
            for other in present[place + 1 :]:
                value, low, high = probability_of_improvement(*([finals[env, who] for env in included] for who in (label, other)))
                rows += [(name, label, other, value, low, high), (name, other, label, 1 - value, 1 - high, 1 - low)]
    return pd.DataFrame(rows, columns=IMPROVEMENT_COLUMNS).sort_values(["env", "algorithm", "other"], ignore_index=True)
