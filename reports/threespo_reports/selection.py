"""Which runs enter the statistics, how far they are compared, and whether they were matched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from threespo_bench.contracts.report import Horizon, Problem
from threespo_reports.frames import ByRun
from threespo_reports.loading import Store

TOLERANCE = 0.05  # evaluations may end before the budget by this share of it, and the run still counts
BUDGET_AXES = ("env_steps", "tokens", "updates", "iterations")
AXIS_OF_BUDGET = {"env_steps": "env_steps", "tokens": "tokens", "updates": "updates", "iterations": "iteration"}
UNITS = {"env_steps": "environment steps", "tokens": "tokens", "updates": "updates", "iterations": "iterations"}
CELL = ["env", "algorithm", "seed"]


def select(store: Store, points: ByRun) -> pd.DataFrame:
    """The table of runs with ``counted`` and, where that is false, the ``reason``."""
    runs = store.runs.copy()
    runs["reason"] = [_reason(row, points) for row in runs.to_dict("records")]
    usable = runs[runs["reason"] == ""].sort_values([*CELL, "env_steps", "run"])
    superseded = set(usable[usable.duplicated(CELL, keep="last")]["run"])
    runs.loc[runs["run"].isin(superseded), "reason"] = "another run of the same algorithm, environment and seed counts"
    runs["counted"] = runs["reason"] == ""
    return runs


def _reason(run: dict[str, Any], points: ByRun) -> str:
    """Why a run cannot be compared, or nothing."""
    successes = points.column(run["run"], "success")
    if run["algorithm"] == "unknown" or run["env"] == "unknown" or run["seed"] == -1:
        return "its configuration does not say algorithm, environment and seed"
    if run.get("configured") is False:
        return "its config.yaml cannot be read, so nobody can tell with which options it ran"
    if run["state"] not in ("finished", "unknown"):
        return "still running, or its process was killed" if run["state"] == "running" else str(run["state"])
    if not successes.size:
        return "no evaluation was recorded"
    if not np.isfinite(successes).all():
        return "an evaluation is not a finite number"
    if (successes < 0).any() or (successes > 1).any():
        return "an evaluation is not between 0 and 1"
    if run["state"] == "unknown" and not _spent(run):
        return "its state is unknown and its budget not spent"
    return _incomplete(run, points)


def _incomplete(run: dict[str, Any], points: ByRun) -> str:
    """Whether the evaluations of a finished run end well before every limit of its budget, so that rows must have been lost."""
    ends = []
    for name in BUDGET_AXES:
        limit, last = _number(run[f"budget_{name}"]), float(np.max(points.column(run["run"], AXIS_OF_BUDGET[name])))
        if limit is None:
            continue
        if last >= limit * (1 - TOLERANCE):
            return ""
        ends.append(f"{last:.0f} of {limit:.0f} {UNITS[name]}")
    return f"incomplete, its last evaluation is at {' and '.join(ends)}" if ends else ""


def _spent(run: dict[str, object]) -> bool:
    """Whether any limit of the run's budget was reached."""
    for name in BUDGET_AXES:
        limit, total = _number(run[f"budget_{name}"]), _number(run[AXIS_OF_BUDGET[name]])
        if limit is not None and total is not None and total >= limit:
            return True
    return False


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not pd.isna(value) else None


def horizons(runs: pd.DataFrame, points: ByRun) -> dict[str, Horizon]:
    """Environment -> how far its counted runs are compared: up to their smallest budget, or where the shortest ends if one does not reach that."""
    found = {}
    for env, group in runs[runs["counted"]].groupby("env"):
        axis, budget = _budget(group)
        last = _last_evaluated(group["run"], points, axis)
        if not np.isfinite(list(last.values())).all():
            axis, budget = "env_steps", None
            last = _last_evaluated(group["run"], points, axis)
        shortest = min(last, key=lambda run: last[run])
        if budget is not None and last[shortest] >= budget * (1 - TOLERANCE):
            found[str(env)] = Horizon(axis, budget, "the budget")
        else:
            found[str(env)] = Horizon(axis, last[shortest], f"where the shortest run, {shortest}, has its last evaluation")
    return found


def _last_evaluated(runs: Iterable[str], points: ByRun, axis: str) -> dict[str, float]:
    """Run -> how far its evaluations reach; NaN where the axis is not recorded."""
    return {run: float(np.max(points.column(run, axis))) for run in runs}


def _budget(runs: pd.DataFrame) -> tuple[str, float | None]:
    """The axis on which the runs are limited (environment steps first) and the smallest limit there."""
    for name in BUDGET_AXES:
        limits = [number for value in runs[f"budget_{name}"] if (number := _number(value)) is not None]
        if len(limits) == len(runs):
            return AXIS_OF_BUDGET[name], min(limits)
    return "env_steps", None


