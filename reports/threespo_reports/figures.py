"""Convergence curves as a paper prints them: mean and band over seeds, every seed as a faint line, labels at the ends of the curves.

The bytes depend on the numbers alone: no dates, no versions, fixed identifiers, no text smoothing by the window system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas  # drawn without pyplot: no window system, no global state
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from threespo_bench.contracts.report import Figure, ReportData
from threespo_reports.analysis import AXES, seed_curve
from threespo_reports.files import write_file
from threespo_reports.loading import load
from threespo_reports.styles import Style, printed_name, styles
from threespo_reports.svg import INK, MUTED, RULE, inline

PANEL = (4.6, 3.3)  # inches; a column of a paper is 3.3 wide, a phone shows the panel at full width
MOST_LABELS, LONGEST_LABEL = 8, 14  # algorithms and characters for which labels beside the curves fit; otherwise there is a legend
LABEL_HEIGHT = 0.062  # of the axes
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
    "svg.fonttype": "none",
    "path.simplify": True,
}


def convergence(data: ReportData, env: str, name: str) -> tuple[list[str], Figure]:
    """The convergence curves of one environment.

    Returns:
        One inline SVG per axis for the page, and one figure with all of them side by side.
    """
    looks = styles(data.algorithms)
    panels = []
    for axis, title in AXES.items():
        with _style():
            canvas = Canvas(figsize=PANEL, layout="constrained")
            _panel(canvas.subplots(), data, env, axis, looks, legend=False)  # the page has its own
        panels.append(inline(_svg(canvas, f"{name}_{axis}"), f"{name}_{axis}", f"Success against {title} on {env}"))
    with _style():
        canvas = Canvas(figsize=(PANEL[0] * len(AXES), PANEL[1]), layout="constrained")
        for place, axis in zip(canvas.subplots(1, len(AXES), sharey=True), AXES, strict=True):
            _panel(place, data, env, axis, looks, legend=axis == next(iter(AXES)))
    return panels, Figure(name, _svg(canvas, name), _png(canvas), f"Success on held-out tasks of {env} against {' and '.join(AXES.values())}")


def single_run_curve(run: Path, out: Path) -> Path:
    """Draw one run: success on held-out tasks and in training against environment steps, as a PNG in ``out``. Returns ``out``."""
    store = load([run])
    label = store.runs["algorithm"].iloc[0] if len(store.runs) else "unknown"
    env, seed = (store.runs[key].iloc[0] if len(store.runs) else "" for key in ("env", "seed"))
    look = styles([label])[label]
    with _style():
        canvas = Canvas(figsize=(6.0, 3.6), layout="constrained")
        axes = canvas.subplots()
        drawn = _training_line(axes, store.training) + _evaluation_line(axes, store.evaluations, look)
        axes.set_title(f"{printed_name(label)} on {env}, seed {seed}", loc="left")
        _dress(axes, "env_steps", drawn)
        axes.set_ylabel("success")
        if drawn:
            axes.legend(frameon=False, loc="best")
        else:
            axes.text(0.5, 0.5, "no evaluation yet", transform=axes.transAxes, ha="center", color=MUTED)
    return write_file(out, _png(canvas))


def _evaluation_line(axes: Axes, evaluations: pd.DataFrame, look: Style) -> list[float]:
    x, y = seed_curve(evaluations, "env_steps")
    if not len(x):
        return []
    axes.plot(x, y, color=look.colour, linewidth=2, marker="o", markersize=4, clip_on=False, label="held-out tasks", zorder=3)
    for place, side in {0: "left", len(x) - 1: "right"}.items():
        axes.annotate(f"{100 * y[place]:.0f}%", (x[place], y[place]), (0, 7), textcoords="offset points", ha=side, color=look.colour, weight="bold")
    return list(y)


def _training_line(axes: Axes, training: pd.DataFrame) -> list[float]:
    if "train/success" not in training:
        return []
    x, y = seed_curve(training.assign(success=training["train/success"]), "env_steps")
    if not len(x):
        return []
    axes.plot(x, y, color=MUTED, linewidth=1, alpha=0.7, label="training episodes (as sampled)")
    return list(y)


def _style() -> AbstractContextManager[None]:
    return mpl.rc_context({**sns.axes_style("ticks"), **SETTINGS})


def _panel(axes: Axes, data: ReportData, env: str, axis: str, looks: Mapping[str, Style], legend: bool) -> None:
    """Curves of all algorithms of one environment against one axis."""
    points = data.evaluations[data.evaluations["env"] == env]
    drawn = _seed_lines(axes, points, axis, looks)
    curves = data.curves[(data.curves["env"] == env) & (data.curves["axis"] == axis)]
    present = [label for label in data.algorithms if label in set(curves["algorithm"])]
    for label in present:
        curve = curves[curves["algorithm"] == label]
        axes.fill_between(curve["x"].astype(float), curve["low"].astype(float), curve["high"].astype(float), color=looks[label].colour, alpha=0.14, linewidth=0)
    if present:
        palette, dashes = {label: looks[label].colour for label in present}, {label: looks[label].dashes or "" for label in present}
        shown = curves.astype({"x": float, "mean": float})
        order = {"hue": "algorithm", "style": "algorithm", "hue_order": present, "style_order": present}
        sns.lineplot(shown, x="x", y="mean", **order, palette=palette, dashes=dashes, estimator=None, legend=False, linewidth=1.9, ax=axes, zorder=3)
    _dress(axes, axis, [*drawn, *curves["high"].dropna().astype(float)])
    _name_curves(axes, {label: curves[curves["algorithm"] == label] for label in present}, looks, legend)


def _seed_lines(axes: Axes, points: pd.DataFrame, axis: str, looks: Mapping[str, Style]) -> list[float]:
    """Every run as a faint line; one that did not finish is dotted and ends with a cross. Returns all heights."""
    heights: list[float] = []
    for (_, label, counted), run in points.groupby(["run", "algorithm", "counted"]):
        x, y = seed_curve(run, axis)
        if label not in looks or not len(x):
            continue
        axes.plot(x, y, color=looks[label].colour, alpha=0.3 if counted else 0.6, linewidth=0.8, linestyle="-" if counted else ":")
        if not counted:
            axes.plot(x[-1:], y[-1:], color=looks[label].colour, marker="x", markersize=5, linestyle="none")
        heights.extend(y)
    return heights


def _dress(axes: Axes, axis: str, heights: Sequence[float]) -> None:
    """Axis titles, units, range and grid."""
    top = min(1.0, np.ceil(10 * max(heights, default=1.0) + 0.2) / 10)
    axes.set_ylim(-0.01, top + 0.015)
    axes.set_xlim(left=0)
    axes.set_xlabel(AXES[axis])
    axes.set_ylabel("success on held-out tasks")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    sns.despine(ax=axes, left=True)
    axes.tick_params(axis="y", length=0)


def _name_curves(axes: Axes, curves: Mapping[str, pd.DataFrame], looks: Mapping[str, Style], legend: bool) -> None:
    """Names beside the ends of the curves, moved apart where they would touch; where they do not fit a legend, if wanted."""
    if not curves:
        return
    if len(curves) > MOST_LABELS or max(len(printed_name(name)) for name in curves) > LONGEST_LABEL:
        handles = [Line2D([], [], color=looks[name].colour, linestyle=_linestyle(looks[name]), label=printed_name(name)) for name in curves]
        if legend:
            axes.legend(handles=handles, frameon=False, fontsize=7.5, ncols=2, loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0)
        return
    low, high = axes.get_ylim()
    ends = {name: (float(curve["x"].iloc[-1]), float(curve["mean"].iloc[-1])) for name, curve in curves.items()}
    wanted = {name: (y - low) / (high - low) for name, (_, y) in ends.items()}
    for name, height in spread_labels(wanted, LABEL_HEIGHT).items():
        x, y = ends[name]
        arrow = {"arrowstyle": "-", "color": looks[name].colour, "alpha": 0.5, "linewidth": 0.7, "shrinkA": 1, "shrinkB": 1}
        text: dict[str, Any] = {"color": looks[name].colour, "weight": "bold", "fontsize": 8.5, "va": "center"}
        axes.annotate(printed_name(name), (x, y), (1.03, height), textcoords="axes fraction", arrowprops=arrow, **text)


def _linestyle(style: Style) -> Any:
    return (0, style.dashes) if style.dashes else "-"


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


def _svg(canvas: Canvas, salt: str) -> str:
    buffer = StringIO()
    with mpl.rc_context({**SETTINGS, "svg.hashsalt": salt}):
        canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return buffer.getvalue()


def _png(canvas: Canvas, dpi: int = 160) -> bytes:
    buffer = BytesIO()
    canvas.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()
