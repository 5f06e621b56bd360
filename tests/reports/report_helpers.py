"""What several test modules of the report need: quick reports, their numbers and their files."""

from __future__ import annotations

import json
from pathlib import Path

from synthetic_runs import write_curve

from threespo_reports.comparison import ReportPaths, write_report
from threespo_reports.sections import BUILT_IN

DRAWN = {"curves", "differences", "aggregate", "profiles", "improvement", "efficiency", "behaviour"}


def quick(runs: list[Path], out: Path, baseline: str | None = None) -> ReportPaths:
    """The report without its figures, which take most of the time."""
    return write_report(runs, out, baseline, sections=[section() for section in BUILT_IN if section.name not in DRAWN])


def summary(paths: ReportPaths, env: str = "household") -> dict[str, dict]:
    """The summary of one environment by algorithm."""
    return {row["algorithm"]: row for row in json.loads(paths.json.read_text())["summary"] if row["env"] == env}


def contents(paths: ReportPaths) -> dict[str, bytes]:
    """All files of a report."""
    return {path.relative_to(paths.folder).as_posix(): path.read_bytes() for path in sorted(paths.folder.rglob("*")) if path.is_file()}


def constant(folder: Path, algorithm: str, finals: list[float], **more: object) -> None:
    """A run per seed that rises linearly from 0.3 to ``finals[seed]`` within 2,000 steps."""
    for seed, final in enumerate(finals):
        write_curve(folder / f"{algorithm}-s{seed}", algorithm, seed, [0.3, (0.3 + final) / 2, final], **more)
