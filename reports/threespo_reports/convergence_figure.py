"""Convergence curves as a paper prints them: mean and band over seeds, every seed as a faint line, names at the ends of the curves."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes

from threespo_bench.contracts.report import Figure, ReportData
from threespo_reports import figures
from threespo_reports.curves import AXES, seed_curve
from threespo_reports.frames import ByRun, Floats
from threespo_reports.styles import Style, styles
from threespo_reports.svg import inline

VIEWS = {"env_steps": "env steps", "tokens": "tokens", "updates": "updates", "seconds": "wall clock"}


def convergence(data: ReportData, env: str, name: str) -> tuple[list[tuple[str, str]], list[Figure]]:
    """The convergence curves of one environment against everything that was recorded.

    Returns:
        (label, inline SVG) of each view, and the files of each.
    """
    looks, points = styles(data.algorithms), ByRun(data.evaluations)
    curves = data.curves[data.curves["env"] == env]
    recorded = [axis for axis in AXES if axis in set(curves["axis"])] or [next(iter(AXES))]
    views, files = [], []
    for axis in recorded:
        alt = f"Success on held-out tasks of {env} against {AXES[axis]}"
        present = [label for label in data.algorithms if label in set(curves["algorithm"])]
        with figures.style():
            picture = figures.canvas()
            axes = picture.subplots()
            _panel(axes, data, points, env, axis, looks)
            fit = figures.labels_fit([data.names[label] for label in present])
            if not fit:  # the page has its own legend
                views.append((VIEWS[axis], figures.on_page(picture, f"{name}_{axis}", alt)))
                figures.legend_above(axes, present, data.names, looks)
            files.append(figures.finished(picture, f"{name}_{axis}", alt))
            if fit:
                views.append((VIEWS[axis], inline(files[-1].svg, f"{name}_{axis}", alt)))
    return views, files


def _panel(axes: Axes, data: ReportData, points: ByRun, env: str, axis: str, looks: Mapping[str, Style]) -> None:
    """Curves of all algorithms of one environment against one axis."""
    drawn = _seed_lines(axes, data, points, env, axis, looks)
    curves = data.curves[(data.curves["env"] == env) & (data.curves["axis"] == axis)]
    ends, marks = {}, []
    for label in data.algorithms:
        curve = curves[curves["algorithm"] == label]
        if curve.empty:
            continue
        x, mean, low, high = (curve[column].to_numpy(float) for column in ("x", "mean", "low", "high"))
        axes.fill_between(x, low, high, color=looks[label].colour, alpha=0.14, linewidth=0)
        marks += _mean_line(axes, x, mean, curve["seeds"].to_numpy(), looks[label])
        ends[label] = (float(x[-1]), float(mean[-1]))
        drawn += [*high[high == high], *mean]
    figures.success_axes(axes, drawn, AXES[axis])
    for x_place, height, seeds, colour in marks:
        axes.annotate(f"n={seeds}", (x_place, height), (2, 5), textcoords="offset points", fontsize=6.5, color=colour)
    figures.name_lines(axes, ends, data.names, looks, legend=False)


def _mean_line(axes: Axes, x: Floats, mean: Floats, seeds: Floats, look: Style) -> list[tuple[float, float, int, str]]:
    """The mean, thinner where seeds are missing. Returns where their number changes: (x, height, seeds from there, colour)."""
    starts = [0, *(place for place in range(1, len(x)) if seeds[place] != seeds[place - 1])]
    marks = []
    for number, start in enumerate(starts):
        stop = starts[number + 1] if number + 1 < len(starts) else len(x)
        first = max(start - 1, 0)
        if number == 0:
            axes.plot(x[first:stop], mean[first:stop], color=look.colour, linestyle=figures.line_style(look), linewidth=1.9, zorder=3)
            if stop - first == 1:
                axes.plot(x[:1], mean[:1], color=look.colour, marker="o", markersize=5, linestyle="none", zorder=3)
            continue
        axes.plot(x[start:stop], mean[start:stop], color=look.colour, linestyle=figures.line_style(look), linewidth=1.0, zorder=3)
        axes.plot(x[first], mean[first], color=look.colour, marker="|", markersize=8, markeredgewidth=1.2, zorder=4)
        marks.append((float(x[first]), float(mean[first]), int(seeds[start]), look.colour))
    return marks


def _seed_lines(axes: Axes, data: ReportData, points: ByRun, env: str, axis: str, looks: Mapping[str, Style]) -> list[float]:
    """Every run as a faint line; one that does not count is dotted and ends with a cross. Returns the highest and lowest point of each."""
    heights: list[float] = []
    runs = data.runs[data.runs["env"] == env]
    faint = 0.3 if len(runs) <= 40 else 0.14
    for run, label, counted in _lines(runs):
        if label not in looks or run not in points:
            continue
        x, y = figures.thinned(seed_curve(points, run, axis, data.smooth), len(runs))
        if not len(x):
            continue
        axes.plot(x, y, color=looks[label].colour, alpha=faint if counted else 0.6, linewidth=0.8, linestyle="-" if counted else ":")
        if not counted:
            axes.plot(x[-1:], y[-1:], color=looks[label].colour, marker="x", markersize=5, linestyle="none")
        heights += [float(y.max()), float(y.min())]
    return heights


def _lines(runs: pd.DataFrame) -> list[tuple[str, str, bool]]:
    return list(zip(runs["run"], runs["algorithm"], runs["counted"], strict=True))
