"""The built-in sections, in reading order. Each is a :class:`ReportSection` like anybody's."""

from __future__ import annotations

from typing import Any, ClassVar

import pandas as pd

from threespo_bench.contracts.report import Fragment, ReportData, ReportSection
from threespo_reports import tables
from threespo_reports.analysis import AXIS_NAMES
from threespo_reports.blocks import Blocks, Cell
from threespo_reports.figures import convergence
from threespo_reports.formatting import count, known, listing, p_value, points_range
from threespo_reports.selection import BUDGET_AXES, OVERSHOOT
from threespo_reports.statistics import CONFIDENCE
from threespo_reports.styles import styles


class Verdict(ReportSection):
    """Who ends higher, by how much, and whether the seeds allow to say so."""

    name: ClassVar[str] = "verdict"
    title: ClassVar[str] = "Verdict"
    order: ClassVar[int] = 10

    def render(self, data: ReportData) -> Fragment | None:
        """One table and one sentence per algorithm, for each environment."""
        blocks = Blocks()
        for env in data.environments:
            _head(blocks, data, env)
            rows = tables.of_env(data.summary, env)
            if not rows["seeds"].sum():
                blocks.text("No finished run: nothing can be compared yet.", mark="bad")
                continue
            blocks.table(tables.verdict(data, rows))
            for row in rows.to_dict("records"):
                sentence = verdict_sentence(row, data)
                if sentence:
                    blocks.text(sentence)
            horizon = data.horizons[env]
            blocks.text(
                f"Final success is the last evaluation up to {count(horizon.limit)} {AXIS_NAMES[horizon.axis]} ({horizon.reason}); "
                f"the iteration that spends the budget may pass it by {OVERSHOOT:.0%}. The area is the mean height of the curve up to there.",
                mark="muted",
            )
        if data.baseline is None and len(data.algorithms) > 1:
            blocks.text("No algorithm was named as the baseline, so there are no paired differences: --baseline NAME adds them.")
        blocks.text(
            f"A replicate is a seed. Brackets hold the {CONFIDENCE:.0%} bootstrap interval over seeds; IQM is the mean of the middle half of the seeds "
            "(with fewer than four seeds: of all). Differences are paired by seed, p is the exact two-sided sign-flip test.",
            mark="muted",
        )
        blocks.file("summary", data.summary)
        return blocks.fragment()


def verdict_sentence(row: dict[str, Any], data: ReportData) -> str:
    """What the paired comparison with the baseline says, in words; empty for the baseline itself."""
    if data.baseline is None or row["algorithm"] == data.baseline or not row["seeds"]:
        return ""
    name, other = row["name"], data.names[data.baseline]
    if not known(row.get("diff_mean")):
        return f"{name} and {other} share no matched seed in this environment: no paired difference."
    seeds = str(row["diff_seeds"]).split()
    difference = row["diff_mean"]
    where = "level with" if difference == 0 else f"{abs(100 * difference):.1f} points {'above' if difference > 0 else 'below'}"
    if len(seeds) == 1:
        return f"{name} ends {where} {other} on the one common seed {seeds[0]}; one seed cannot tell a difference from chance."
    ends = points_range(row["diff_low"], row["diff_high"])
    sentence = f"{name} ends {where} {other} over the common seeds {listing(seeds)} (95% interval {ends}); sign-flip p = {p_value(row['diff_p'])}"
    if row["diff_too_few"]:
        return sentence + f": too few seeds to reject chance (with {len(seeds)} seeds p cannot go below {p_value(row['diff_smallest_p'])})."
    return sentence + (": chance alone is an unlikely explanation." if row["diff_p"] <= 0.05 else ": chance alone can explain it.")


class Curves(ReportSection):
    """Convergence curves against environment steps and generated tokens."""

    name: ClassVar[str] = "curves"
    title: ClassVar[str] = "Convergence"
    order: ClassVar[int] = 20

    def render(self, data: ReportData) -> Fragment | None:
        """One row of panels per environment."""
        blocks, looks = Blocks(), styles(data.algorithms)
        for number, env in enumerate(data.environments):
            if data.evaluations[data.evaluations["env"] == env].empty:
                continue
            _head(blocks, data, env)
            present = data.summary[data.summary["env"] == env]
            blocks.keys([(row["name"], looks[row["algorithm"]]) for row in present.to_dict("records")])
            panels, figure = convergence(data, env, "curves" if len(data.environments) == 1 else f"curves_{number + 1}")
            blocks.pictures(panels, figure, _caption(data, present))
        blocks.file("curves", data.curves)
        return blocks.fragment()


def _caption(data: ReportData, rows: pd.DataFrame) -> str:
    seeds = ", ".join(f"{row['name']} {row['seeds']}" for row in rows.to_dict("records"))
    unfinished = " Dotted lines that end with a cross are runs that did not finish; they enter no mean." if not data.runs["counted"].all() else ""
    return (
        f"Success on held-out tasks. Thick: mean over seeds, linear between evaluations, on the range that all seeds of the algorithm cover; shaded: "
        f"{CONFIDENCE:.0%} bootstrap band over seeds (none for one seed); thin: single seeds. No smoothing. Seeds: {seeds}.{unfinished}"
    )


