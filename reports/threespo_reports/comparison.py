"""The report of a comparison, from run directories to files. ``write_report`` is what the command line calls."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from threespo_bench.atomic import storage_errors
from threespo_bench.contracts.report import Fragment, Problem, ReportData, ReportSection
from threespo_bench.errors import DataError
from threespo_reports.analysis import analyse
from threespo_reports.blocks import Blocks
from threespo_reports.files import csv_text, json_text, write_file, write_parquet
from threespo_reports.foreign import with_foreign
from threespo_reports.judging import RULE
from threespo_reports.loading import load
from threespo_reports.page import Rendered, html_page, markdown_page
from threespo_reports.resampling import CONFIDENCE, CURVE_RESAMPLES, RESAMPLES, SEED
from threespo_reports.sections import BUILT_IN
from threespo_reports.selection import TOLERANCE

FILE_NAME = re.compile(r"(tables|figures)/\w[\w.-]*")


@dataclass(frozen=True)
class ReportPaths:
    """What was written. ``tables`` and ``figures`` are the files of these folders, sorted; ``problems`` what the reader should know."""

    folder: Path
    html: Path
    markdown: Path
    json: Path
    parquet: Path
    tables: tuple[Path, ...]
    figures: tuple[Path, ...]
    problems: tuple[Problem, ...]


def write_report(
    runs: Sequence[Path],
    out: Path,
    baseline: str | None = None,
    sections: Iterable[ReportSection] | None = None,
    title: str = "",
    smooth: int = 1,
    csv: Sequence[Path] = (),
) -> ReportPaths:
    """Compare the runs and write ``report.html``, ``report.md``, ``report.json``, ``data.parquet``, ``tables/*.csv`` and ``figures/*`` into ``out``.

    Args:
        runs: run directories, or folders of them. Damaged and missing ones are named in the report.
        out: folder, made if needed. The same runs give the same bytes.
        baseline: algorithm that the others are compared with; by default GRPO, PPO or RLOO where present.
        sections: all sections, in any order; by default the built-in ones. title: of the page.
        smooth: trailing window of the curves in evaluations, 1 for none. csv: files with results of others (:mod:`threespo_reports.foreign`).

    Raises:
        DataError: there is no run at all, or a CSV file is not as it should be. UsageError: no run has the baseline, or ``smooth`` is below 1.
        StorageError: ``out`` cannot be written.
    """
    store = with_foreign(load([Path(run) for run in runs]), [Path(path) for path in csv])
    if store.runs.empty:
        raise DataError(f"no run found in {', '.join(str(run) for run in runs) or 'an empty list'}", fix="give run directories, or the folder of an experiment")
    data = analyse(store, baseline, title, smooth, [Path(path).name for path in csv])
    del store
    rendered, data = render_sections(data, [section() for section in BUILT_IN] if sections is None else sections)
    with storage_errors(f"write the report to {out}"):
        return _write(data, rendered, out)


def render_sections(data: ReportData, sections: Iterable[ReportSection]) -> tuple[list[Rendered], ReportData]:
    """All sections in their order. One that raises is replaced by a line that says so, and listed in the problems of the returned data."""
    rendered: dict[str, Rendered] = {}
    ordered = sorted(sections, key=lambda section: (section.order, section.name))
    broken: list[Problem] = []
    for section in sorted(ordered, key=_precedence):
        if section.name in rendered:
            broken.append(Problem(f"section {section.name}", "left out: another section has its name"))
            continue
        try:
            fragment = _checked(section.render(replace(data, problems=(*data.problems, *broken))), rendered)
        except Exception as error:  # a stranger's code
            broken.append(Problem(f"section {section.name}", f"could not be made: {type(error).__name__}: {error}"))
            fragment = _broken(broken[-1])
        if fragment is not None:
            rendered[section.name] = Rendered(section.name, section.title, fragment)
    placed = [rendered[name] for name in dict.fromkeys(section.name for section in ordered) if name in rendered]
    return placed, replace(data, problems=(*data.problems, *broken))


def _precedence(section: ReportSection) -> tuple[bool, bool]:
    """The built-in sections come first, so that no other can take their names; the list of problems is written last."""
    return section.name == "failures", not isinstance(section, tuple(BUILT_IN))


def _checked(fragment: Any, others: Mapping[str, Rendered]) -> Fragment | None:
    """A fragment that can be written beside those of ``others``. Raises TypeError or ValueError with what is wrong."""
    if fragment is None:
        return None
    if not isinstance(fragment, Fragment):
        raise TypeError(f"render returned {type(fragment).__name__}, not a Fragment")
    taken = {name: other.name for other in others.values() for name in _file_names(other.fragment)}
    for name in _file_names(fragment):
        if not FILE_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name for a file: letters, digits, '.', '_' and '-' are")
        if name in taken:
            raise ValueError(f"{name} is written by the section {taken[name]} already")
    for name, frame in fragment.tables.items():
        if not isinstance(frame, pd.DataFrame):
            raise TypeError(f"the table {name} is a {type(frame).__name__}, not a data frame")
    return fragment


def _file_names(fragment: Fragment) -> list[str]:
    return [*(f"tables/{name}" for name in fragment.tables), *(f"figures/{figure.name}" for figure in fragment.figures)]


def _broken(problem: Problem) -> Fragment:
    blocks = Blocks()
    blocks.text(f"This section {problem.message}", mark="bad")
    return blocks.fragment()


def _write(data: ReportData, rendered: Sequence[Rendered], out: Path) -> ReportPaths:
    tables = {name: frame for section in rendered for name, frame in section.fragment.tables.items()}
    figures = [figure for section in rendered for figure in section.fragment.figures]
    table_paths, figure_paths = [], []
    for name, frame in sorted(tables.items()):
        table_paths.append(write_file(out / "tables" / f"{name}.csv", csv_text(frame)))
    for figure in sorted(figures, key=lambda figure: figure.name):
        figure_paths.append(write_file(out / "figures" / f"{figure.name}.png", figure.png))
        figure_paths.append(write_file(out / "figures" / f"{figure.name}.svg", figure.svg))
    report = json_text(as_json(data, tables))
    return ReportPaths(
        folder=out,
        html=write_file(out / "report.html", html_page(data, rendered)),
        markdown=write_file(out / "report.md", markdown_page(data, rendered)),
        json=write_file(out / "report.json", report),
        parquet=write_parquet(out / "data.parquet", {"eval": data.evaluations, "train": data.training}),
        tables=tuple(table_paths),
        figures=tuple(figure_paths),
        problems=data.problems,
    )


def as_json(data: ReportData, tables: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
    """The report for programs: what was compared, and every table of it by name."""
    return {
        "title": data.title,
        "environments": data.environments,
        "algorithms": data.names,
        "baseline": data.baseline,
        "inputs_sha256": data.inputs,
        "statistics": {
            "replicate": "seed",
            "confidence": CONFIDENCE,
            "resamples": RESAMPLES,
            "resamples_of_curves": CURVE_RESAMPLES,
            "seed": SEED,
            "between_evaluations": "linear",
            "final_success": RULE,
            "tolerance": TOLERANCE,
            "smoothing_window": data.smooth,
            "probability_of_improvement": "arXiv:2108.13264, unpaired, ties one half",
        },
        "horizons": {env: asdict(horizon) for env, horizon in data.horizons.items()},
        "summary": data.summary.to_dict("records"),
        "runs": data.runs.to_dict("records"),
        "digests": data.digests.to_dict("records"),
        "problems": [asdict(problem) for problem in data.problems],
        "tables": {name: frame.to_dict("records") for name, frame in tables.items() if name not in ("summary", "runs")},
    }
