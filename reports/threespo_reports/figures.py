"""What all figures share: one look, labels that do not touch, and bytes that depend on the numbers alone (no dates, no versions, fixed
identifiers, no text smoothing by the window system). The curve of a single run is drawn here, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas  # drawn without pyplot: no window system, no global state
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from threespo_bench.contracts.report import Figure
from threespo_reports.curves import AXES, Curve
from threespo_reports.files import write_file
from threespo_reports.frames import ByRun
from threespo_reports.loading import load
from threespo_reports.styles import Style, printed_name, styles
from threespo_reports.svg import INK, MUTED, RULE, inline

PANEL = (4.8, 3.3)  # inches; a column of a paper is 3.3 wide, a phone shows the panel at full width
MOST_LABELS, LONGEST_LABEL = 8, 20  # algorithms and characters for which labels beside the curves fit; otherwise there is a legend
LABEL_HEIGHT = 0.062  # of the axes
MOST_POINTS, FEWEST_POINTS = 6_000, 24  # drawn in a panel, and at least in each of its lines
SETTINGS: dict[Any, Any] = {
    "figure.facecolor": "white",
    "axes.facecolor": "none",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": RULE,
    "grid.linewidth": 0.7,
    "axes.linewidth": 0.8,
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.titlesize": 9.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "hatch.linewidth": 0.8,
    "svg.fonttype": "none",
    "path.simplify": True,
}


def style() -> AbstractContextManager[None]:
    """The look of all figures, while a figure is drawn."""
    return mpl.rc_context({**sns.axes_style("ticks"), **SETTINGS})


def canvas(width: float = PANEL[0], height: float = PANEL[1]) -> Canvas:
    """An empty picture of that many inches that finds room for its labels."""
    return Canvas(figsize=(width, height), layout="constrained")


def grid(panels: int, columns: int, panel: tuple[float, float], left: float = 0.5, head: float = 0.0) -> tuple[Canvas, list[Axes]]:
    """Small panels in a grid with fixed margins, which is much faster to draw than to find room for each label.

    Args:
        panels, columns: how many, and beside one another. panel: inches of each. left: of them for the labels of its y axis.
        head: inches above all panels, for a legend.
    """
    rows = -(-panels // columns)
    width, height = panel
    picture = Canvas(figsize=(width * columns, height * rows + head))
    total = height * rows + head
    places = []
    for number in range(panels):
        row, column = divmod(number, columns)
        bottom = height * (rows - 1 - row) + 0.42
        place = ((width * column + left) / (width * columns), bottom / total, (width - left - 0.12) / (width * columns), (height - 0.74) / total)
        places.append(picture.add_axes(place))
    return picture, places


def finished(picture: Canvas, name: str, alt: str) -> Figure:
    """The picture as files."""
    document = as_svg(picture, name)
    if picture.get_layout_engine() is not None:
        picture.set_layout_engine("none")  # the places were found for the first file
    return Figure(name, document, as_png(picture), alt)


def on_page(picture: Canvas, name: str, alt: str) -> str:
    """The picture as an element of the page."""
    return inline(as_svg(picture, name), name, alt)


def as_svg(picture: Canvas, salt: str) -> str:
    """The picture as an SVG document; ``salt`` makes its identifiers."""
    buffer = StringIO()
    with mpl.rc_context({**SETTINGS, "svg.hashsalt": salt}):
        picture.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return buffer.getvalue()


def as_png(picture: Canvas, dpi: int = 160) -> bytes:
    """The picture as the bytes of a PNG file."""
    buffer = BytesIO()
    picture.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


def plain_frame(axes: Axes, grid: str = "y") -> None:
    """Only what helps to read: faint lines across, no box."""
    axes.grid(axis=grid)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    sns.despine(ax=axes, left=grid == "y", bottom=grid == "x")
    axes.tick_params(axis=grid, length=0)  # type: ignore[arg-type]


def success_axes(axes: Axes, heights: Sequence[float], x_label: str, y_label: str = "success on held-out tasks") -> None:
    """Titles, units and ranges of success against something that is counted."""
    top = min(1.0, np.ceil(10 * max(heights, default=1.0) + 0.2) / 10)
    axes.set_ylim(-0.01, top + 0.015)
    axes.set_ylabel(y_label)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    count_axis(axes, x_label)
    plain_frame(axes)


def count_axis(axes: Axes, label: str, ticks: int = 5) -> None:
    """An x axis of counts from 0."""
    axes.set_xlim(left=0)
    axes.set_xlabel(label)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(ticks))


def line_style(look: Style) -> Any:
    """The line style in matplotlib's form."""
    return (0, look.dashes) if look.dashes else "-"


def labels_fit(names: Sequence[str]) -> bool:
    """Whether the names can stand beside their curves."""
    return len(names) <= MOST_LABELS and max(map(len, names), default=0) <= LONGEST_LABEL


