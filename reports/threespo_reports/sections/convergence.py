"""Convergence curves against environment steps, generated tokens, updates and wall clock, in one figure with a switch."""

from __future__ import annotations

from typing import ClassVar

import pandas as pd

from threespo_bench.contracts.report import Fragment, ReportData, ReportSection
from threespo_reports.blocks import Blocks
from threespo_reports.convergence_figure import convergence
from threespo_reports.resampling import CONFIDENCE
from threespo_reports.sections.shared import file_name, head, keys, of_env, records
from threespo_reports.selection import TOLERANCE


class Curves(ReportSection):
    """One figure per environment."""

    name: ClassVar[str] = "curves"
    title: ClassVar[str] = "Convergence"
    order: ClassVar[int] = 20

    def render(self, data: ReportData) -> Fragment | None:
        """The legend, the figure, and what it shows."""
        blocks = Blocks()
        for env in data.environments:
            if of_env(data.evaluations, env).empty:
                continue
            head(blocks, data, env)
            rows = of_env(data.summary, env)
            keys(blocks, data, rows["algorithm"].tolist())
            views, figures = convergence(data, env, file_name(data, "curves", env))
            blocks.switch(views, figures, _caption(data, rows))
        blocks.file("curves", data.curves)
        return blocks.fragment()


def _caption(data: ReportData, rows: pd.DataFrame) -> str:
    numbers = {row["seeds"] for row in records(rows)}
    seeds = f"{numbers.pop()} each" if len(numbers) == 1 else ", ".join(f"{row['name']} {row['seeds']}" for row in records(rows))
    unfinished = " Dotted lines that end with a cross are runs that do not count; they enter no mean." if not data.runs["counted"].all() else ""
    smoothing = "No smoothing." if data.smooth == 1 else f"All curves are trailing means over {data.smooth} evaluations; no number of this report is smoothed."
    return (
        f"Success on held-out tasks. Thick: mean over seeds, linear between evaluations, on the range that all seeds of the algorithm cover; shaded: "
        f"{CONFIDENCE:.0%} bootstrap band over seeds (none for one seed); thin: single seeds. Where a seed ends more than {TOLERANCE:.0%} before the others "
        f"the mean goes on as a thinner line, and n says over how many seeds. {smoothing} Wall clock includes evaluation. Seeds: {seeds}.{unfinished}"
    )
