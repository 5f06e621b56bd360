"""Performance profiles: the share of runs that end above each level of success, so that no single level has to be chosen."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from threespo_bench.contracts.report import Figure, Fragment, ReportData, ReportSection
from threespo_reports import figures
from threespo_reports.blocks import Blocks
from threespo_reports.frames import Floats
from threespo_reports.improvement import ALL
from threespo_reports.resampling import CONFIDENCE, stratified_mean_band
from threespo_reports.sections.shared import keys
from threespo_reports.styles import styles
from threespo_reports.svg import inline

LEVELS = np.linspace(0, 1, 101)
COLUMNS = ["env", "algorithm", "level", "share", "low", "high", "runs"]


class Profiles(ReportSection):
    """One panel per environment, and one for all together."""

    name: ClassVar[str] = "profiles"
    title: ClassVar[str] = "Performance profiles"
    order: ClassVar[int] = 26

    def render(self, data: ReportData) -> Fragment | None:
        """Share of runs with final success above the level, with bands."""
        table = profile_table(data)
        if table.empty:
            return None
        blocks, places = Blocks(), list(dict.fromkeys(table["env"]))
        keys(blocks, data, _order(data, table))
        panels = [_page_panel(data, table[table["env"] == env], env, f"profiles_{number}") for number, env in enumerate(places, start=1)]
        blocks.pictures(panels, _file(data, table, places), _caption(), size="wide" if len(places) == 1 else "")
        blocks.file("profiles", table)
        return blocks.fragment()


def profile_table(data: ReportData) -> pd.DataFrame:
    """A row per environment, algorithm and level: the share of runs above it, and its band."""
    done = data.runs[data.runs["counted"] & data.runs["final_success"].notna()]
    finals = {key: group["final_success"].to_numpy(float) for key, group in done.groupby(["env", "algorithm"])}
    places: list[tuple[str, tuple[str, ...]]] = [(env, (env,)) for env in data.environments]
    if len(data.environments) > 1:
        places.append((ALL, data.environments))
    frames = []
    for name, included in places:
        for label in data.algorithms:
            if all((env, label) in finals for env in included):
                share, low, high = profile([finals[env, label] for env in included])
                runs = sum(len(finals[env, label]) for env in included)
                columns = {"level": LEVELS, "share": share, "low": low, "high": high, "runs": runs}
                frames.append(pd.DataFrame({"env": name, "algorithm": label, **columns}))
    return pd.concat(frames, ignore_index=True)[COLUMNS] if frames else pd.DataFrame(columns=COLUMNS)


def profile(strata: list[Floats]) -> tuple[Floats, Floats, Floats]:
    """Share of runs strictly above each level, the mean over environments, and both ends of its bootstrap band."""
    above = [(values[:, None] > LEVELS[None, :]).astype(float) for values in strata]
    low, high = stratified_mean_band(above)
    return np.mean([rows.mean(axis=0) for rows in above], axis=0), low, high


def _order(data: ReportData, table: pd.DataFrame) -> list[str]:
    """Best first, as in the table of the first environment."""
    return [label for label in dict.fromkeys(data.summary["algorithm"]) if label in set(table["algorithm"])]


def _page_panel(data: ReportData, table: pd.DataFrame, env: str, name: str) -> str:
    with figures.style():
        picture = figures.canvas(figures.PANEL[0], 3.0)
        _panel(picture.subplots(), data, table, env)
        return inline(figures.as_svg(picture, name), name, f"Share of runs that end above each level of success on {env}")


def _file(data: ReportData, table: pd.DataFrame, places: list[str]) -> Figure:
    with figures.style():
        picture = figures.canvas(figures.PANEL[0] * len(places), 3.2)
        for number, (axes, env) in enumerate(zip(np.atleast_1d(picture.subplots(1, len(places))), places, strict=True)):
            _panel(axes, data, table[table["env"] == env], env)
            if number == 0:
                figures.legend_above(axes, _order(data, table), data.names, styles(data.algorithms))
        return figures.finished(picture, "profiles", "Share of runs that end above each level of success")


def _panel(axes: Axes, data: ReportData, table: pd.DataFrame, env: str) -> None:
    looks = styles(data.algorithms)
    for label, rows in table.groupby("algorithm", sort=True):
        look = looks[str(label)]
        axes.fill_between(rows["level"], rows["low"].astype(float), rows["high"].astype(float), color=look.colour, alpha=0.12, linewidth=0, step="post")
        axes.plot(rows["level"], rows["share"], color=look.colour, linestyle=figures.line_style(look), linewidth=1.8, drawstyle="steps-post")
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.02, 1.03)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("final success τ")
    axes.set_ylabel("runs above τ")
    if len(data.environments) > 1:
        axes.set_title(env, loc="right")
    figures.plain_frame(axes)


def _caption() -> str:
    return (
        f"Share of counted runs whose final success is greater than τ; shaded: {CONFIDENCE:.0%} bootstrap band over seeds (none for one seed). A curve that "
        "lies above another everywhere belongs to the better algorithm at every level; where curves cross, the answer depends on the level."
    )
