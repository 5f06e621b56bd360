"""One row per environment and algorithm: the numbers of the verdict and of the cost table."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from threespo_reports import statistics
from threespo_reports.loading import PHASES, TOTALS
from threespo_reports.results import THRESHOLD, median_reached
from threespo_reports.selection import unmatched_seeds
from threespo_reports.styles import printed_name

COSTS = (*TOTALS, "trained_tokens", "seconds", *(f"seconds/{phase}" for phase in PHASES), "peak_memory_mb")
_SPREADS = {"start_success": "start", "final_success": "final", "last_success": "last", "gain": "gain", "area": "area", "end_reward": "end"}


def summarise(runs: pd.DataFrame, digests: pd.DataFrame, improvement: pd.DataFrame, baseline: str | None) -> pd.DataFrame:
    """A row per environment and algorithm, those that end higher first."""
    known = runs[(runs["algorithm"] != "unknown") & (runs["env"] != "unknown")]
    rows = [_row(str(env), str(algorithm), group, known, digests, improvement, baseline) for (env, algorithm), group in known.groupby(["env", "algorithm"])]
    if not rows:
        return pd.DataFrame(columns=["env", "algorithm"])
    order = ["env", "final_iqm", "final_mean", "algorithm"]
    return pd.DataFrame(rows).sort_values(order, ascending=[True, False, False, True], na_position="last", ignore_index=True)


def _row(
    env: str, algorithm: str, group: pd.DataFrame, runs: pd.DataFrame, digests: pd.DataFrame, improvement: pd.DataFrame, baseline: str | None
) -> dict[str, Any]:
    counted = group[group["counted"] & group["final_success"].notna()].sort_values("seed")
    row: dict[str, Any] = {
        "env": env,
        "algorithm": algorithm,
        "name": printed_name(algorithm),
        "seeds": len(counted),
        "seed_list": " ".join(str(seed) for seed in counted["seed"]),
        "not_counted": int((~group["counted"]).sum()),
    }
    for column, name in _SPREADS.items():
        row |= _spread(name, counted[column].to_numpy(float))
    final = counted["final_success"].to_numpy(float)
    middle = statistics.interval(final, statistics.trimmed)
    row |= {"final_iqm": statistics.iqm(final), "final_iqm_low": middle.low, "final_iqm_high": middle.high}
    row |= {"plotted_steps": float(counted["plotted_steps"].min()) if len(counted) else math.nan}
    row |= _reached(counted["reached_at"].to_numpy(float))
    row |= _against_baseline(env, algorithm, runs, digests, improvement, baseline)
    return row | {column: _mean(counted[column]) if column in counted else math.nan for column in ("final_at", *COSTS)}


def _spread(name: str, values: np.ndarray) -> dict[str, float]:
    values = values[np.isfinite(values)]
    ends = statistics.interval(values)
    return {
        f"{name}_mean": float(values.mean()) if values.size else math.nan,
        f"{name}_std": float(values.std(ddof=1)) if values.size > 1 else math.nan,
        f"{name}_low": ends.low,
        f"{name}_high": ends.high,
    }


def _reached(values: np.ndarray) -> dict[str, float]:
    """Median over seeds of where the level of the verdict was reached (NaN if most never did), and how many seeds did."""
    level = f"{100 * THRESHOLD:.0f}"
    return {f"at_{level}_median": median_reached(values.tolist()), f"at_{level}_seeds": float(np.isfinite(values).sum())}


def _mean(values: pd.Series) -> float:
    numbers = pd.to_numeric(values, errors="coerce").dropna().to_numpy(float)
    return float(numbers.mean()) if numbers.size else math.nan


def _against_baseline(env: str, algorithm: str, runs: pd.DataFrame, digests: pd.DataFrame, improvement: pd.DataFrame, baseline: str | None) -> dict[str, Any]:
    """The paired difference of final success over the common seeds whose runs were matched, and the probability of improvement over all."""
    if baseline is None or algorithm == baseline:
        return {}
    unmatched = unmatched_seeds(digests, env, (algorithm, baseline))
    mine, theirs = ({s: v for s, v in by_seed(runs, env, name).items() if s not in unmatched} for name in (algorithm, baseline))
    row: dict[str, Any] = {"baseline": baseline, "unmatched_seeds": " ".join(map(str, sorted(unmatched)))}
    chance = improvement[(improvement["env"] == env) & (improvement["algorithm"] == algorithm) & (improvement["other"] == baseline)]
    for place in chance.to_dict("records"):
        row |= {"improvement": place["probability"], "improvement_low": place["low"], "improvement_high": place["high"]}
    test = statistics.paired(mine, theirs)
    if test is None:
        return row
    names = ("mean", "std", "low", "high", "t_low", "t_high", "p", "smallest_p", "too_few")
    return row | {"diff_seeds": " ".join(map(str, test.seeds))} | {f"diff_{name}": getattr(test, name) for name in names}


def by_seed(runs: pd.DataFrame, env: str, algorithm: str) -> dict[int, float]:
    """Seed -> final success of the counted runs of one cell row."""
    rows = runs[runs["counted"] & (runs["env"] == env) & (runs["algorithm"] == algorithm) & runs["final_success"].notna()]
    return {int(seed): float(value) for seed, value in zip(rows["seed"], rows["final_success"], strict=True)}