def digest_table(runs: pd.DataFrame) -> pd.DataFrame:
    """A row per environment, seed and digest (and the budget): whether the counted runs of all algorithms agree, and their values."""
    columns = sorted(column for column in runs.columns if column.endswith("_digest"))
    rows = []
    for (env, seed), group in runs[runs["counted"]].groupby(["env", "seed"]):
        for name in (*columns, "budget"):
            values = {row["algorithm"]: _value(row, name) for row in group.to_dict("records")}
            known = {value for value in values.values() if value}
            complete = all(values.values())
            rows.append({"env": env, "seed": int(seed), "digest": name.removesuffix("_digest"), "agree": _verdict(known, complete), "values": values})
    return pd.DataFrame(rows, columns=["env", "seed", "digest", "agree", "values"])


def _value(run: dict[str, object], name: str) -> str:
    if name != "budget":
        value = run.get(name)
        return value if isinstance(value, str) else ""
    parts = [f"{axis} {number:.0f}" for axis in BUDGET_AXES if (number := _number(run[f"budget_{axis}"])) is not None]
    return ", ".join(parts)


def _verdict(known: set[str], complete: bool) -> str:
    if len(known) > 1:
        return "differs"
    return "same" if complete else "unknown"


def unmatched_seeds(digests: pd.DataFrame, env: str, pair: Iterable[str]) -> set[int]:
    """Seeds for which the two algorithms of ``pair`` did not have the same tasks, weights, evaluation or budget."""
    first, second = pair
    bad = set()
    for row in digests[(digests["env"] == env) & (digests["digest"] != "versions")].to_dict("records"):
        a, b = row["values"].get(first), row["values"].get(second)
        if a and b and a != b:
            bad.add(int(row["seed"]))
    return bad


def selection_problems(runs: pd.DataFrame, digests: pd.DataFrame, settings: Mapping[str, Mapping[str, Any]]) -> list[Problem]:
    """Excluded runs, missing cells and digests that differ, in words."""
    found = [Problem(row["run"], _excluded(row), "error") for row in runs[~runs["counted"]].to_dict("records")]
    for row in runs[runs["counted"] & (runs["state"] == "unknown")].to_dict("records"):
        found.append(Problem(row["run"], "status.json does not say that it finished; it counts because its budget is spent", "warning"))
    found += _missing(runs)
    found += _differing_settings(runs[runs["counted"]], settings)
    for row in digests[(digests["agree"] == "differs") & (digests["digest"] != "settings")].to_dict("records"):
        severity = "warning" if row["digest"] == "versions" else "error"
        found.append(
            Problem(f"{row['env']}, seed {row['seed']}", f"{spoken(row['digest'])} differs between the algorithms: not a matched comparison", severity)
        )
    return found


def spoken(digest: str) -> str:
    """``starting_weights`` -> ``starting weights``."""
    return digest.replace("_", " ")


def _differing_settings(runs: pd.DataFrame, settings: Mapping[str, Mapping[str, Any]]) -> list[Problem]:
    """The options that should be shared and are not, with who has which value."""
    found = []
    for env, group in runs.groupby("env"):
        of = {run: settings[run] for run in group["run"] if settings[run]}
        for key in sorted({key for options in of.values() for key in options}):
            values = {str(options.get(key)) for options in of.values()}
            if len(values) > 1:
                told = "; ".join(f"{value}: {', '.join(sorted(run for run in of if str(of[run].get(key)) == value))}" for value in sorted(values))
                found.append(Problem(str(env), f"{key} differs between runs: not a matched comparison ({told})", "error"))
    return found


def _excluded(run: dict[str, str]) -> str:
    return f"not counted: {run['reason']}" + (f" ({run['error']})" if run["error"] else "")


def _missing(runs: pd.DataFrame) -> list[Problem]:
    """Cells of the grid algorithms x seeds for which there is no run at all."""
    found = []
    for env, group in runs[(runs["algorithm"] != "unknown") & (runs["env"] != "unknown") & (runs["seed"] != -1)].groupby("env"):
        present = set(zip(group["algorithm"], group["seed"], strict=True))
        for algorithm in sorted(set(group["algorithm"])):
            absent = [str(seed) for seed in sorted(set(group["seed"])) if (algorithm, seed) not in present]
            if absent:
                found.append(Problem(f"{env}, {algorithm}", f"no run for seed {', '.join(absent)}", "error"))
    return found
