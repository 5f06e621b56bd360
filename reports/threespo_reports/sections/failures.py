"""Runs that failed or are missing, and everything else that limits the numbers."""

from __future__ import annotations

from typing import ClassVar

from threespo_bench.contracts.report import Fragment, Problem, ReportData, ReportSection
from threespo_reports.blocks import Blocks, Cell, Table
from threespo_reports.formatting import count, duration, known, percent
from threespo_reports.sections.shared import records

MOST = 40  # problems of one severity that are told one by one


class Failures(ReportSection):
    """The list of problems and the table of all runs."""

    name: ClassVar[str] = "failures"
    title: ClassVar[str] = "Failed, missing and damaged"
    order: ClassVar[int] = 60

    def render(self, data: ReportData) -> Fragment | None:
        """Errors first."""
        blocks = Blocks()
        if data.problems:
            blocks.items(_lines(data.problems))
        else:
            blocks.text("Nothing: every run finished and every file was whole.")
        blocks.heading("All runs")
        blocks.table(_all_runs(data))
        blocks.file("runs", data.runs)
        return blocks.fragment()


def _lines(problems: tuple[Problem, ...]) -> list[Cell]:
    """All errors; of warnings and notes the first, and how many more."""
    lines = []
    for severity in ("error", "warning", "note"):
        found = [problem for problem in problems if problem.severity == severity]
        shown = found if severity == "error" else found[:MOST]
        lines += [Cell(problem.where, problem.message, "bad" if severity == "error" else "") for problem in shown]
        if len(shown) < len(found):
            lines.append(Cell(f"{len(found) - len(shown)} more {severity}s", "like these are in report.json"))
    return lines


def _all_runs(data: ReportData) -> Table:
    body: list[list[Cell | str]] = []
    for row in records(data.runs):
        state = Cell(row["state"], "" if row["counted"] else row["reason"] if row["reason"] != row["state"] else "not counted", "" if row["counted"] else "bad")
        seed = "" if row["seed"] == -1 else str(row["seed"])
        last = Cell(percent(row["last_success"]), f"at {count(row['last_at'])}" if known(row["last_at"]) else "")
        numbers: list[Cell | str] = [count(row["env_steps"]), count(row["evaluations"]), percent(row["final_success"]), last, duration(row["seconds"])]
        body.append([row["run"], data.names.get(row["algorithm"], row["algorithm"]), row["env"], seed, state, *numbers, Cell(row["error"], mark="muted")])
    columns = ["run", "algorithm", "environment", "seed", "state", "env steps", "evaluations", "final success", "last evaluation", "time", "error"]
    return Table(columns, body, words=frozenset({1, 2, 4, 10}))
