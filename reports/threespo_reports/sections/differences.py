"""How the distance to the baseline grows and shrinks in the course of training."""

from __future__ import annotations

from typing import ClassVar

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from threespo_bench.contracts.report import Figure, Fragment, ReportData, ReportSection
from threespo_reports import figures
from threespo_reports.blocks import Blocks
from threespo_reports.curves import AXES, Band, difference_band, seed_curve
from threespo_reports.frames import ByRun
from threespo_reports.resampling import CONFIDENCE
from threespo_reports.sections.shared import evaluations, file_name, head, keys, ranked, seed_runs
from threespo_reports.selection import unmatched_seeds
from threespo_reports.styles import styles
from threespo_reports.svg import MUTED, inline

AXIS = "env_steps"
COLUMNS = ["env", "axis", "algorithm", "baseline", "x", "mean", "low", "high", "seeds"]


class Differences(ReportSection):
    """One figure per environment; nothing without a baseline."""

    name: ClassVar[str] = "differences"
    title: ClassVar[str] = "Paired differences"
    order: ClassVar[int] = 22

    def render(self, data: ReportData) -> Fragment | None:
        """Algorithm minus baseline, seed by seed, then the mean."""
        if data.baseline is None:
            return None
        blocks, tables, points = Blocks(), [], evaluations(data)
        for env in data.environments:
            bands = difference_bands(data, points, env)
            if not bands:
                continue
            tables += [band.table(env=env, axis=AXIS, algorithm=label, baseline=data.baseline) for label, band in bands.items()]
            head(blocks, data, env)
            keys(blocks, data, list(bands))
            name = file_name(data, "differences", env)
            figure = _figure(data, bands, name, f"Success minus that of {data.names[data.baseline]} on {env} against {AXES[AXIS]}")
            blocks.pictures([inline(figure.svg, name, figure.alt)], figure, _caption(data, bands), size="wide")
        if not tables:
            return None
        blocks.file("differences", pd.concat(tables, ignore_index=True)[COLUMNS])
        return blocks.fragment()


def difference_bands(data: ReportData, points: ByRun, env: str) -> dict[str, Band]:
    """Algorithm -> mean and band of its difference to the baseline over the matched common seeds."""
    baseline = data.baseline or ""
    lines = {label: {seed: seed_curve(points, run, AXIS, data.smooth) for seed, run in seed_runs(data, env, label).items()} for label in ranked(data, env)}
    found = {}
    for label in lines:
        if label == baseline or baseline not in lines:
            continue
        unmatched = unmatched_seeds(data.digests, env, (label, baseline))
        band = difference_band(*({seed: curve for seed, curve in lines[who].items() if seed not in unmatched} for who in (label, baseline)))
        if band is not None:
            found[label] = band
    return found


def _figure(data: ReportData, bands: dict[str, Band], name: str, alt: str) -> Figure:
    looks = styles(data.algorithms)
    with figures.style():
        picture = figures.canvas(figures.PANEL[0], 3.0)
        axes: Axes = picture.subplots()
        axes.axhline(0, color=MUTED, linewidth=0.9)
        for label, band in bands.items():
            axes.fill_between(band.x, band.low, band.high, color=looks[label].colour, alpha=0.14, linewidth=0)
            axes.plot(band.x, band.mean, color=looks[label].colour, linestyle=figures.line_style(looks[label]), linewidth=1.9)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:+.0f}" if abs(value) > 1e-9 else "0"))
        axes.set_ylabel(f"points above {data.names[data.baseline or '']}")
        figures.count_axis(axes, AXES[AXIS])
        figures.plain_frame(axes)
        figures.name_lines(axes, {label: (float(band.x[-1]), float(band.mean[-1])) for label, band in bands.items()}, data.names, looks)
        return figures.finished(picture, name, alt)


def _caption(data: ReportData, bands: dict[str, Band]) -> str:
    seeds = ", ".join(f"{data.names[label]} {int(band.seeds[0])}" for label, band in bands.items())
    smoothing = "" if data.smooth == 1 else f" Of trailing means over {data.smooth} evaluations."
    return (
        f"Success minus that of {data.names[data.baseline or '']} with the same seed, then the mean over the matched common seeds; shaded: {CONFIDENCE:.0%} "
        f"bootstrap band over seeds. Only the range that both cover with all these seeds.{smoothing} Common seeds: {seeds}."
    )
