"""How to make this report, and its runs, again."""

from __future__ import annotations

import shlex
from typing import ClassVar

import pandas as pd

from threespo_bench.contracts.report import Fragment, ReportData, ReportSection
from threespo_reports.analysis import DEFAULT_TITLE
from threespo_reports.blocks import Blocks
from threespo_reports.formatting import known
from threespo_reports.selection import BUDGET_AXES


class Regenerate(ReportSection):
    """The command, the digest of the inputs, and the commands of the runs."""

    name: ClassVar[str] = "regenerate"
    title: ClassVar[str] = "Make this report again"
    order: ClassVar[int] = 70

    def render(self, data: ReportData) -> Fragment | None:
        """In the folder that holds the runs."""
        blocks = Blocks()
        blocks.text("In the folder that holds the runs:")
        blocks.command(report_command(data))
        blocks.text(f"Equal runs give this report byte for byte. SHA-256 of the files read: {data.inputs}", mark="muted")
        own = data.runs[~data.runs["run"].isin([run for run, config in data.configs.items() if not config])]
        budget = _shared_budget(own)
        if budget:
            blocks.text("The runs themselves come from commands of this form (their config.yaml has every option):")
            seeds = seed_range([int(seed) for seed in set(own["seed"]) if seed >= 0])
            chosen = " ".join(f"--algo {name}" for name in sorted({str(label).partition(" ")[0] for label in own["algorithm"]} - {"unknown"}))
            for env in sorted({str(label).partition(" ")[0] for label in own["env"]} - {"unknown"}):
                blocks.command(f"threespo-bench compare {chosen} --env {env} --seeds {seeds} {budget}")
        blocks.text(
            "data.parquet has the evaluations and training rows that were used, a row each; report.json every number; tables and figures are files, too.",
            mark="muted",
        )
        return blocks.fragment()


def report_command(data: ReportData) -> str:
    """The command line that gives this report."""
    folders = [] if data.sources and not any(data.configs.values()) else ["."]
    parts = ["threespo-bench", "report", *folders, *(word for source in data.sources for word in ("--csv", source))]
    if data.baseline:
        parts += ["--baseline", data.baseline]
    if not data.title.endswith(DEFAULT_TITLE):
        parts += ["--title", data.title]
    if data.smooth > 1:
        parts += ["--smooth", str(data.smooth)]
    return " ".join(map(shlex.quote, parts))


def seed_range(seeds: list[int]) -> str:
    """``0..4`` for consecutive seeds, else ``0,2,5``."""
    ordered = sorted(seeds)
    if len(ordered) > 1 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]}..{ordered[-1]}"
    return ",".join(map(str, ordered))


def _shared_budget(runs: pd.DataFrame) -> str:
    """The budget of all runs as overrides; empty if they differ."""
    parts = []
    for name in BUDGET_AXES:
        limits = {float(value) for value in runs[f"budget_{name}"] if known(value)} if f"budget_{name}" in runs else set()
        if len(limits) > 1:
            return ""
        parts += [f"budget.{name}={limit:.0f}" for limit in limits]
    return " ".join(parts)
