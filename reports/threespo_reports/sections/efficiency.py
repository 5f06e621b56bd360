"""Sample efficiency: what each algorithm spends until it reaches a level of success, and how much sooner than the baseline that is."""

from __future__ import annotations

from typing import Any, ClassVar

import pandas as pd
from matplotlib.axes import Axes

from threespo_bench.contracts.report import Figure, Fragment, ReportData, ReportSection
from threespo_reports import figures
from threespo_reports.analysis import AXIS_NAMES
from threespo_reports.blocks import Blocks, Cell, Table
from threespo_reports.curves import AXES
from threespo_reports.formatting import count, known
from threespo_reports.results import THRESHOLDS
from threespo_reports.sections.shared import file_name, head, name_cell, of_env, ranked, records
from threespo_reports.styles import styles
from threespo_reports.svg import INK, inline


class Efficiency(ReportSection):
    """Bars and a table per environment."""

    name: ClassVar[str] = "efficiency"
    title: ClassVar[str] = "Sample efficiency"
    order: ClassVar[int] = 29

    def render(self, data: ReportData) -> Fragment | None:
        """Budget to each level, and the ratio to the baseline."""
        blocks = Blocks()
        for env in data.environments:
            order = ranked(data, env)
            if not order:
                continue
            axis = data.horizons[env].axis if data.horizons[env].axis in AXES else "env_steps"
            rows = of_env(data.efficiency, env)
            rows = rows[rows["axis"] == axis]
            if rows.empty:
                continue
            head(blocks, data, env)
            panels, figure = _figures(data, rows, order, axis, file_name(data, "efficiency", env))
            blocks.pictures(panels, figure, _caption(data, axis), size="bars")
            blocks.table(_table(data, rows, order, axis))
        if data.efficiency.empty:
            return None
        blocks.file("efficiency", data.efficiency)
        return blocks.fragment()


def _figures(data: ReportData, rows: pd.DataFrame, order: list[str], axis: str, name: str) -> tuple[list[str], Figure]:
    height = 0.27 * len(order) + 0.85
    left = 0.25 + 0.078 * max(len(data.names[label]) for label in order)
    panels = []
    with figures.style():
        for level in THRESHOLDS:
            picture, (axes,) = figures.grid(1, 1, (3.0 + left, height), left)
            _bars(axes, data, rows[rows["threshold"] == level], order, level, axis)
            stem = f"{name}_{100 * level:.0f}"
            panels.append(inline(figures.as_svg(picture, stem), stem, f"{AXIS_NAMES[axis]} until {100 * level:.0f}% success"))
        picture, places = figures.grid(len(THRESHOLDS), len(THRESHOLDS), (2.2 + left, height), left)
        for place, level in zip(places, THRESHOLDS, strict=True):
            _bars(place, data, rows[rows["threshold"] == level], order, level, axis)
        alt = f"{AXIS_NAMES[axis]} until {', '.join(f'{100 * level:.0f}%' for level in THRESHOLDS)} success"
        return panels, figures.finished(picture, name, alt)


def _bars(axes: Axes, data: ReportData, rows: pd.DataFrame, order: list[str], level: float, axis: str) -> None:
    looks, found = styles(data.algorithms), {row["algorithm"]: row for row in records(rows)}
    longest = max((row["budget"] for row in found.values()), default=1.0)
    for place, label in enumerate(order):
        row = found.get(label)
        if row is None:
            continue
        reached = known(row["median"])
        width = row["median"] if reached else row["budget"]
        look = {"facecolor": looks[label].colour, "alpha": 0.9} if reached else {"facecolor": "none", "edgecolor": looks[label].colour, "hatch": "////"}
        axes.barh(place, width, height=0.62, linewidth=0 if reached else 0.8, **look)
        text = f"{width:.0f}" if width < 1000 else figures.EngFormatter(places=1, sep="")(width)
        axes.annotate(text if reached else f"> {text}", (width, place), (3, 0), textcoords="offset points", va="center", fontsize=7.5, color=INK)
    axes.set_yticks(range(len(order)), [data.names[label] for label in order])
    axes.set_ylim(len(order) - 0.4, -0.6)
    axes.set_title(f"to {100 * level:.0f}%", loc="left", weight="bold")
    figures.count_axis(axes, AXIS_NAMES[axis], ticks=4)
    axes.set_xlim(0, longest * 1.22)
    figures.plain_frame(axes, "x")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _table(data: ReportData, rows: pd.DataFrame, order: list[str], axis: str) -> Table:
    found = {(row["algorithm"], row["threshold"]): row for row in records(rows)}
    body: list[list[Cell | str]] = []
    for label in order:
        cells = [_cell(found.get((label, level))) for level in THRESHOLDS]
        ratios = [Cell(_ratio(found.get((label, level)))) for level in THRESHOLDS] if data.baseline is not None else []
        body.append([name_cell(data, label), *cells, *ratios])
    levels = [f"{100 * level:.0f}%" for level in THRESHOLDS]
    faster = [f"speed-up to {level}" for level in levels] if data.baseline is not None else []
    return Table(["algorithm", *(f"{_unit(axis)} to {level}" for level in levels), *faster], body)


def _unit(axis: str) -> str:
    return "steps" if axis == "env_steps" else AXIS_NAMES[axis]


def _cell(row: dict[str, Any] | None) -> Cell:
    if row is None:
        return Cell("")
    reached, seeds = int(row["reached"]), int(row["seeds"])
    told = "" if reached == seeds else f"{reached} of {seeds} seeds"
    return Cell(count(row["median"]) if known(row["median"]) else f"> {count(row['budget'])}", told)


def _ratio(row: dict[str, Any] | None) -> str:
    if row is None or not known(row["speed_up"]):
        return ""
    sign = {"at least": "> ", "at most": "< "}.get(row["bound"], "")
    return f"{sign}{row['speed_up']:.2f}x"


def _caption(data: ReportData, axis: str) -> str:
    ratio = ""
    if data.baseline is not None:
        ratio = f" Speed-up: what {data.names[data.baseline]} needs over what the algorithm needs; where one of them was censored its budget gives a bound."
    return (
        f"Median over seeds of the {AXIS_NAMES[axis]} at which the curve, linear between evaluations and not smoothed, first reaches the level. Hatched: half "
        f"of the seeds or more never reached it within what they spent (> budget).{ratio} The same in tokens, updates and seconds: tables/efficiency.csv."
    )
