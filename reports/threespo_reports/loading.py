"""Run directories -> tidy frames: a row per run, a row per run and evaluation, a row per run and training iteration."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from threespo_bench.contracts.report import Problem
from threespo_reports.describing import describe, shared_settings
from threespo_reports.frames import Floats, stacked
from threespo_reports.reading import RunFiles, find_runs, read_run, shared_folder
from threespo_reports.recorded_runs import runs_without_folder
from threespo_reports.rows import Columns
from threespo_reports.variants import Component, component, flat, variant_labels

TOTALS = ("env_steps", "tokens", "prompt_tokens", "updates", "episodes", "iteration")
PHASES = ("rollout", "update", "evaluation")
KEYS = ("run", "env", "algorithm", "seed")
TRAINING_ROWS = 1_000  # of a run that are kept: more cannot be seen in a figure, and would fill the memory


@dataclass(frozen=True)
class Store:
    """What was read.

    Attributes:
        folder: name of the folder that holds all runs.
        runs: a row per run, in the order of names.
        evaluations, training: a row per run and measurement, with ``run env algorithm seed``; the rows of a run lie together, in the order of its history.
        settings: run -> the options that all runs of a comparison should share, by dotted key.
        configs: run -> all options by dotted key. manifests: run -> its manifest. states: run -> its case study, where it has one.
        problems: what could not be read. inputs: SHA-256 of all files.
    """

    folder: str
    runs: pd.DataFrame
    evaluations: pd.DataFrame
    training: pd.DataFrame
    settings: Mapping[str, Mapping[str, Any]]
    problems: tuple[Problem, ...]
    inputs: str
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    manifests: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    states: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)


@dataclass
class _Parts:
    """What is collected run by run, so that the files of one run only are in memory."""

    names: list[str] = field(default_factory=list)
    components: dict[str, dict[str, Component]] = field(default_factory=lambda: {"algorithm": {}, "env": {}})
    table: list[dict[str, Any]] = field(default_factory=list)
    rows: dict[str, list[Columns]] = field(default_factory=lambda: {"eval": [], "train": []})
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    manifests: dict[str, dict[str, Any]] = field(default_factory=dict)
    states: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)


def load(paths: Sequence[Path]) -> Store:
    """Read all runs in ``paths`` (run directories, or folders of them)."""
    directories, problems = find_runs(paths)
    root = shared_folder(directories)
    parts = _Parts(problems=[*problems, *runs_without_folder(directories)])
    for path in directories:
        _add(parts, read_run(path, path.relative_to(root).as_posix()))
    labels = {key: variant_labels(found) for key, found in parts.components.items()}
    keys = [{"run": name, "env": labels["env"][name], "algorithm": labels["algorithm"][name]} for name in parts.names]
    table = [key | row for key, row in zip(keys, parts.table, strict=True)]
    return Store(
        folder=root.name,
        runs=pd.DataFrame(table, columns=None if table else ["run", "env", "algorithm", "seed", "state", "error"]),
        evaluations=measurements(table, parts.rows["eval"], ("success",)),
        training=measurements(table, parts.rows["train"]),
        settings=parts.settings,
        problems=tuple(parts.problems),
        inputs=hashlib.sha256("".join(f"{name}\0{digest}\n" for name, digest in zip(parts.names, parts.digests, strict=True)).encode()).hexdigest(),
        configs=parts.configs,
        manifests=parts.manifests,
        states=parts.states,
    )


def _add(parts: _Parts, run: RunFiles) -> None:
    parts.names.append(run.name)
    for key, found in parts.components.items():
        found[run.name] = component(run.config, run.manifest, key)
    parts.table.append(describe(run, TOTALS, PHASES))
    parts.settings[run.name] = shared_settings(run.config)
    parts.configs[run.name] = flat(run.config)
    parts.manifests[run.name] = run.manifest
    if run.states:
        parts.states[run.name] = run.states
    parts.problems += run.problems
    parts.digests.append(run.digest)
    for kind, collected in parts.rows.items():
        columns = dict(run.metrics.of(kind))
        columns["seconds"] = _elapsed(columns, run.timings.of(kind))
        collected.append(columns)
    training = parts.rows["train"][-1]
    every = -(-len(training["seconds"]) // TRAINING_ROWS)
    if every > 1:
        last = len(training["seconds"]) - 1
        parts.problems.append(Problem(run.name, f"of {last + 1} training iterations every {every}th is shown; totals and areas use all", "note"))
        parts.rows["train"][-1] = {name: values[last % every :: every].copy() for name, values in training.items()}


def _elapsed(columns: Columns, timings: Columns) -> Floats:
    """The elapsed seconds of the timing row of the same iteration."""
    iteration = columns.get("iteration")
    if iteration is None or "iteration" not in timings or "seconds" not in timings:
        return np.full(len(columns.get("env_steps", ())), np.nan)
    order = np.argsort(timings["iteration"], kind="stable")
    known = timings["iteration"][order]
    place = np.minimum(np.searchsorted(known, iteration, side="right") - 1, len(known) - 1)
    return np.where((place >= 0) & (known[place] == iteration), timings["seconds"][order][place], np.nan)


def measurements(table: Sequence[Mapping[str, Any]], rows: Sequence[Columns], wanted: tuple[str, ...] = ()) -> pd.DataFrame:
    """The rows of one kind of all runs under one another: ``run env algorithm seed``, the totals and seconds, then the rest in alphabetical order.

    Args:
        table: a record per run, of which the keys are taken. rows: the columns of each. wanted: further columns that must exist.
    """
    parts = [
        ({key: record[key] for key in KEYS}, {name: values for name, values in columns.items() if name not in KEYS})
        for record, columns in zip(table, rows, strict=True)
    ]
    frame = stacked(parts)
    for column in (*KEYS, *TOTALS, "seconds", *wanted):
        if column not in frame:
            frame[column] = pd.Series(np.nan, index=frame.index, dtype=object if column in ("run", "env", "algorithm") else float)
    lead = [*KEYS, *TOTALS, "seconds"]
    return frame[lead + sorted(column for column in frame.columns if column not in lead)]