def name_lines(axes: Axes, ends: Mapping[str, tuple[float, float]], names: Mapping[str, str], looks: Mapping[str, Style], legend: bool = True) -> None:
    """Names beside the ends of the lines, moved apart where they would touch; where they do not fit a legend above, if wanted."""
    if not ends:
        return
    if not labels_fit([names[label] for label in ends]):
        if legend:
            legend_above(axes, list(ends), names, looks)
        return
    low, high = axes.get_ylim()
    wanted = {label: (y - low) / (high - low) for label, (_, y) in ends.items()}
    for label, height in spread_labels(wanted, LABEL_HEIGHT).items():
        arrow = {"arrowstyle": "-", "color": looks[label].colour, "alpha": 0.5, "linewidth": 0.7, "shrinkA": 1, "shrinkB": 1}
        text: dict[str, Any] = {"color": looks[label].colour, "weight": "bold", "fontsize": 8.5, "va": "center"}
        axes.annotate(names[label], ends[label], (1.03, height), textcoords="axes fraction", arrowprops=arrow, **text)


def legend_above(axes: Axes, labels: Sequence[str], names: Mapping[str, str], looks: Mapping[str, Style]) -> None:
    """All lines by name, over the panel."""
    handles = [Line2D([], [], color=looks[label].colour, linestyle=line_style(looks[label]), label=names[label]) for label in labels]
    axes.legend(handles=handles, frameon=False, fontsize=7, ncols=3, loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0, handlelength=3.2)


def spread_labels(wanted: Mapping[str, float], gap: float) -> dict[str, float]:
    """Heights near the wanted ones, in the same order, at least ``gap`` apart (in the unit of the axes)."""
    names = sorted(wanted, key=lambda name: (wanted[name], name))
    groups: list[list[str]] = []
    for name in names:  # merge neighbours into groups that are centred on their mean
        groups.append([name])
        while len(groups) > 1 and _bottom(groups[-1], wanted, gap) < _bottom(groups[-2], wanted, gap) + gap * len(groups[-2]):
            groups[-2:] = [groups[-2] + groups[-1]]
    return {name: _bottom(group, wanted, gap) + gap * place for group in groups for place, name in enumerate(group)}


def _bottom(group: Sequence[str], wanted: Mapping[str, float], gap: float) -> float:
    return sum(wanted[name] for name in group) / len(group) - gap * (len(group) - 1) / 2


def thinned(curve: Curve, lines: int) -> Curve:
    """At most as many points, evenly chosen with both ends, as leave the panel with :data:`MOST_POINTS` over so many lines."""
    x, y = curve
    most = max(FEWEST_POINTS, MOST_POINTS // max(lines, 1))
    if len(x) <= most:
        return curve
    chosen = np.unique(np.linspace(0, len(x) - 1, most).round().astype(int))
    return x[chosen], y[chosen]


def single_run_curve(run: Path, out: Path) -> Path:
    """Draw one run: success on held-out tasks and in training against environment steps, as a PNG in ``out``. Returns ``out``."""
    store = load([run])
    label, env, seed = (store.runs[key].iloc[0] if len(store.runs) else "" for key in ("algorithm", "env", "seed"))
    label = label or "unknown"
    name = store.runs["run"].iloc[0] if len(store.runs) else ""
    look = styles([label])[label]
    with style():
        picture = canvas(6.0, 3.6)
        axes = picture.subplots()
        drawn = _training_line(axes, *ByRun(store.training).curve(name, "env_steps", "train/success"))
        drawn += _evaluation_line(axes, *ByRun(store.evaluations).curve(name, "env_steps"), look)
        axes.set_title(f"{printed_name(label)} on {env}, seed {seed}", loc="left")
        success_axes(axes, drawn, AXES["env_steps"], "success")
        if drawn:
            axes.legend(frameon=False, loc="best")
        else:
            axes.text(0.5, 0.5, "no evaluation yet", transform=axes.transAxes, ha="center", color=MUTED)
    return write_file(out, as_png(picture))


def _evaluation_line(axes: Axes, x: np.ndarray, y: np.ndarray, look: Style) -> list[float]:
    if not len(x):
        return []
    axes.plot(x, y, color=look.colour, linewidth=2, marker="o", markersize=4, clip_on=False, label="held-out tasks", zorder=3)
    for place, side in {0: "left", len(x) - 1: "right"}.items():
        axes.annotate(f"{100 * y[place]:.0f}%", (x[place], y[place]), (0, 7), textcoords="offset points", ha=side, color=look.colour, weight="bold")
    return y.tolist()


def _training_line(axes: Axes, x: np.ndarray, y: np.ndarray) -> list[float]:
    if not len(x):
        return []
    axes.plot(x, y, color=MUTED, linewidth=1, alpha=0.7, label="training episodes (as sampled)")
    return y.tolist()
