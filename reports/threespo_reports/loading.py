"""Run directories -> tidy frames: a row per run, a row per run and evaluation, a row per run and training iteration."""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from threespo_bench.contracts.report import Problem
from threespo_reports.reading import RunFiles, find_runs, read_run, shared_folder

TOTALS = ("env_steps", "tokens", "updates", "episodes", "iteration")
PHASES = ("rollout", "update", "evaluation")
KEYS = ["run", "env", "algorithm", "seed"]
ERROR_LENGTH = 200
SHARED_SETTINGS = ("evaluation", "rollout", "train_split", "engine.name")  # of the configuration; the algorithm's own options differ by design
_NOT_OPTIONS = ("name", "options")


@dataclass(frozen=True)
class Store:
    """What was read.

    Attributes:
        folder: name of the folder that holds all runs.
        runs: a row per run, in the order of names.
        evaluations, training: a row per run and measurement, with ``run env algorithm seed``.
        settings: run -> the options that all runs of a comparison should share, by dotted key.
        problems: what could not be read. inputs: SHA-256 of all files.
    """

    folder: str
    runs: pd.DataFrame
    evaluations: pd.DataFrame
    training: pd.DataFrame
    settings: Mapping[str, Mapping[str, Any]]
    problems: tuple[Problem, ...]
    inputs: str


def load(paths: Sequence[Path]) -> Store:
    """Read all runs in ``paths`` (run directories, or folders of them)."""
    directories, problems = find_runs(paths)
    root = shared_folder(directories)
    runs = [read_run(path, path.relative_to(root).as_posix()) for path in directories]
    algorithms = variant_labels({run.name: _component(run, "algorithm") for run in runs})
    environments = variant_labels({run.name: _component(run, "env") for run in runs})
    table = [{"run": run.name, "env": environments[run.name], "algorithm": algorithms[run.name], **_describe(run)} for run in runs]
    columns = ["run", "env", "algorithm", "seed", "state", "error"]
    frame = pd.DataFrame(table, columns=None if table else columns)
    digest = hashlib.sha256("".join(f"{run.name}\0{run.digest}\n" for run in runs).encode()).hexdigest()
    problems += [problem for run in runs for problem in run.problems]
    settings = {run.name: _settings(run.config) for run in runs}
    return Store(root.name, frame, _rows(runs, frame, "eval"), _rows(runs, frame, "train"), settings, tuple(problems), digest)


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in _flat(config).items() if any(key == name or key.startswith(f"{name}.") for name in SHARED_SETTINGS)}


def _component(run: RunFiles, key: str) -> tuple[str, dict[str, Any]]:
    """Name and flattened options of a configured plugin, however the configuration nests them; the manifest helps out."""
    value = run.config.get(key) or run.manifest.get(key)
    if isinstance(value, str):
        return value, {}
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        return "unknown", {}
    options = value.get("options")
    merged = {**(options if isinstance(options, Mapping) else {}), **{k: v for k, v in value.items() if k not in _NOT_OPTIONS}}
    return value["name"], _flat(merged) if key in run.config else {}


