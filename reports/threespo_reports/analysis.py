"""Store -> the numbers of the report: per-run results, curves over seeds, and one summary row per environment and algorithm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from threespo_bench.contracts.report import Horizon, Problem, ReportData
from threespo_bench.errors import UsageError, suggest
from threespo_reports import statistics
from threespo_reports.loading import PHASES, TOTALS, Store
from threespo_reports.selection import compared, digest_table, horizons, select, selection_problems, unmatched_seeds
from threespo_reports.styles import find_label, printed_name, usual_baseline

AXES = {"env_steps": "environment steps", "tokens": "generated tokens"}  # of the curves
AXIS_NAMES = {**AXES, "updates": "optimiser steps", "iteration": "iterations"}
RESULTS = ("start_success", "final_success", "final_at", "gain", "area")
COSTS = (*TOTALS, "seconds", *(f"seconds/{phase}" for phase in PHASES), "peak_memory_mb")
CURVE_COLUMNS = ["env", "axis", "algorithm", "x", "mean", "low", "high", "seeds"]


def analyse(store: Store, baseline: str | None = None, title: str = "") -> ReportData:
    """Everything a section can show. Raises UsageError for a baseline that no run has."""
    runs = select(store)
    counted = set(runs[runs["counted"]]["run"])
    evaluations, training = (frame.assign(counted=frame["run"].isin(counted)) for frame in (store.evaluations, store.training))
    algorithms = tuple(sorted(set(runs["algorithm"]) - {"unknown"}))
    chosen = choose_baseline(baseline, algorithms)
    limits = horizons(runs, evaluations)
    runs = runs.merge(_results(runs, evaluations, limits), on="run", how="left")
    digests = digest_table(runs)
    summary = _summary(runs, digests, chosen)
    return ReportData(
        title=title or f"{store.folder or 'runs'}: comparison of algorithms",
        environments=tuple(sorted(set(runs["env"]) - {"unknown"})),
        algorithms=algorithms,
        names={label: printed_name(label) for label in algorithms},
        baseline=chosen,
        runs=runs,
        evaluations=evaluations,
        training=training,
        curves=_curves(evaluations),
        summary=summary,
        horizons=limits,
        digests=digests,
        problems=(*store.problems, *selection_problems(runs, digests, store.settings), *_range_problems(limits)),
        inputs=store.inputs,
    )


def choose_baseline(wanted: str | None, algorithms: tuple[str, ...]) -> str | None:
    """The label of the baseline that was asked for, or the usual one."""
    if wanted is None:
        return usual_baseline(algorithms)
    label = find_label(wanted, algorithms)
    if label is None:
        raise UsageError(f"baseline {wanted}: no run of this comparison has that algorithm", fix=suggest(wanted, algorithms))
    return label


def _range_problems(limits: Mapping[str, Horizon]) -> list[Problem]:
    return [
        Problem(env, f"compared up to {horizon.limit:.0f} {AXIS_NAMES[horizon.axis]}, {horizon.reason}", "note")
        for env, horizon in sorted(limits.items())
        if horizon.reason != "the budget"
    ]


def _results(runs: pd.DataFrame, evaluations: pd.DataFrame, limits: Mapping[str, Horizon]) -> pd.DataFrame:
    """Per counted run: success at the start and the end, where the end was measured, the gain and the area under the curve."""
    rows = []
    env_of = dict(zip(runs["run"], runs["env"], strict=True))
    for run, points in evaluations[evaluations["counted"]].groupby("run"):
        horizon = limits[env_of[run]]
        inside = compared(points, horizon)
        if inside.empty:
            continue
        x, y = seed_curve(points, horizon.axis)
        start, final, at = (float(inside[column].iloc[place]) for column, place in (("success", 0), ("success", -1), (horizon.axis, -1)))
        row = (start, final, at, final - start, statistics.normalised_area(x, y, x[0], horizon.limit))
        rows.append({"run": run, **dict(zip(RESULTS, row, strict=True))})
    return pd.DataFrame(rows, columns=["run", *RESULTS])


def _curves(evaluations: pd.DataFrame) -> pd.DataFrame:
    """Mean and band over seeds on a common grid, for every environment, axis and algorithm."""
    frames = []
    for (env, algorithm), points in evaluations[evaluations["counted"]].groupby(["env", "algorithm"]):
        for axis in AXES:
            lines = [seed_curve(run, axis) for _, run in points.groupby("seed")]
            lines = [(x, y) for x, y in lines if len(x)]
            if not lines:
                continue
            curve = statistics.band(lines)
            columns = {"x": curve.x, "mean": curve.mean, "low": curve.low, "high": curve.high}
            frames.append(pd.DataFrame({"env": env, "axis": axis, "algorithm": algorithm, **columns, "seeds": curve.seeds}))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=CURVE_COLUMNS)


def seed_curve(points: pd.DataFrame, axis: str) -> tuple[np.ndarray, np.ndarray]:
    """(x, success) of one run in ascending order, without points at which x was not recorded."""
    known = points[points[axis].notna() & np.isfinite(points["success"].astype(float))].sort_values(axis, kind="stable")
    return known[axis].to_numpy(float), known["success"].to_numpy(float)


def _summary(runs: pd.DataFrame, digests: pd.DataFrame, baseline: str | None) -> pd.DataFrame:
    known = runs[(runs["algorithm"] != "unknown") & (runs["env"] != "unknown")]
    rows = [_summary_row(env, algorithm, group, known, digests, baseline) for (env, algorithm), group in known.groupby(["env", "algorithm"])]
    if not rows:
        return pd.DataFrame(columns=["env", "algorithm"])
    return pd.DataFrame(rows).sort_values(["env", "final_mean", "algorithm"], ascending=[True, False, True], na_position="last", ignore_index=True)


def _summary_row(env: str, algorithm: str, group: pd.DataFrame, runs: pd.DataFrame, digests: pd.DataFrame, baseline: str | None) -> dict[str, Any]:
    counted = group[group["counted"] & group["final_success"].notna()].sort_values("seed")
    row: dict[str, Any] = {
        "env": env,
        "algorithm": algorithm,
        "name": printed_name(algorithm),
        "seeds": len(counted),
        "seed_list": " ".join(str(seed) for seed in counted["seed"]),
        "not_counted": int((~group["counted"]).sum()),
    }
    for column, name in (("start_success", "start"), ("final_success", "final"), ("gain", "gain"), ("area", "area")):
        row |= _spread(name, counted[column].to_numpy(float))
    final = counted["final_success"].to_numpy(float)
    middle = statistics.interval(final, statistics.trimmed)
    row |= {"final_iqm": statistics.iqm(final), "final_iqm_low": middle.low, "final_iqm_high": middle.high}
    row |= _against_baseline(env, algorithm, runs, digests, baseline)
    return row | {column: _mean(counted[column]) for column in ("final_at", *COSTS)}


def _spread(name: str, values: np.ndarray) -> dict[str, float]:
    ends = statistics.interval(values)
    return {
        f"{name}_mean": float(values.mean()) if values.size else math.nan,
        f"{name}_std": float(values.std(ddof=1)) if values.size > 1 else math.nan,
        f"{name}_low": ends.low,
        f"{name}_high": ends.high,
    }


def _mean(values: pd.Series) -> float:
    numbers = pd.to_numeric(values, errors="coerce").dropna().to_numpy(float)
    return float(numbers.mean()) if numbers.size else math.nan


def _against_baseline(env: str, algorithm: str, runs: pd.DataFrame, digests: pd.DataFrame, baseline: str | None) -> dict[str, Any]:
    """The paired difference of final success, over the common seeds whose runs were matched."""
    if baseline is None or algorithm == baseline:
        return {}
    unmatched = unmatched_seeds(digests, env, (algorithm, baseline))
    mine, theirs = ({s: v for s, v in by_seed(runs, env, name).items() if s not in unmatched} for name in (algorithm, baseline))
    test = statistics.paired(mine, theirs)
    row: dict[str, Any] = {"baseline": baseline, "unmatched_seeds": " ".join(map(str, sorted(unmatched)))}
    if test is None:
        return row
    names = ("mean", "std", "low", "high", "t_low", "t_high", "p", "smallest_p", "too_few")
    return row | {"diff_seeds": " ".join(map(str, test.seeds))} | {f"diff_{name}": getattr(test, name) for name in names}


def by_seed(runs: pd.DataFrame, env: str, algorithm: str) -> dict[int, float]:
    """Seed -> final success of the counted runs of one cell row."""
    rows = runs[runs["counted"] & (runs["env"] == env) & (runs["algorithm"] == algorithm) & runs["final_success"].notna()]
    return {int(seed): float(value) for seed, value in zip(rows["seed"], rows["final_success"], strict=True)}
