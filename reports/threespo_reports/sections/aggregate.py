"""All environments together: what is left of a difference when every environment counts the same."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pandas as pd

from threespo_bench.contracts.report import Figure, Fragment, ReportData, ReportSection
from threespo_reports import figures, statistics
from threespo_reports.blocks import Blocks, Cell, Table
from threespo_reports.curves import Band, aggregate_band, seed_curve
from threespo_reports.formatting import fraction, fraction_range, listing, percent, percent_range
from threespo_reports.improvement import ALL
from threespo_reports.sections.shared import evaluations, keys, name_cell, records, seed_runs
from threespo_reports.styles import styles
from threespo_reports.svg import inline


class Aggregate(ReportSection):
    """A table and a figure; nothing where there is one environment."""

    name: ClassVar[str] = "aggregate"
    title: ClassVar[str] = "All environments together"
    order: ClassVar[int] = 24

    def render(self, data: ReportData) -> Fragment | None:
        """Of the algorithms that have results in every environment."""
        if len(data.environments) < 2:
            return None
        rows = aggregate_rows(data)
        if rows.empty:
            return None
        blocks, bands = Blocks(), _bands(data, rows["algorithm"].tolist())
        blocks.table(_table(data, rows))
        if bands:
            keys(blocks, data, list(bands))
            figure = _figure(data, bands)
            blocks.pictures([inline(figure.svg, "aggregate", figure.alt)], figure, _caption(data), size="wide")
            tables = [band.table(algorithm=label) for label, band in bands.items()]
            blocks.file("aggregate_curves", pd.concat(tables, ignore_index=True)[["algorithm", "x", "mean", "low", "high", "seeds"]])
        absent = sorted(set(data.algorithms) - set(rows["algorithm"]))
        if absent:
            blocks.text(f"Left out because they have no result in some environment: {listing([data.names[label] for label in absent])}.")
        blocks.file("aggregate", rows)
        return blocks.fragment()


def aggregate_rows(data: ReportData) -> pd.DataFrame:
    """A row per algorithm with results everywhere: IQM over all runs and mean over environments of final success, best first."""
    rows: list[dict[str, Any]] = []
    done = data.runs[data.runs["counted"] & data.runs["final_success"].notna()]
    for label in data.algorithms:
        strata = [done[(done["env"] == env) & (done["algorithm"] == label)].sort_values("seed")["final_success"].to_numpy(float) for env in data.environments]
        if not all(map(len, strata)):
            continue
        ends = statistics.stratified_interval(strata, statistics.trimmed)
        row = {
            "algorithm": label,
            "name": data.names[label],
            "iqm": statistics.iqm(np.concatenate(strata)),
            "iqm_low": ends.low,
            "iqm_high": ends.high,
            "mean": float(np.mean([values.mean() for values in strata])),
            "runs": sum(map(len, strata)),
        }
        chance = data.improvement
        chance = chance[(chance["env"] == ALL) & (chance["algorithm"] == label) & (chance["other"] == data.baseline)]
        for found in records(chance):
            row |= {"improvement": found["probability"], "improvement_low": found["low"], "improvement_high": found["high"]}
        rows.append(row)
    return pd.DataFrame(rows).sort_values(["iqm", "algorithm"], ascending=[False, True], ignore_index=True) if rows else pd.DataFrame(columns=["algorithm"])


def _table(data: ReportData, rows: pd.DataFrame) -> Table:
    against = ["probability of improvement"] if data.baseline is not None else []
    body: list[list[Cell | str]] = []
    for row in records(rows):
        chance = Cell(fraction(row.get("improvement"), 2), fraction_range(row.get("improvement_low"), row.get("improvement_high"), 2))
        middle = Cell(percent(row["iqm"]), percent_range(row["iqm_low"], row["iqm_high"]))
        body.append([name_cell(data, row["algorithm"]), middle, percent(row["mean"]), *([chance] if against else []), str(row["runs"])])
    return Table(["algorithm", "final success, IQM of all runs", "mean over environments", *against, "runs"], body)


def _bands(data: ReportData, labels: list[str]) -> dict[str, Band]:
    points, found = evaluations(data), {}
    for label in labels:
        strata = []
        for env in data.environments:
            lines = [seed_curve(points, run, data.horizons[env].axis, data.smooth) for run in seed_runs(data, env, label).values()]
            strata.append([line for line in lines if len(line[0])])
        limits = [data.horizons[env].limit for env in data.environments]
        band = aggregate_band(strata, limits) if all(strata) and min(limits) > 0 else None
        if band is not None:
            found[label] = band
    return found


def _figure(data: ReportData, bands: dict[str, Band]) -> Figure:
    looks = styles(data.algorithms)
    with figures.style():
        picture = figures.canvas()
        axes = picture.subplots()
        heights: list[float] = []
        for label, band in bands.items():
            axes.fill_between(band.x, band.low, band.high, color=looks[label].colour, alpha=0.14, linewidth=0)
            axes.plot(band.x, band.mean, color=looks[label].colour, linestyle=figures.line_style(looks[label]), linewidth=1.9)
            heights += [*band.mean, *band.high[band.high == band.high]]
        figures.success_axes(axes, heights, "share of the budget")
        axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")
        figures.name_lines(axes, {label: (float(band.x[-1]), float(band.mean[-1])) for label, band in bands.items()}, data.names, looks)
        return figures.finished(picture, "aggregate", "Mean success over all environments against the share of the budget")


def _caption(data: ReportData) -> str:
    return (
        f"Mean over {listing(list(data.environments))} of the means over seeds, against the share of each environment's compared range. Shaded: bootstrap "
        "band, seeds drawn anew within each environment. Environments differ in difficulty, so the height says less than the order."
    )
