"""What the algorithms did while they learned: small multiples of the diagnostics in the training rows, a line per algorithm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import EngFormatter, MaxNLocator, ScalarFormatter

from threespo_bench.contracts.report import Figure, Fragment, ReportData, ReportSection
from threespo_reports import figures
from threespo_reports.blocks import Blocks
from threespo_reports.curves import band
from threespo_reports.frames import ByRun, Floats
from threespo_reports.sections.shared import file_name, head, keys, ranked, seed_runs
from threespo_reports.styles import COLOURS, styles
from threespo_reports.svg import inline

AXIS = "env_steps"
POINTS = 41
COLUMNS = ["env", "metric", "algorithm", "env_steps", "mean", "low", "high", "seeds"]
SAMPLES = "tree/samples_"
SHARE_COLOUR = next(iter(COLOURS))  # the more of it, the larger the share: readable on a light and on a dark page
SMALL = (2.7, 2.0)  # inches of a panel
IN_LINE = 6  # names in a line of the legend


@dataclass(frozen=True)
class Metric:
    """A diagnostic: its column in the training rows, its heading, and what is drawn of it."""

    column: str
    title: str
    of: Callable[[Floats], Floats] = lambda values: values


METRICS = (
    Metric("state/mean_score", "mean state score S"),
    Metric("tree/mean_samples", "mean samples n(s)"),
    Metric("state/unique_ratio", "unique-state ratio"),
    Metric("state/known_share", "share of known states"),
    Metric("tree/solved_share", "solved trees"),
    Metric("group/groups", "groups"),
    Metric("group/mean_size", "members of a group"),
    Metric("group/zero_variance_share", "zero-variance groups"),
    Metric("group/singleton_share", "groups of one"),
    Metric("step_group/mean_size", "members of a step group"),
    Metric("step_group/zero_variance_share", "zero-variance step groups"),
    Metric("step_group/singleton_share", "step groups of one"),
    Metric("update/clip_fraction", "clipped tokens"),
    Metric("update/kl", "KL to the reference"),
    Metric("update/entropy", "entropy"),
    Metric("update/grad_norm", "gradient norm"),
    Metric("critic/explained_variance", "critic, explained variance"),
    Metric("train/success", "success of training episodes"),
    Metric("train/response_tokens", "tokens per response"),
    Metric("train/valid_actions", "invalid actions", lambda values: 1 - values),
    Metric("update/logprob_gap_mean", "log-probability gap, mean"),
    Metric("update/logprob_gap_max", "log-probability gap, largest"),
)


class Behaviour(ReportSection):
    """One panel per diagnostic that any run has; the distribution of n(s) for searches."""

    name: ClassVar[str] = "behaviour"
    title: ClassVar[str] = "What the algorithms did"
    order: ClassVar[int] = 40

    def render(self, data: ReportData) -> Fragment | None:
        """For each environment that has training rows."""
        blocks, tables, training = Blocks(), [], ByRun(data.training)
        for env in data.environments:
            lines = metric_lines(data, training, env)
            sampled = _sample_shares(data, training, env)
            if not lines and not sampled:
                continue
            head(blocks, data, env)
            keys(blocks, data, ranked(data, env))
            if lines:
                tables += [frame.assign(env=env, metric=metric.column) for metric, frames in lines.items() for frame in frames.values()]
                panels, figure = _metric_figures(data, lines, file_name(data, "behaviour", env), env)
                blocks.pictures(panels, figure, _caption(), size="small")
            if sampled:
                panels, figure = _sample_figures(data, sampled, file_name(data, "samples", env), env)
                blocks.pictures(
                    panels,
                    figure,
                    "Samples n(s) of the states that a search expanded: the stronger the colour, the larger their share.",
                    size="small",
                )
        if not blocks.fragment().html:
            return None
        if tables:
            blocks.file("behaviour", pd.concat(tables, ignore_index=True)[COLUMNS])
        return blocks.fragment()


def metric_lines(data: ReportData, training: ByRun, env: str) -> dict[Metric, dict[str, pd.DataFrame]]:
    """Metric -> algorithm -> mean and band over seeds against environment steps, for what was recorded."""
    found: dict[Metric, dict[str, pd.DataFrame]] = {}
    for metric in METRICS:
        if metric.column not in data.training:
            continue
        for label in ranked(data, env):
            curves = [training.curve(run, AXIS, metric.column) for run in seed_runs(data, env, label).values()]
            curves = [(x, metric.of(y)) for x, y in curves if len(x)]
            if curves:
                frame = band(curves, POINTS).table(algorithm=label).rename(columns={"x": AXIS})
                found.setdefault(metric, {})[label] = frame
    return found


def _metric_figures(data: ReportData, lines: Mapping[Metric, dict[str, pd.DataFrame]], name: str, env: str) -> tuple[list[str], Figure]:
    panels, columns = [], min(4, len(lines))
    with figures.style():
        for number, (metric, frames) in enumerate(lines.items()):
            picture, (axes,) = figures.grid(1, 1, SMALL)
            _line_panel(axes, data, metric, frames)
            stem = f"{name}_{number}"
            panels.append(inline(figures.as_svg(picture, stem), stem, f"{metric.title} on {env} against environment steps"))
        labels = sorted({label for frames in lines.values() for label in frames})
        picture, places = figures.grid(len(lines), columns, SMALL, head=0.25 + 0.18 * -(-len(labels) // IN_LINE))
        for axes, (metric, frames) in zip(places, lines.items(), strict=True):
            _line_panel(axes, data, metric, frames)
        _legend(picture, data, labels, columns)
        return panels, figures.finished(picture, name, f"Diagnostics of the training on {env} against environment steps")


def _legend(picture: figures.Canvas, data: ReportData, labels: list[str], columns: int) -> None:
    """Over all panels."""
    looks = styles(data.algorithms)
    handles = [figures.Line2D([], [], color=looks[label].colour, linestyle=figures.line_style(looks[label]), label=data.names[label]) for label in labels]
    picture.legend(handles=handles, frameon=False, fontsize=8, ncols=min(IN_LINE, 2 * columns), loc="upper left", handlelength=3.2)


def _line_panel(axes: Axes, data: ReportData, metric: Metric, frames: Mapping[str, pd.DataFrame]) -> None:
    looks = styles(data.algorithms)
    for label, frame in frames.items():
        look = looks[label]
        axes.fill_between(frame[AXIS], frame["low"].astype(float), frame["high"].astype(float), color=look.colour, alpha=0.14, linewidth=0)
        single: dict[str, Any] = {"marker": "o", "markersize": 4} if len(frame) == 1 else {}
        axes.plot(frame[AXIS], frame["mean"], color=look.colour, linestyle=figures.line_style(look), linewidth=1.5, **single)
    axes.set_title(metric.title, loc="left", fontsize=8.5)
    _small_axes(axes)
    low, high = axes.get_ylim()
    if all(frame["mean"].abs().max() == 0 for frame in frames.values()):
        axes.set_ylim(-0.005, 0.1)
    elif low < 0 <= min(frame["mean"].min() for frame in frames.values()):
        axes.set_ylim(-0.02 * high, high)
    form = ScalarFormatter(useOffset=False)
    form.set_powerlimits((-3, 4))
    axes.yaxis.set_major_formatter(form)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    figures.plain_frame(axes)


def _small_axes(axes: Axes) -> None:
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.tick_params(labelsize=7.5)
    axes.yaxis.get_offset_text().set_fontsize(7)


def _sample_shares(data: ReportData, training: ByRun, env: str) -> dict[str, tuple[Floats, list[int], Floats]]:
    """Algorithm -> environment steps, numbers of samples n, and the (n, steps) mean share over seeds of expanded states with n samples."""
    counts = sorted(int(column.removeprefix(SAMPLES)) for column in data.training.columns if column.startswith(SAMPLES))
    found = {}
    for label in ranked(data, env):
        shares = []
        for run in seed_runs(data, env, label).values():
            x, _ = training.curve(run, AXIS, AXIS)
            rows = np.array([np.nan_to_num(training.column(run, f"{SAMPLES}{n}")) for n in counts])
            if rows.size and rows.sum() > 0 and len(x) == rows.shape[1]:
                shares.append((x, rows))
        if not shares:
            continue
        first, last = max(x[0] for x, _ in shares), min(x[-1] for x, _ in shares)
        grid = np.linspace(first, last, min(30, max(len(x) for x, _ in shares))) if last > first else np.array([first])
        mean = np.mean([[np.interp(grid, x, row) for row in rows] for x, rows in shares], axis=0)
        used = [place for place in range(len(counts)) if mean[place].any()]
        found[label] = (grid, [counts[place] for place in used], mean[used])
    return found


def _sample_figures(data: ReportData, sampled: Mapping[str, tuple[Floats, list[int], Floats]], name: str, env: str) -> tuple[list[str], Figure]:
    panels = []
    with figures.style():
        for number, (label, shares) in enumerate(sampled.items()):
            picture, (axes,) = figures.grid(1, 1, SMALL)
            _sample_panel(axes, data.names[label], *shares)
            stem = f"{name}_panel{number}"
            panels.append(inline(figures.as_svg(picture, stem), stem, f"Distribution of samples per state of {data.names[label]} on {env}"))
        picture, places = figures.grid(len(sampled), min(4, len(sampled)), SMALL)
        for axes, (label, shares) in zip(places, sampled.items(), strict=True):
            _sample_panel(axes, data.names[label], *shares)
        return panels, figures.finished(picture, name, f"Distribution of the number of samples per state on {env}")


def _sample_panel(axes: Axes, title: str, steps: Floats, counts: list[int], shares: Floats) -> None:
    edges = np.concatenate([[steps[0]], (steps[1:] + steps[:-1]) / 2, [steps[-1]]]) if len(steps) > 1 else np.array([0.0, steps[0]])
    for row, line in enumerate(shares):
        for start, stop, share in zip(edges, edges[1:], line, strict=False):
            axes.add_patch(Rectangle((start, row - 0.46), stop - start, 0.92, facecolor=SHARE_COLOUR, alpha=float(min(share, 1.0)), linewidth=0))
    axes.set_ylim(-0.6, len(counts) - 0.4)
    axes.set_xlim(0, edges[-1])
    axes.set_yticks(range(len(counts)), [f"n={count}" for count in counts])
    axes.set_title(f"samples n(s), {title}", loc="left", fontsize=8.5)
    _small_axes(axes)
    figures.sns.despine(ax=axes, left=True)
    axes.tick_params(axis="y", length=0)


def _caption() -> str:
    return (
        "Against environment steps, as logged in each iteration: mean over seeds, shaded: 95% bootstrap band over seeds. Groups are what an algorithm compares "
        "within: rollouts of a task, or the actions of a state in a search; their number is per update for a search, as it learns in waves. Lines are missing "
        "where an algorithm has no such quantity."
    )
