"""The pages: sections put into one self-contained HTML file and one Markdown file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from threespo_bench.contracts.report import Fragment, ReportData
from threespo_reports.styles import COLOURS


@dataclass(frozen=True)
class Rendered:
    """A section that was rendered."""

    name: str
    title: str
    fragment: Fragment


def summary_line(data: ReportData) -> str:
    """What the report is about, in one line."""
    counted = int(data.runs["counted"].sum()) if len(data.runs) else 0
    seeds = len({seed for seed in data.runs["seed"] if seed >= 0}) if len(data.runs) else 0
    parts = [_plural(len(data.algorithms), "algorithm"), _plural(len(data.environments), "environment"), _plural(seeds, "seed")]
    return f"{', '.join(parts)}; {counted} of {_plural(len(data.runs), 'run')} counted"


def _plural(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def html_page(data: ReportData, sections: Sequence[Rendered]) -> str:
    """The whole page; it loads nothing from anywhere."""
    templates = Environment(loader=PackageLoader("threespo_reports"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    parts = [{"name": section.name, "title": section.title, "html": Markup(section.fragment.html)} for section in sections]
    colours = [(colour.lstrip("#"), colour, dark) for colour, dark in COLOURS.items()]
    alarms = sum(problem.severity == "error" for problem in data.problems)
    return templates.get_template("report.html.j2").render(title=data.title, line=summary_line(data), alarms=alarms, sections=parts, colours=colours) + "\n"


def markdown_page(data: ReportData, sections: Sequence[Rendered]) -> str:
    """The same in Markdown, with the figures as files beside it."""
    parts = [f"# {data.title}", summary_line(data) + "."]
    for section in sections:
        if section.fragment.markdown or section.fragment.html:
            parts += [f"## {section.title}", section.fragment.markdown or "This section is in report.html only."]
    return "\n\n".join(parts) + "\n"
