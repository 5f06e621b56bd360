"""What the record of an experiment says of runs that have no folder, or none any more: nothing that was planned disappears without a word."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from threespo_bench.contracts.report import Problem
from threespo_reports.reading import MARKERS

RECORD = "experiment.json"


def runs_without_folder(runs: Sequence[Path]) -> list[Problem]:
    """A problem for every recorded run without a folder, of each experiment that is reported as a whole (a selection of its runs is meant as one).

    Args:
        runs: the run directories of the report.
    """
    reported = set(runs)
    problems: list[Problem] = []
    for folder in sorted({run.parent for run in runs if (run.parent / RECORD).is_file()}):
        rows = _rows(folder / RECORD)
        if rows is None:
            problems.append(Problem(folder.name, f"{RECORD} is damaged, so runs that have no folder are not known", "warning"))
            continue
        there = {row["name"]: path for row in rows if (path := _folder(folder, row)) is not None}
        if reported.issuperset(there.values()):
            problems += [Problem(row["name"], _told(row)) for row in rows if row["name"] not in there]
    return problems


def _rows(path: Path) -> list[Mapping[str, Any]] | None:
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    rows = record.get("runs") if isinstance(record, Mapping) else None
    if not isinstance(rows, list):
        return None
    return [row for row in rows if isinstance(row, Mapping) and isinstance(row.get("name"), str)]


def _folder(experiment: Path, row: Mapping[str, Any]) -> Path | None:
    """The folder of a recorded run, if a run is in it."""
    if not isinstance(row.get("run"), str):
        return None
    path = (experiment / row["run"]).resolve()
    return path if any((path / marker).is_file() for marker in MARKERS) else None


def _told(row: Mapping[str, Any]) -> str:
    state, error = str(row.get("state") or "unknown"), " ".join(str(row.get("error") or "").split())
    told = f"{state} ({error})" if error else state
    if isinstance(row.get("run"), str):
        return f"the run directory {row['run']} is missing; {RECORD} says: {told}"
    return "was planned and has not begun" if state == "planned" else f"has no run directory; {RECORD} says: {told}"
