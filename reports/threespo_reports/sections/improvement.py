"""Who beats whom: the probability of improvement of every pair of algorithms as a heat map."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle

from threespo_bench.contracts.report import Figure, Fragment, ReportData, ReportSection
from threespo_reports import figures
from threespo_reports.blocks import Blocks
from threespo_reports.sections.shared import of_env
from threespo_reports.svg import inline

# Likely worse is vermillion, likely better blue, as told apart by every kind of colour vision.
COLOURS = LinearSegmentedColormap.from_list("improvement", ["#c4500c", "#eda77a", "#eceef0", "#86bde0", "#1f7fb8"])
DARK_TEXT, LIGHT_TEXT = "#14171b", "#fdfdfd"  # on cells, whose colours are the same on a dark page
STRONG = 0.3  # from one half: cells whose colour asks for light text
CELL = 0.52  # inches
MANY = 8  # algorithms for which a heat map takes the whole width
NUMBERED = 16  # algorithms up to which each cell has its number written in it


class Improvement(ReportSection):
    """One heat map per environment, and one for all together."""

    name: ClassVar[str] = "improvement"
    title: ClassVar[str] = "Probability of improvement"
    order: ClassVar[int] = 28

    def render(self, data: ReportData) -> Fragment | None:
        """Rows against columns, best first."""
        table = data.improvement
        if table.empty:
            return None
        blocks, panels = Blocks(), []
        places = list(dict.fromkeys(table["env"]))
        for number, env in enumerate(places, start=1):
            with figures.style():
                picture = _canvas(of_env(table, env))
                _panel(picture.subplots(), data, of_env(table, env), env)
                panels.append(inline(figures.as_svg(picture, f"improvement_{number}"), f"improvement_{number}", f"Probability of improvement on {env}"))
        blocks.pictures(panels, _file(data, table, places), _caption(), size="matrix" if table["algorithm"].nunique() <= MANY else "wide")
        blocks.file("improvement", table)
        return blocks.fragment()


def _order(data: ReportData, table: pd.DataFrame) -> list[str]:
    """The algorithms, the most often better one first."""
    mean = table.groupby("algorithm")["probability"].mean()
    return sorted(mean.index, key=lambda label: (-mean[label], label))


def _canvas(table: pd.DataFrame, beside: int = 1) -> figures.Canvas:
    size = max(2.4, CELL * table["algorithm"].nunique()) + 1.5
    return figures.canvas(size * beside, size * 0.86)


def _file(data: ReportData, table: pd.DataFrame, places: list[str]) -> Figure:
    with figures.style():
        largest = max((of_env(table, env) for env in places), key=lambda rows: rows["algorithm"].nunique())
        picture = _canvas(largest, len(places))
        for axes, env in zip(np.atleast_1d(picture.subplots(1, len(places))), places, strict=True):
            _panel(axes, data, of_env(table, env), env)
        return figures.finished(picture, "improvement", "Probability that a run of the row's algorithm ends above a run of the column's")


def _panel(axes: Axes, data: ReportData, table: pd.DataFrame, env: str) -> None:
    order = _order(data, table)
    place = {label: number for number, label in enumerate(order)}
    size, cells = 7.5 if len(order) <= NUMBERED else 12, []
    for row, column, value, low, high in zip(table["algorithm"], table["other"], table["probability"], table["low"], table["high"], strict=True):
        x, y = place[column], place[row]
        cells.append(Rectangle((x - 0.47, y - 0.47), 0.94, 0.94))
        if len(order) <= NUMBERED:
            sure = "bold" if low > 0.5 or high < 0.5 else "normal"
            colour = LIGHT_TEXT if abs(value - 0.5) > STRONG else DARK_TEXT
            axes.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=size, color=colour, weight=sure)
    axes.add_collection(PatchCollection(cells, facecolors=[COLOURS(float(value)) for value in table["probability"]], linewidths=0))
    axes.set_xlim(-0.5, len(order) - 0.5)
    axes.set_ylim(len(order) - 0.5, -0.5)
    axes.set_aspect("equal")
    names = [data.names[label] for label in order]
    axes.set_xticks(range(len(order)), names, rotation=45, ha="left", rotation_mode="anchor", fontsize=size + 0.5)
    axes.set_yticks(range(len(order)), names, fontsize=size + 0.5)
    axes.tick_params(length=0, top=False, labeltop=True, labelbottom=False, bottom=False)
    for edge in axes.spines.values():
        edge.set_visible(False)
    if len(data.environments) > 1:
        axes.set_xlabel(env)


def _caption() -> str:
    return (
        "How often a run of the row's algorithm, drawn at random, ends above a run of the column's, drawn at random (Agarwal et al., arXiv:2108.13264: "
        "unpaired, a tie counts one half). Blue: the row is more often better, vermillion: more often worse. Bold: the 95% bootstrap interval over seeds does "
        "not hold 0.5; intervals are in tables/improvement.csv."
    )
