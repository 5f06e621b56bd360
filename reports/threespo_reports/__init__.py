"""The built-in report: runs on disk, a tidy table, statistics, figures, pages. Reads run folders only."""

from __future__ import annotations

from threespo_bench.contracts.entries import ReportEntry
from threespo_bench.hookspecs import hookimpl

_SECTIONS = {
    "verdict": ("Verdict", "who ends higher, by how much, and whether the seeds allow to say so"),
    "curves": ("Curves", "success against environment steps, tokens, updates and time"),
    "task_types": ("TaskTypes", "success per type of task"),
    "matched": ("Matched", "whether the compared runs had the same tasks and starting weights"),
    "cost": ("Cost", "what each algorithm spends"),
    "failures": ("Failures", "failed, missing and damaged runs"),
    "regenerate": ("Regenerate", "the commands that make the report again"),
}


@hookimpl
def threespo_report_sections() -> list[ReportEntry]:
    """Three functions that the host calls by name, and the sections of the comparison."""
    return [
        ReportEntry("curve", "threespo_reports.figures:single_run_curve", "draws the learning curve of one run"),
        ReportEntry("comparison", "threespo_reports.comparison:write_report", "writes the report of several runs, with all sections below"),
        ReportEntry("credit", "threespo_reports.credit_figure:draw_credit", "draws who gets the credit for a recorded batch"),
        *(ReportEntry(name, f"threespo_reports.sections:{section}", summary, tags=("section",)) for name, (section, summary) in _SECTIONS.items()),
    ]
