"""Final success by type of task, and on held-out tasks beside training tasks."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pandas as pd

from threespo_bench.contracts.report import Fragment, ReportData, ReportSection
from threespo_reports.blocks import Blocks, Cell, Table
from threespo_reports.formatting import percent, percent_range, points, task_kind
from threespo_reports.judging import judged
from threespo_reports.learning_metrics import LAST
from threespo_reports.sections.shared import evaluations, head, name_cell, of_env, ranked, records

KIND = "success/"
COLUMNS = ["env", "split", "algorithm", "kind", "mean", "low", "high", "seeds"]
SPLIT_COLUMNS = ["env", "algorithm", "held_out_split", "held_out", "train_split", "training", "gap", "seeds"]


class TaskTypes(ReportSection):
    """Tables per environment: types of task and splits."""

    name: ClassVar[str] = "task_types"
    title: ClassVar[str] = "Success per task type and split"
    order: ClassVar[int] = 30

    def render(self, data: ReportData) -> Fragment | None:
        """What is not recorded is left out."""
        blocks, kinds, splits = Blocks(), task_types(data), split_rows(data)
        if kinds.empty and splits.empty:
            return None
        for env in data.environments:
            of_kinds, of_splits = of_env(kinds, env), of_env(splits, env)
            if of_kinds.empty and of_splits.empty:
                continue
            head(blocks, data, env)
            for split, rows in of_kinds.groupby("split", sort=True):
                if of_kinds["split"].nunique() > 1:
                    blocks.text(f"Split {split}:")
                blocks.table(_kind_table(data, env, rows))
            if not of_splits.empty:
                blocks.table(_split_table(data, env, of_splits))
        named = sorted({str(split) for split in kinds["split"] if split})
        blocks.text(
            f"Types: where the run is judged{', on ' + ', '.join(named) if named else ''}, mean over seeds; small: lowest and highest seed. A type has few "
            f"tasks, so it moves more than the total. Training tasks: success of training episodes as the algorithm sampled them, mean of the last {LAST} "
            "iterations; a search samples other episodes than parallel rollouts do, so that column does not compare algorithms.",
            mark="muted",
        )
        blocks.file("task_types", kinds)
        blocks.file("splits", splits)
        return blocks.fragment()


def task_types(data: ReportData) -> pd.DataFrame:
    """Final success by environment, split, algorithm and type of task: mean, lowest and highest seed, number of seeds."""
    kinds = [column for column in data.evaluations.columns if column.startswith(KIND)]
    by_run, rows = evaluations(data), []
    for run in records(data.runs[data.runs["counted"]]):
        for column in kinds:
            value = judged(by_run, run["run"], data.horizons[run["env"]], column)
            if math.isfinite(value):
                rows.append((run["env"], run["split"] or "", run["algorithm"], column.removeprefix(KIND), value))
    long = pd.DataFrame(rows, columns=["env", "split", "algorithm", "kind", "rate"])
    if long.empty:
        return pd.DataFrame(columns=COLUMNS)
    grouped = long.groupby(["env", "split", "algorithm", "kind"])["rate"]
    return grouped.agg(mean="mean", low="min", high="max", seeds="count").reset_index()[COLUMNS]


def split_rows(data: ReportData) -> pd.DataFrame:
    """Held-out final success beside that of training episodes, for runs that record both."""
    rows: list[dict[str, Any]] = []
    done = data.runs[data.runs["counted"] & data.runs["final_success"].notna() & data.runs["train_end"].notna()]
    for (env, algorithm), group in done.groupby(["env", "algorithm"], sort=True):
        row = {"env": env, "algorithm": algorithm, "seeds": len(group)}
        row |= {"held_out_split": _names(group["split"]), "train_split": _names(group["train_split"])}
        row |= {"held_out": float(group["final_success"].mean()), "training": float(group["train_end"].mean())}
        rows.append(row | {"gap": row["training"] - row["held_out"]})
    return pd.DataFrame(rows, columns=SPLIT_COLUMNS)


def _names(values: pd.Series) -> str:
    return ", ".join(sorted({str(value) for value in values if isinstance(value, str)}))


def _kind_table(data: ReportData, env: str, rows: pd.DataFrame) -> Table:
    """Algorithms down, types across."""
    kinds = sorted(set(rows["kind"]))
    cells = {(row["algorithm"], row["kind"]): row for row in records(rows)}
    body: list[list[Cell | str]] = []
    for label in ranked(data, env):
        if label not in set(rows["algorithm"]):
            continue
        line: list[Cell | str] = [name_cell(data, label)]
        for kind in kinds:
            row = cells.get((label, kind))
            spread = percent_range(row["low"], row["high"]) if row and row["seeds"] > 1 else ""
            line.append(Cell(percent(row["mean"]), spread) if row else Cell(""))
        body.append(line)
    return Table(["algorithm", *map(task_kind, kinds)], body)


def _split_table(data: ReportData, env: str, rows: pd.DataFrame) -> Table:
    found = {row["algorithm"]: row for row in records(rows)}
    body: list[list[Cell | str]] = []
    for label in ranked(data, env):
        row = found.get(label)
        if row is not None:
            held_out, training = Cell(percent(row["held_out"]), row["held_out_split"]), Cell(percent(row["training"]), row["train_split"])
            body.append([name_cell(data, label), held_out, training, points(row["gap"])])
    return Table(["algorithm", "held-out tasks, at the end", "training tasks, as sampled", "difference, points"], body)