class TaskTypes(ReportSection):
    """Final success by type of task."""

    name: ClassVar[str] = "task_types"
    title: ClassVar[str] = "Success per task type"
    order: ClassVar[int] = 30

    def render(self, data: ReportData) -> Fragment | None:
        """One table per environment that reports types."""
        blocks, frame = Blocks(), tables.task_types(data)
        if frame.empty:
            return None
        for env in data.environments:
            rows = frame[frame["env"] == env]
            if not rows.empty:
                _head(blocks, data, env)
                blocks.table(tables.task_type_table(data, rows))
        blocks.text(
            "At the final evaluation, mean over seeds; small: lowest and highest seed. A type has few tasks, so it moves more than the total.", mark="muted"
        )
        blocks.file("task_types", frame)
        return blocks.fragment()


class Matched(ReportSection):
    """The proof that the algorithms had equal conditions, or where they had not."""

    name: ClassVar[str] = "matched"
    title: ClassVar[str] = "Were the runs matched?"
    order: ClassVar[int] = 40

    def render(self, data: ReportData) -> Fragment | None:
        """A row per environment, seed and digest; differences in red."""
        if data.digests.empty:
            return None
        blocks = Blocks()
        verdicts = set(data.digests["agree"])
        if "differs" in verdicts:
            blocks.text("Some runs that should be equal in all but the algorithm are not. Such pairs are left out of the paired differences above.", mark="bad")
        elif "unknown" in verdicts:
            blocks.text("No difference was found, but some runs do not record all digests.")
        else:
            blocks.text("For every seed all algorithms had everything below in common.")
        blocks.table(tables.digest_rows(data))
        return blocks.fragment()


class Cost(ReportSection):
    """What the runs spent."""

    name: ClassVar[str] = "cost"
    title: ClassVar[str] = "Cost"
    order: ClassVar[int] = 50

    def render(self, data: ReportData) -> Fragment | None:
        """One table per environment; means over the seeds that count."""
        blocks = Blocks()
        for env in data.environments:
            rows = tables.of_env(data.summary, env)
            if rows["seeds"].sum():
                _head(blocks, data, env)
                blocks.table(tables.cost(data, rows))
        blocks.text("Per run, mean over seeds. Evaluation is not charged to the budget; seconds depend on the machine and its load.", mark="muted")
        return blocks.fragment()


class Failures(ReportSection):
    """Runs that failed or are missing, and everything else that limits the numbers."""

    name: ClassVar[str] = "failures"
    title: ClassVar[str] = "Failed, missing and damaged"
    order: ClassVar[int] = 60

    def render(self, data: ReportData) -> Fragment | None:
        """The list of problems and the table of all runs."""
        blocks = Blocks()
        if data.problems:
            order = {"error": 0, "warning": 1, "note": 2}
            ranked = sorted(data.problems, key=lambda problem: order.get(problem.severity, 3))
            blocks.items([Cell(p.where, p.message, "bad" if p.severity == "error" else "") for p in ranked])
        else:
            blocks.text("Nothing: every run finished and every file was whole.")
        blocks.heading("All runs")
        blocks.table(tables.all_runs(data))
        blocks.file("runs", data.runs)
        return blocks.fragment()


class Regenerate(ReportSection):
    """How to make this report again."""

    name: ClassVar[str] = "regenerate"
    title: ClassVar[str] = "Make this report again"
    order: ClassVar[int] = 70

    def render(self, data: ReportData) -> Fragment | None:
        """The command, the digest of the inputs, and the commands of the runs."""
        blocks = Blocks()
        blocks.text("In the folder that holds the runs:")
        blocks.command("threespo-bench report ." + (f" --baseline '{data.baseline}'" if data.baseline else ""))
        blocks.text(f"Equal runs give this report byte for byte. SHA-256 of the files read: {data.inputs}", mark="muted")
        budget = _shared_budget(data.runs)
        if budget:
            blocks.text("The runs themselves come from commands of this form (their config.yaml has every option):")
            seeds = seed_range([int(seed) for seed in set(data.runs["seed"]) if seed >= 0])
            chosen = " ".join(f"--algo {name}" for name in sorted({label.partition(" ")[0] for label in data.algorithms}))
            environments = sorted({label.partition(" ")[0] for label in data.environments})
            for env in environments:
                blocks.command(f"threespo-bench compare {chosen} --env {env} --seeds {seeds} {budget}")
        return blocks.fragment()


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


def _head(blocks: Blocks, data: ReportData, env: str) -> None:
    """The name of an environment, where the report has several."""
    if len(data.environments) > 1:
        blocks.heading(env)


BUILT_IN: tuple[type[ReportSection], ...] = (Verdict, Curves, TaskTypes, Matched, Cost, Failures, Regenerate)
