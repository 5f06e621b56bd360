"""Who ends higher, by how much, and whether the seeds allow to say so."""

from __future__ import annotations

from typing import Any, ClassVar

import pandas as pd

from threespo_bench.contracts.report import Fragment, ReportData, ReportSection
from threespo_reports.analysis import AXIS_NAMES
from threespo_reports.blocks import Blocks, Cell, Table
from threespo_reports.formatting import count, fraction, fraction_range, known, listing, p_value, percent, percent_range, points, points_range
from threespo_reports.learning_metrics import LAST
from threespo_reports.resampling import CONFIDENCE
from threespo_reports.results import THRESHOLD
from threespo_reports.sections.shared import head, name_cell, of_env, records
from threespo_reports.selection import TOLERANCE

LEVEL = f"{100 * THRESHOLD:.0f}"
RULE = (
    "Final success is that at the budget: linear between the evaluation before it and the first one at or after it, so nobody gains by a last iteration that "
    f"goes on longer. A run that ends up to {TOLERANCE:.0%} before its budget is judged at its last evaluation; one that ends earlier is incomplete and does "
    "not count. The last evaluations as they were measured are in the table of all runs. The area is the mean height of the curve up to there, the end reward "
    f"the mean of the last {LAST} evaluations after the start (of all where there are fewer), the last one being the final success."
)


class Verdict(ReportSection):
    """One table and one sentence per algorithm, for each environment."""

    name: ClassVar[str] = "verdict"
    title: ClassVar[str] = "Verdict"
    order: ClassVar[int] = 10

    def render(self, data: ReportData) -> Fragment | None:
        """The table, what it says in words, and how its numbers are made."""
        blocks = Blocks()
        for env in data.environments:
            head(blocks, data, env)
            rows = of_env(data.summary, env)
            if not rows["seeds"].sum():
                blocks.text("No finished run: nothing can be compared yet.", mark="bad")
                continue
            blocks.table(_table(data, env, rows))
            for row in records(rows):
                sentence = verdict_sentence(row, data)
                if sentence:
                    blocks.text(sentence)
            horizon = data.horizons[env]
            blocks.text(f"Every run is judged at {count(horizon.limit)} {AXIS_NAMES[horizon.axis]} ({horizon.reason}).", mark="muted")
        if data.baseline is None and len(data.algorithms) > 1:
            blocks.text("No algorithm was named as the baseline, so there are no paired differences: --baseline NAME adds them.")
        blocks.text(RULE, mark="muted")
        blocks.text(
            f"A replicate is a seed. Small numbers are {CONFIDENCE:.0%} bootstrap intervals over seeds. IQM is the interquartile mean, the mean of the middle "
            "half of the seeds (with fewer than four seeds: of all). Differences of final success are paired by seed, p is the exact two-sided sign-flip test. "
            "Probability of improvement is that of Agarwal et al. (arXiv:2108.13264): a run drawn at random ends above a run of the baseline drawn at random, "
            f"unpaired, a tie counts one half. Steps to {LEVEL}% are the median over seeds of where the curve first reaches {LEVEL}%.",
            mark="muted",
        )
        blocks.file("summary", data.summary)
        return blocks.fragment()


def _table(data: ReportData, env: str, rows: pd.DataFrame) -> Table:
    against = [f"against {data.names[data.baseline]}, points", "p", "probability of improvement"] if data.baseline is not None else []
    horizon = data.horizons[env]
    unit = "steps" if horizon.axis == "env_steps" else AXIS_NAMES[horizon.axis]
    columns = ["algorithm", "final success, IQM", "mean", *against, "area", "end reward", f"{unit} to {LEVEL}%", "seeds", "not counted", "gain, points"]
    body: list[list[Cell | str]] = []
    for row in records(rows):
        missing = row["not_counted"]
        body.append(
            [
                name_cell(data, row["algorithm"]),
                Cell(percent(row["final_iqm"]), percent_range(row["final_iqm_low"], row["final_iqm_high"])),
                Cell(percent(row["final_mean"]), percent_range(row["final_low"], row["final_high"])),
                *(_against(row) if against else []),
                Cell(fraction(row["area_mean"]), fraction_range(row["area_low"], row["area_high"])),
                Cell(percent(row["end_mean"]), percent_range(row["end_low"], row["end_high"])),
                _steps(row, horizon.limit),
                Cell(str(row["seeds"]), row["seed_list"]),
                Cell(str(missing) if missing else "", mark="bad" if missing else ""),
                Cell(points(row["gain_mean"]), f"from {percent(row['start_mean'])}" if known(row["start_mean"]) else ""),
            ]
        )
    return Table(columns, body)


def _against(row: dict[str, Any]) -> list[Cell]:
    few = "too few seeds to reject" if row.get("diff_too_few") is True else ""
    return [
        Cell(points(row.get("diff_mean")), points_range(row.get("diff_low"), row.get("diff_high"))),
        Cell(p_value(row.get("diff_p")), few),
        Cell(fraction(row.get("improvement"), 2), fraction_range(row.get("improvement_low"), row.get("improvement_high"), 2)),
    ]


def _steps(row: dict[str, Any], limit: float) -> Cell:
    if not row["seeds"]:
        return Cell("")
    reached = int(row[f"at_{LEVEL}_seeds"])
    median = row[f"at_{LEVEL}_median"]
    told = "" if reached == row["seeds"] else f"{reached} of {row['seeds']} seeds"
    return Cell(count(median) if known(median) else f"> {count(limit)}", told)


def verdict_sentence(row: dict[str, Any], data: ReportData) -> str:
    """What the paired comparison with the baseline says, in words; empty for the baseline itself."""
    if data.baseline is None or row["algorithm"] == data.baseline or not row["seeds"]:
        return ""
    name, other = row["name"], data.names[data.baseline]
    if not known(row.get("diff_mean")):
        return f"{name} and {other} share no matched seed in this environment: no paired difference."
    seeds = str(row["diff_seeds"]).split()
    difference = row["diff_mean"]
    where = "level with" if abs(100 * difference) < 0.05 else f"{abs(100 * difference):.1f} points {'above' if difference > 0 else 'below'}"
    if len(seeds) == 1:
        return f"{name} ends {where} {other} on the one common seed {seeds[0]}; one seed cannot tell a difference from chance."
    ends = points_range(row["diff_low"], row["diff_high"])
    sentence = f"{name} ends {where} {other} over the common seeds {listing(seeds)} (95% interval {ends}); sign-flip p = {p_value(row['diff_p'])}"
    if row["diff_too_few"]:
        return sentence + f": too few seeds to reject chance (with {len(seeds)} seeds p cannot go below {p_value(row['diff_smallest_p'])})."
    return sentence + (": chance alone is an unlikely explanation." if row["diff_p"] <= 0.05 else ": chance alone can explain it.")
