"""Reading one run directory. Whatever is torn, missing or odd becomes a :class:`Problem`; nothing here raises for the content of a file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from threespo_bench.contracts.report import Problem
from threespo_reports.rows import Rows, drop_copies, drop_repeats, parse_rows

MARKERS = ("status.json", "manifest.json", "metrics.jsonl")
KINDS = ("eval", "train")  # of rows
NOT_RUNS = ("mlruns", "mlartifacts")  # a tracker's copies of runs, which are none
YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C is ten times as fast


@dataclass
class RunFiles:
    """The content of a run directory: ``name`` is its path relative to the folder that all runs share."""

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)
    metrics: Rows = field(default_factory=Rows)
    timings: Rows = field(default_factory=Rows)
    states: list[dict[str, Any]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    digest: str = ""


def find_runs(paths: Sequence[Path]) -> tuple[list[Path], list[Problem]]:
    """The run directories among ``paths`` and under them (an experiment folder stands for all its runs), without duplicates, sorted.

    Returns:
        The directories, and a problem for each path that is not or holds no run.
    """
    found: set[Path] = set()
    problems = []
    for path in paths:
        runs = list(_walk(path))
        if not runs:
            problems.append(Problem(path.name or ".", "holds no run" if path.is_dir() else "the run directory is missing"))
        found.update(run.resolve() for run in runs)
    return sorted(found), problems


def _walk(path: Path) -> Iterator[Path]:
    """``path`` if it is a run, else the runs under it; never looks inside a run (checkpoints have files of the same names)."""
    if any((path / marker).is_file() for marker in MARKERS):
        yield path
        return
    for folder, subfolders, _ in os.walk(path):
        subfolders[:] = [name for name in subfolders if name not in NOT_RUNS and not name.startswith(".")]
        for name in sorted(subfolders):
            child = Path(folder, name)
            if any((child / marker).is_file() for marker in MARKERS):
                subfolders.remove(name)
                yield child


def shared_folder(runs: Sequence[Path]) -> Path:
    """The deepest folder that holds all runs; names are relative to it, so a store can be moved."""
    return Path(os.path.commonpath([run.parent for run in runs])) if runs else Path()


def read_run(path: Path, name: str) -> RunFiles:
    """All that can be read of the run in ``path``."""
    run, hasher = RunFiles(name), hashlib.sha256()
    run.config = _mapping(path / "config.yaml", run, hasher)
    run.manifest = _mapping(path / "manifest.json", run, hasher)
    run.status = _mapping(path / "status.json", run, hasher)
    run.metrics = _rows(path / "metrics.jsonl", run, hasher)
    run.timings = _rows(path / "timings.jsonl", run, hasher, severity="warning")
    run.states = _states(path / "states.json", run, hasher)
    run.digest = hasher.hexdigest()
    return run


def _read(path: Path, run: RunFiles, hasher: Any, severity: str) -> bytes | None:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        run.problems.append(Problem(run.name, f"{path.name} is missing", severity))
        return None
    except OSError as error:
        run.problems.append(Problem(run.name, f"{path.name} cannot be read: {error.strerror}", severity))
        return None
    for part in (path.name.encode(), b"\0", content, b"\0"):
        hasher.update(part)
    return content


def _mapping(path: Path, run: RunFiles, hasher: Any) -> dict[str, Any]:
    content = _read(path, run, hasher, "error")
    if content is None:
        return {}
    text = content.decode("utf-8", errors="replace")
    try:
        value = yaml.load(text, YAML) if path.suffix == ".yaml" else json.loads(text)
    except (ValueError, TypeError, RecursionError, yaml.YAMLError):
        value = None
    if not isinstance(value, dict):
        run.problems.append(Problem(run.name, f"{path.name} is damaged"))
        return {}
    return value


def _states(path: Path, run: RunFiles, hasher: Any) -> list[dict[str, Any]]:
    """The states that the algorithm tells of; most algorithms tell of none."""
    if not path.exists():
        return []
    content = _read(path, run, hasher, "warning")
    try:
        value = json.loads(content or b"")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, list) or not all(map(_is_state, value)):
        run.problems.append(Problem(run.name, f"{path.name} is damaged: the states of this run are not shown", "warning"))
        return []
    return value


def _is_state(value: Any) -> bool:
    """Whether it has what a state needs: texts, and visits with numbers."""
    if not isinstance(value, dict) or not isinstance(value.get("state"), str) or not isinstance(value.get("visits"), list) or not value["visits"]:
        return False
    return all(
        isinstance(visit, dict)
        and all(isinstance(visit.get(name), (int, float)) for name in ("visit", "clock", "total", "won", "score", "samples"))
        and isinstance(visit.get("actions", []), list)
        and all(isinstance(action, dict) and {"command", "reward", "valid", "success"} <= set(action) for action in visit.get("actions", []))
        for visit in value["visits"]
    )


def _rows(path: Path, run: RunFiles, hasher: Any, severity: str = "error") -> Rows:
    """The rows of a JSON-lines file; damaged lines are skipped, counted and named, and a resumed run's repeated stretch counts once."""
    content = _read(path, run, hasher, severity)
    if content is None:
        return Rows()
    rows = parse_rows(content)
    if rows.bad:
        run.problems.append(Problem(run.name, _describe_bad(path.name, rows), "warning"))
    strange = sorted(set(rows.kinds) - set(KINDS))
    if strange:
        number = sum(rows.length(kind) for kind in strange)
        run.problems.append(Problem(run.name, f"{path.name}: {number} rows are of no known kind and left out (lines {_numbers(rows, strange)})", "warning"))
    copies = drop_copies(rows)
    if copies:
        run.problems.append(Problem(run.name, f"{path.name}: {copies} rows repeat an earlier one exactly and are left out", "warning"))
    repeated = drop_repeats(rows)
    if repeated:
        run.problems.append(Problem(run.name, f"{path.name}: {repeated} rows were measured again after a resume; the later ones count", "note"))
    return rows


def _numbers(rows: Rows, kinds: Sequence[str]) -> str:
    return _first([int(number) for kind in kinds for number in rows.lines[kind]])


def _first(numbers: Sequence[int]) -> str:
    """The smallest five."""
    return ", ".join(map(str, sorted(numbers)[:5])) + (", ..." if len(numbers) > 5 else "")


def _describe_bad(name: str, rows: Rows) -> str:
    whole = [number for number in rows.bad if number != rows.torn]
    parts = []
    if whole:
        parts.append(f"{len(whole)} damaged line{'s' if len(whole) > 1 else ''} skipped (line {_first(whole)})")
    if rows.torn:
        parts.append("the last line is torn and was skipped")
    return f"{name}: " + "; ".join(parts)
