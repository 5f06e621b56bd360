"""Who gets the credit: a heat map of advantages, a row a trajectory and a column a turn, one panel an algorithm.

Each panel has its own colour scale, symmetric around 0, because estimators differ in scale: panels compare who is praised and who is
blamed, not how much. The order of the rows of a batch does not matter: trajectories stand by group and return."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from math import ceil
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure as Canvas  # drawn without pyplot: no window system, no global state
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from threespo_bench.turns import TurnBatch
from threespo_reports.figures import SETTINGS
from threespo_reports.files import write_file
from threespo_reports.styles import printed_name
from threespo_reports.svg import INK, MUTED

# Blame is vermillion, praise is blue, as told apart by every kind of colour vision; no credit is a grey that is not the page's white.
COLOURS = LinearSegmentedColormap.from_list("credit", ["#a83a00", "#e58a4e", "#eceef0", "#5aa3d6", "#00568c"])
CELL, MOST = (0.50, 0.30), (7.5, 9.0)  # inches: width and height that a cell has if there is room, and that a panel does not exceed
DPI = 180
NUMBERED = (0.42, 0.20)  # a cell of at least this size has its number written in it
MOST_COLUMNS, TALL, PAGE, BESIDE = 3, 4.0, 16.0, 1.05  # tall panels stand side by side; inches of a tall one, of the page, of a scale beside a panel
LONGEST_NAME = 22


@dataclass(frozen=True)
class _Grid:
    """Where every turn is drawn.

    Attributes:
        rows, y, x: (M,) turns of the batch and their places. names, returns: of the trajectories, from the top.
        breaks: rows before which another group begins. groups: (name, first row, last row).
        first: the smallest step. shape: trajectories, turns.
    """

    rows: np.ndarray
    y: np.ndarray
    x: np.ndarray
    names: list[str]
    returns: list[float]
    breaks: list[int]
    groups: list[tuple[str, int, int]]
    first: int
    shape: tuple[int, int]


def draw_credit(turns: TurnBatch, advantages: Mapping[str, np.ndarray], out: Path) -> Path:
    """Draw the advantages of each algorithm.

    Args:
        turns: the batch. advantages: (N,) the mean advantage of every turn over its tokens, by algorithm.
        out: file, ``.png`` or ``.svg``.

    Returns:
        ``out``.
    """
    grid = _grid(turns)
    cell = _cell(grid.shape, len(advantages))
    panel = (max(2.2, cell[0] * grid.shape[1]), max(0.9, cell[1] * grid.shape[0]))
    columns = min(_beside(len(advantages)), max(1, int(PAGE / (panel[0] + BESIDE))))
    lines = ceil(len(advantages) / columns)
    names = 0.08 * max((len(_short(name)) for name in grid.names), default=0) + 0.9
    with mpl.rc_context({**sns.axes_style("white"), **SETTINGS, "svg.hashsalt": "credit", "svg.fonttype": "none"}):
        canvas = Canvas(figsize=(columns * (panel[0] + BESIDE) + names, lines * (panel[1] + 0.95) + 0.45), layout="constrained")
        places = canvas.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
        for number, (label, values) in enumerate(advantages.items()):
            axes = places.flat[number]
            _panel(axes, grid, turns, np.asarray(values), cell)
            axes.set_title(_title(label), loc="left", weight="bold")
            _ticks(axes, grid, cell, left=number % columns == 0, below=number + columns >= len(advantages))
        for axes in places.flat[len(advantages) :]:
            axes.set_visible(False)
        canvas.supxlabel(_caption(turns, grid, _roomy(cell)), fontsize=8, color=MUTED, x=0.01, ha="left")
        return write_file(out, _bytes(canvas, out.suffix.lower().lstrip(".")))


def _cell(shape: tuple[int, int], panels: int) -> tuple[float, float]:
    """Width and height of a cell in inches."""
    height = min(CELL[1], MOST[1] / shape[0])
    most = MOST[0] if height * shape[0] < TALL else min(MOST[0], PAGE / _beside(panels) - BESIDE)
    return min(CELL[0], most / shape[1]), height


def _beside(panels: int) -> int:
    """How many panels stand in a line, if there is room: as many in each."""
    return ceil(panels / ceil(panels / MOST_COLUMNS))


def _grid(turns: TurnBatch) -> _Grid:
    """Place the turns that have a response: groups in the order of their names, in a group the best trajectory on top."""
    rows = np.flatnonzero(turns.real & turns.response_mask.any(axis=1))
    returns = turns.episode_return()
    of_trajectory: dict[tuple[Any, Any], int] = {}
    for row in rows.tolist():
        of_trajectory.setdefault((turns.group_id[row], turns.traj_id[row]), row)
    order = sorted(of_trajectory, key=lambda key: (_natural(key[0]), -returns[of_trajectory[key]], _natural(key[1])))
    place = {key: number for number, key in enumerate(order)}
    y = np.array([place[turns.group_id[row], turns.traj_id[row]] for row in rows.tolist()])
    sorting = np.lexsort((turns.step_id[rows], y))
    rows, y = rows[sorting], y[sorting]
    steps = turns.step_id[rows]
    first = int(steps.min())
    groups: list[tuple[str, int, int]] = []
    for number, (group, _) in enumerate(order):
        if groups and order[number - 1][0] == group:
            groups[-1] = (groups[-1][0], groups[-1][1], number)
        else:
            groups.append((str(group), number, number))
    return _Grid(
        rows=rows,
        y=y,
        x=steps - first,
        names=[str(trajectory) for _, trajectory in order],
        returns=[float(returns[of_trajectory[key]]) for key in order],
        breaks=[start for _, start, _ in groups[1:]],
        groups=groups,
        first=first,
        shape=(len(order), int(steps.max()) - first + 1),
    )


def _panel(axes: Axes, grid: _Grid, turns: TurnBatch, values: np.ndarray, cell: tuple[float, float]) -> None:
    field = np.full(grid.shape, np.nan)
    field[grid.y, grid.x] = values[grid.rows]
    limit = float(np.nanmax(np.abs(field))) or 1.0
    smoothing = "nearest" if min(cell) * DPI >= 2 else "antialiased"  # cells below two pixels are averaged, not dropped
    image = axes.imshow(np.ma.masked_invalid(field), cmap=COLOURS, vmin=-limit, vmax=limit, aspect="auto", interpolation=smoothing)
    for edge in axes.spines.values():
        edge.set_visible(False)
    if _roomy(cell):
        _frames(axes, grid, turns)
    if cell[0] >= NUMBERED[0] and cell[1] >= NUMBERED[1]:
        _numbers(axes, field, limit)
    for start in grid.breaks:
        axes.axhline(start - 0.5, color=INK if _roomy(cell) else MUTED, linewidth=0.9 if _roomy(cell) else 0.25)
    bar = axes.figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02, aspect=max(8, grid.shape[0] * cell[1] / 0.13))
    bar.outline.set_visible(False)
    bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=4 if grid.shape[0] * cell[1] > 1.2 else 2, symmetric=True))
    bar.ax.tick_params(length=0, labelsize=7.5)


def _roomy(cell: tuple[float, float]) -> bool:
    """Whether cells are large enough to have edges."""
    return min(cell) >= 0.1


def _frames(axes: Axes, grid: _Grid, turns: TurnBatch) -> None:
    """White seams between the cells, and a dark frame around turns with a reward."""
    for y, x in zip(grid.y.tolist(), grid.x.tolist(), strict=True):
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, edgecolor="white", linewidth=1.2))
    paid = turns.step_reward[grid.rows] != 0
    for y, x in zip(grid.y[paid].tolist(), grid.x[paid].tolist(), strict=True):
        axes.add_patch(Rectangle((x - 0.46, y - 0.44), 0.92, 0.88, fill=False, edgecolor=INK, linewidth=1.3))


def _numbers(axes: Axes, field: np.ndarray, limit: float) -> None:
    digits = 2 if limit < 10 else 1 if limit < 100 else 0
    for y, x in np.argwhere(np.isfinite(field)).tolist():
        value = field[y, x]
        text = "0" if value == 0 else f"{value:+.{digits}f}" if limit < 1e4 else f"{value:+.0e}"
        axes.text(x, y, text.replace("-", "\N{MINUS SIGN}"), ha="center", va="center", fontsize=7, color="white" if abs(value) > 0.72 * limit else INK)


def _ticks(axes: Axes, grid: _Grid, cell: tuple[float, float], left: bool, below: bool) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(nbins=max(1, min(10, int(grid.shape[1] * cell[0] / 0.35))), integer=True))
    axes.xaxis.set_major_formatter(lambda x, _: f"{int(x) + grid.first}" if 0 <= x < grid.shape[1] else "")
    axes.tick_params(length=0, labelbottom=below, labelleft=left)
    if below:
        axes.set_xlabel("turn")
    if not left:
        return
    readable = cell[1] >= 0.125
    if readable:
        labels = [f"{_short(name)}   {_amount(value)}" for name, value in zip(grid.names, grid.returns, strict=True)]
        axes.set_yticks(range(grid.shape[0]), labels, fontsize=min(8.5, cell[1] * 56))
        axes.set_ylabel("trajectory and its return")
        return
    every = max(1, ceil(0.14 / (cell[1] * grid.shape[0] / len(grid.groups))))
    marked = [((first + last) / 2, name) for name, first, last in grid.groups][::every]
    axes.set_yticks([place for place, _ in marked], [_short(name) for _, name in marked], fontsize=7)
    axes.set_ylabel("trajectories by group, best return on top")


def _caption(turns: TurnBatch, grid: _Grid, frames: bool) -> str:
    groups, trajectories = len(grid.groups), grid.shape[0]
    counts = f"{len(grid.rows):,} turns, {trajectories:,} trajector{'y' if trajectories == 1 else 'ies'}, {groups:,} group{'s' * (groups != 1)}"
    framed = "framed: a turn with a reward; " if frames and (turns.step_reward[grid.rows] != 0).any() else ""
    return f"{counts}; {framed}every panel has its own scale"


def _title(label: str) -> str:
    name, at, preset = label.partition("@")
    return printed_name(name) + (f" @{preset}" if at else "")


def _amount(value: float) -> str:
    return f"{value:g}".replace("-", "\N{MINUS SIGN}") if abs(value) < 1e6 else f"{value:.1e}"


def _short(name: str) -> str:
    name = " ".join(name.split()).replace("$", r"\$")
    return name if len(name) <= LONGEST_NAME else f"{name[:8]}…{name[-(LONGEST_NAME - 9) :]}"


def _natural(name: Any) -> list[tuple[int, int, str]]:
    """A key by which ``t2`` comes before ``t10``."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", str(name)) if part]


def _bytes(canvas: Canvas, form: str) -> bytes:
    out = BytesIO()
    metadata = {"Software": None} if form == "png" else {"Date": None, "Creator": None, "Format": None, "Type": None}
    canvas.savefig(out, format=form, dpi=DPI, metadata=metadata)
    return out.getvalue()