def _flat(options: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in options.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def variant_labels(components: Mapping[str, tuple[str, Mapping[str, Any]]]) -> dict[str, str]:
    """Run -> label: the plugin's name, and where its runs differ in options, the fewest of these that tell them apart."""
    by_name: dict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for run, (name, options) in components.items():
        by_name[name][run] = options
    labels = {}
    for name, options_of in by_name.items():
        keys = _distinguishing(list(options_of.values()))
        for run, options in options_of.items():
            told = ", ".join(f"{key}={options[key]}" for key in keys if key in options)
            labels[run] = f"{name} ({told})" if told else name
    return labels


def _distinguishing(variants: list[Mapping[str, Any]]) -> list[str]:
    """Option names, ``preset`` first, until no two different option sets look alike."""
    whole = {_text(dict(options)) for options in variants}
    varying = [key for key in sorted({k for v in variants for k in v}) if len({_text(v.get(key)) for v in variants}) > 1]
    chosen: list[str] = []
    for key in sorted(varying, key=lambda key: (key != "preset", key)):
        if len({_text([v.get(k) for k in chosen]) for v in variants}) == len(whole):
            break
        chosen.append(key)
    return chosen


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _describe(run: RunFiles) -> dict[str, Any]:
    """The columns of the table of runs."""
    budget = run.config.get("budget")
    budget = budget if isinstance(budget, Mapping) else {}
    last = {key: max((row[key] for row in run.metrics if key in row and not math.isnan(row[key])), default=None) for key in TOTALS}
    return {
        "seed": _seed(run),
        "state": str(run.status.get("state", "unknown")),
        "error": one_line(run.status.get("error")),
        **{f"budget_{key}": budget.get(key) for key in ("env_steps", "tokens", "updates", "iterations")},
        **last,
        "evaluations": sum(row["kind"] == "eval" for row in run.metrics),
        **_time(run.timings),
        **_digests(run.manifest),
        "settings_digest": _short_digest(_settings(run.config)) if _settings(run.config) else None,
        "owner": _owner(run.manifest),
    }


def _seed(run: RunFiles) -> int:
    seed = run.config.get("seed", run.manifest.get("seed"))
    return seed if isinstance(seed, int) and not isinstance(seed, bool) else -1


def one_line(error: Any) -> str:
    """An error message cut to one line; of a traceback, its last line."""
    lines = [line.strip() for line in str(error or "").splitlines() if line.strip()]
    if not lines:
        return ""
    line = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    return line if len(line) <= ERROR_LENGTH else line[: ERROR_LENGTH - 3] + "..."


def _time(timings: list[dict[str, Any]]) -> dict[str, float]:
    """Wall-clock seconds in all and by phase, and the peak of memory; NaN where nothing was recorded."""
    found = {"seconds": max((row["seconds"] for row in timings if "seconds" in row), default=math.nan)}
    for phase in PHASES:
        values = [row[f"seconds/{phase}"] for row in timings if f"seconds/{phase}" in row]
        found[f"seconds/{phase}"] = math.fsum(values) if values else math.nan
    found["peak_memory_mb"] = max((row["peak_memory_mb"] for row in timings if "peak_memory_mb" in row), default=math.nan)
    return found


def _digests(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Every ``*_digest`` of the manifest, and one of the recorded versions: what must be equal for a matched comparison."""
    found = {key: str(value) for key, value in sorted(manifest.items()) if key.endswith("_digest") and value is not None}
    if isinstance(manifest.get("versions"), Mapping):
        found["versions_digest"] = _short_digest(manifest["versions"])
    return found


def _short_digest(value: Any) -> str:
    return hashlib.sha256(_text(value).encode()).hexdigest()[:16]


def _owner(manifest: Mapping[str, Any]) -> str:
    """The distribution that brought the algorithm, with its version, as far as the manifest says."""
    algorithm = manifest.get("algorithm")
    owner = algorithm.get("owner", algorithm.get("distribution", "")) if isinstance(algorithm, Mapping) else ""
    if isinstance(owner, Mapping):
        return " ".join(str(owner[key]) for key in ("name", "version") if key in owner)
    return str(owner or "")


def _rows(runs: Sequence[RunFiles], table: pd.DataFrame, kind: str) -> pd.DataFrame:
    """The metric rows of one kind of all runs, with the elapsed seconds of the matching timing row."""
    keys = {record["run"]: record for record in table[KEYS].to_dict("records")} if len(table) else {}
    collected = []
    for run in runs:
        elapsed = {row.get("iteration"): row.get("seconds", math.nan) for row in run.timings if row["kind"] == kind}
        for row in run.metrics:
            if row["kind"] == kind:
                numbers = {key: value for key, value in row.items() if key not in {"kind", *KEYS}}
                collected.append({**keys[run.name], "seconds": elapsed.get(row.get("iteration"), math.nan), **numbers})
    frame = pd.DataFrame(collected)
    for column in (*KEYS, *TOTALS, "seconds", *(("success",) if kind == "eval" else ())):
        if column not in frame:
            frame[column] = pd.Series(dtype=object if column in ("run", "env", "algorithm") else float)
    lead = [*KEYS, *TOTALS, "seconds"]
    return frame[lead + sorted(column for column in frame.columns if column not in lead)]
