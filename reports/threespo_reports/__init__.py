"""The built-in report: runs on disk, a tidy table, statistics, figures, pages. Reads run folders only."""

from __future__ import annotations

from threespo_bench.contracts.entries import ReportEntry
from threespo_bench.hookspecs import hookimpl

_SECTIONS = {
    "verdict": ("Verdict", "who ends higher, by how much, and whether the seeds allow to say so"),
    "curves": ("Curves", "success against environment steps, tokens, updates and time"),
    "differences": ("Differences", "the distance to the baseline in the course of training, paired by seed"),
    "aggregate": ("Aggregate", "all environments together"),
    "profiles": ("Profiles", "the share of runs that end above each level of success"),
    "improvement": ("Improvement", "the probability of improvement of every pair of algorithms"),
    "efficiency": ("Efficiency", "what is spent until a level of success is reached"),
    "task_types": ("TaskTypes", "success per type of task and split"),
    "learning": ("Learning", "area, end reward and C10"),
    "behaviour": ("Behaviour", "what the algorithms did: diagnostics of training"),
    "states": ("States", "what became of states that a search came back to, and the actions tried there"),
    "cost": ("Cost", "what each algorithm spends"),
    "failures": ("Failures", "failed, missing and damaged runs"),
    "methods": ("Methods", "what the algorithms are: source, reconstruction or not, loss and its aggregation"),
    "matched": ("Matched", "whether the compared runs had the same tasks, starting weights and options"),
    "provenance": ("Provenance", "the manifests of the runs"),
    "regenerate": ("Regenerate", "the commands that make the report again"),
}


@hookimpl
def threespo_report_sections() -> list[ReportEntry]:
    """Four functions that the host calls by name, and the sections of the comparison."""
    return [
        ReportEntry("curve", "threespo_reports.figures:single_run_curve", "draws the learning curve of one run"),
        ReportEntry("comparison", "threespo_reports.comparison:write_report", "writes the report of several runs, with all sections below"),
        ReportEntry("interval", "threespo_reports.statistics:interval", "95% bootstrap interval of a mean over seeds"),
        ReportEntry("credit", "threespo_reports.credit_figure:draw_credit", "draws who gets the credit for a recorded batch"),
        *(ReportEntry(name, f"threespo_reports.sections:{section}", summary, tags=("section",)) for name, (section, summary) in _SECTIONS.items()),
    ]
