"""What each algorithm spends: steps, tokens, time and memory."""

from __future__ import annotations

from typing import ClassVar

import pandas as pd

from threespo_bench.contracts.report import Fragment, ReportData, ReportSection
from threespo_reports.blocks import Blocks, Cell, Table
from threespo_reports.formatting import count, duration, known, memory
from threespo_reports.loading import PHASES
from threespo_reports.sections.shared import head, name_cell, of_env, records
from threespo_reports.summary import COSTS

WORK = {
    "env_steps": "env steps",
    "episodes": "episodes",
    "prompt_tokens": "prompt tokens",
    "tokens": "generated tokens",
    "trained_tokens": "trained tokens",
    "updates": "updates",
    "iteration": "iterations",
}


class Cost(ReportSection):
    """Tables per environment; means over the seeds that count."""

    name: ClassVar[str] = "cost"
    title: ClassVar[str] = "Cost"
    order: ClassVar[int] = 50

    def render(self, data: ReportData) -> Fragment | None:
        """Work, then time by phase and memory."""
        blocks = Blocks()
        for env in data.environments:
            rows = of_env(data.summary, env)
            if rows["seeds"].sum():
                head(blocks, data, env)
                rows = rows[rows["seeds"] > 0]
                blocks.table(_work(data, rows))
                if rows["seconds"].notna().any():
                    blocks.table(_time(data, rows))
        blocks.text(
            "Per run, mean over seeds. Generated tokens are the responses, prompt tokens what was read for them. Trained tokens are those that "
            "entered updates. Evaluation is not charged to the budget; seconds depend on the machine and its load.",
            mark="muted",
        )
        if len(data.summary):
            blocks.file("cost", data.summary[["env", "algorithm", "name", "seeds", *COSTS]])
        return blocks.fragment()


def _work(data: ReportData, rows: pd.DataFrame) -> Table:
    present = [key for key in WORK if rows[key].notna().any()]
    body: list[list[Cell | str]] = [[name_cell(data, row["algorithm"]), *(count(row[key]) for key in present)] for row in records(rows)]
    return Table(["algorithm", *(WORK[key] for key in present)], body)


def _time(data: ReportData, rows: pd.DataFrame) -> Table:
    body: list[list[Cell | str]] = []
    for row in records(rows):
        phases = [duration(row[f"seconds/{phase}"]) for phase in PHASES]
        rest = row["seconds"] - sum(row[f"seconds/{phase}"] for phase in PHASES if known(row[f"seconds/{phase}"]))
        training = row["seconds"] - (row["seconds/evaluation"] if known(row["seconds/evaluation"]) else 0.0)
        per_step = Cell(f"{1000 * training / row['env_steps']:.1f} ms" if known(row["env_steps"]) and row["env_steps"] > 0 and known(training) else "")
        body.append([name_cell(data, row["algorithm"]), duration(row["seconds"]), *phases, duration(max(rest, 0.0)), per_step, memory(row["peak_memory_mb"])])
    return Table(["algorithm", "time", *(f"of it {phase}" for phase in PHASES), "of it other", "training time per env step", "peak memory"], body)
