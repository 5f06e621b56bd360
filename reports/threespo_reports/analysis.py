"""Store -> the numbers of the report: per-run results, curves over seeds, and one summary row per environment and algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from threespo_bench.contracts.report import Horizon, Problem, ReportData
from threespo_bench.errors import UsageError, suggest
from threespo_bench.store import safe_name
from threespo_reports.curves import AXES, success_curves
from threespo_reports.frames import ByRun
from threespo_reports.improvement import improvement_table
from threespo_reports.judging import last_evaluations, wide_gap
from threespo_reports.loading import Store
from threespo_reports.results import run_results, sample_efficiency
from threespo_reports.selection import digest_table, horizons, select, selection_problems
from threespo_reports.styles import find_label, printed_name, usual_baseline
from threespo_reports.summary import summarise

DEFAULT_TITLE = ": comparison of algorithms"
AXIS_NAMES = {**AXES, "iteration": "iterations"}


def analyse(store: Store, baseline: str | None = None, title: str = "", smooth: int = 1, sources: Sequence[str] = ()) -> ReportData:
    """Everything a section can show.

    Args:
        store: what was read. baseline: what the others are compared with. title: of the page. smooth: trailing window of the curves, in evaluations.
        sources: names of the CSV files with foreign results, for the command that makes the report again.

    Raises:
        UsageError: no run has the baseline, or the window is no positive number.
    """
    if smooth < 1:
        raise UsageError(f"smooth={smooth} is out of range: must be 1 (no smoothing) or a larger number of evaluations")
    points = ByRun(store.evaluations)
    runs = select(store, points)
    algorithms = tuple(sorted(set(runs["algorithm"]) - {"unknown"}))
    environments = tuple(sorted(set(runs["env"]) - {"unknown"}))
    chosen = choose_baseline(baseline, algorithms, runs)
    limits = horizons(runs, points)
    for found in (run_results(runs[runs["counted"]], points, limits), last_evaluations(runs, points, limits)):
        runs = runs.merge(found, on="run", how="left")
    digests = digest_table(runs)
    improvement = improvement_table(runs, environments, algorithms)
    counted = set(runs[runs["counted"]]["run"])
    return ReportData(
        title=title or f"{store.folder or 'runs'}{DEFAULT_TITLE}",
        environments=environments,
        algorithms=algorithms,
        names={label: printed_name(label) for label in algorithms},
        baseline=chosen,
        runs=runs,
        evaluations=_marked(store.evaluations, counted),
        training=_marked(store.training, counted),
        curves=success_curves(runs, points, smooth),
        summary=summarise(runs, digests, improvement, chosen),
        horizons=limits,
        digests=digests,
        problems=(*store.problems, *selection_problems(runs, digests, store.settings), *_range_problems(limits), *_judgements(runs, points, limits)),
        inputs=store.inputs,
        improvement=improvement,
        efficiency=sample_efficiency(runs, points, limits, chosen),
        configs=store.configs,
        manifests=store.manifests,
        smooth=smooth,
        sources=tuple(sources),
        states=store.states,
    )


def _marked(frame: pd.DataFrame, counted: set[str]) -> pd.DataFrame:
    """``frame`` with the column ``counted``."""
    return frame.assign(counted=frame["run"].isin(counted))


def choose_baseline(wanted: str | None, algorithms: tuple[str, ...], runs: pd.DataFrame) -> str | None:
    """The label of the baseline that was asked for, or the usual one.

    It may be named by its label, its printed name, what its runs are called in their experiment, or its plain name where that has one variant.
    """
    if wanted is None:
        return usual_baseline(algorithms)
    label = find_label(wanted, algorithms)
    if label is not None:
        return label
    names = {safe_name(name).lower() for name in (wanted, printed_name(wanted))}
    called = {row["algorithm"] for row in runs.to_dict("records") if _called(row) in names}
    variants = sorted(label for label in algorithms if label.partition(" ")[0].lower() in names)
    for found in (called, variants):
        if len(found) == 1:
            return next(iter(found))
    fix = f"it has several variants, name one of them: {', '.join(repr(name) for name in variants)}" if variants else suggest(wanted, algorithms)
    raise UsageError(f"baseline {wanted}: no run of this comparison has that algorithm", fix=fix)


def _called(run: Mapping[str, Any]) -> str:
    """What the algorithm of a run is called in its experiment: the folder's name up to environment and seed."""
    return str(run["run"]).rpartition("/")[2].lower().rpartition(f"-{str(run['env']).partition(' ')[0].lower()}-seed")[0]


def _range_problems(limits: Mapping[str, Horizon]) -> list[Problem]:
    return [
        Problem(env, f"compared up to {horizon.limit:.0f} {AXIS_NAMES[horizon.axis]}, {horizon.reason}", "note")
        for env, horizon in sorted(limits.items())
        if horizon.reason != "the budget"
    ]


def _judgements(runs: pd.DataFrame, points: ByRun, limits: Mapping[str, Horizon]) -> list[Problem]:
    """Runs that are not judged at an evaluation close to the limit, or not at all."""
    found = []
    for row in runs[runs["counted"]].to_dict("records"):
        horizon, run = limits[row["env"]], str(row["run"])
        unit, gap = AXIS_NAMES[horizon.axis], wide_gap(points, run, horizon)
        if pd.isna(row["final_success"]):
            found.append(Problem(run, f"has no result: its first evaluation comes after {horizon.limit:.0f} {unit}"))
        elif row["final_at"] < horizon.limit:
            found.append(Problem(run, f"judged at its last evaluation, at {row['final_at']:.0f} of {horizon.limit:.0f} {unit}", "note"))
        elif gap is not None:
            found.append(Problem(run, f"success at {horizon.limit:.0f} {unit} is read off between its evaluations at {gap[0]:.0f} and {gap[1]:.0f}", "note"))
    return found
