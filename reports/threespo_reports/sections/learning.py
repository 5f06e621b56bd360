"""The learning-efficiency metrics of SPO++ (area, end reward, C10), on held-out evaluations and on training episodes."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pandas as pd

from threespo_bench.contracts.report import Fragment, ReportData, ReportSection
from threespo_reports.blocks import Blocks, Cell, Table
from threespo_reports.formatting import fraction, known, points
from threespo_reports.learning_metrics import DEFINITIONS, METRICS, matched_difference
from threespo_reports.results import plotted_steps
from threespo_reports.sections.shared import evaluations, head, name_cell, of_env, ranked, records, seed_runs
from threespo_reports.selection import unmatched_seeds

TITLES = {"area": "area", "end": "end reward", "c10": "C10"}


class Learning(ReportSection):
    """One table per environment, and the definitions."""

    name: ClassVar[str] = "learning"
    title: ClassVar[str] = "Learning efficiency"
    order: ClassVar[int] = 32

    def render(self, data: ReportData) -> Fragment | None:
        """Means and sample standard deviations over seeds; differences are matched."""
        frame = learning_rows(data)
        if frame.empty:
            return None
        blocks = Blocks()
        for env in data.environments:
            rows = of_env(frame, env)
            if not rows.empty:
                head(blocks, data, env)
                blocks.table(_table(data, rows))
        blocks.text("The metrics of SPO++ over plotted steps r(1) ... r(T), on the scale from 0 to 1:")
        blocks.definitions(list(DEFINITIONS.items()))
        against = ""
        if data.baseline is not None:
            against = (
                f" Against {data.names[data.baseline]}: both runs of a seed are cut to their common number of points, then their difference in percentage "
                "points, mean ± sample standard deviation (n - 1) over matched seeds."
            )
        blocks.text(
            "Held-out: a plotted step is an evaluation after the start, within the compared range, the same for all algorithms on the axis of the budget. "
            "Training: a plotted step is an iteration, as in the paper; iterations of different algorithms spend different budgets, so these compare "
            f"runs of one algorithm only. C10 needs ten points.{against}",
            mark="muted",
        )
        blocks.file("learning", frame)
        return blocks.fragment()


def learning_rows(data: ReportData) -> pd.DataFrame:
    """A row per environment and algorithm: the metrics with their standard deviation, and the matched differences."""
    points_of, rows = evaluations(data), []
    for env in data.environments:
        series = {
            label: {seed: plotted_steps(points_of, run, data.horizons[env]) for seed, run in seed_runs(data, env, label).items()} for label in ranked(data, env)
        }
        for label, steps in series.items():
            lengths = [len(values) for values in steps.values()]
            row: dict[str, Any] = {"env": env, "algorithm": label, "seeds": len(steps), "points": min(lengths, default=0)}
            for name, metric in METRICS.items():
                row |= _moments(name, [metric(values) for values in steps.values()])
            mine = data.runs[data.runs["run"].isin(seed_runs(data, env, label).values())]
            for name in METRICS:
                row[f"train_{name}"] = float(mine[f"train_{name}"].mean())
            if data.baseline in series and label != data.baseline:
                bad = unmatched_seeds(data.digests, env, (label, data.baseline))
                own, other = ({seed: values for seed, values in series[who].items() if seed not in bad} for who in (label, data.baseline))
                for name, metric in METRICS.items():
                    found = matched_difference(own, other, metric)
                    if found is not None:
                        row |= {f"diff_{name}": found.mean, f"diff_{name}_std": found.std, "diff_seeds": " ".join(map(str, found.seeds))}
            rows.append(row)
    return pd.DataFrame(rows)


def _moments(name: str, values: list[float]) -> dict[str, float]:
    series = pd.Series([value for value in values if known(value)], dtype=float)
    return {name: float(series.mean()), f"{name}_std": float(series.std(ddof=1)) if len(series) > 1 else math.nan}


def _table(data: ReportData, rows: pd.DataFrame) -> Table:
    against = [f"{title} against {data.names[data.baseline]}" for title in TITLES.values()] if data.baseline is not None else []
    columns = ["algorithm", "points", *TITLES.values(), *against, *(f"{title}, training" for title in TITLES.values())]
    body: list[list[Cell | str]] = []
    for row in records(rows):
        own = [Cell(fraction(row[name]), f"± {fraction(row[f'{name}_std'])}" if known(row[f"{name}_std"]) else "") for name in TITLES]
        differences = [_difference(row, name) for name in TITLES] if against else []
        body.append([name_cell(data, row["algorithm"]), str(row["points"]), *own, *differences, *(fraction(row[f"train_{name}"]) for name in TITLES)])
    return Table(columns, body)


def _difference(row: dict[str, Any], name: str) -> Cell:
    spread: Any = row.get(f"diff_{name}_std")
    return Cell(points(row.get(f"diff_{name}")), f"± {100 * spread:.1f}" if known(spread) else "")
