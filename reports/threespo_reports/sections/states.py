"""What became of states that a search came back to: score and samples over their visits, and the actions tried with their rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from threespo_bench.contracts.report import Figure, Fragment, ReportData, ReportSection
from threespo_reports import figures
from threespo_reports.blocks import Blocks, Cell, Table
from threespo_reports.formatting import count, fraction
from threespo_reports.sections.shared import head, ranked, seed_runs
from threespo_reports.styles import COLOURS, DASHES
from threespo_reports.svg import inline

VISIT_COLUMNS = ["env", "algorithm", "run", "label", "state", "visit", "clock", "total", "won", "score", "samples"]
ACTION_COLUMNS = ["env", "algorithm", "run", "label", "state", "visit", "command", "times", "reward", "valid", "success"]
LABELS = "ABCDEFGH"
PANEL = (3.4, 2.3)  # inches
MOST_ACTIONS = 8  # rows of a visit in the page; the table file has all
KEYS = ["command", "valid", "success", "reward"]

State = Mapping[str, Any]


class States(ReportSection):
    """For each environment and algorithm that tells of states: one run, a figure, and a table per state."""

    name: ClassVar[str] = "states"
    title: ClassVar[str] = "States that were visited again"
    order: ClassVar[int] = 42

    def render(self, data: ReportData) -> Fragment | None:
        """The run with the lowest seed of each algorithm."""
        blocks, visits, actions = Blocks(), [], []
        for env in data.environments:
            told = {label: run for label in ranked(data, env) if (run := _first_run(data, env, label)) is not None}
            if told:
                head(blocks, data, env)
            for number, (label, run) in enumerate(told.items()):
                states = data.states[run][: len(LABELS)]
                blocks.heading(f"{data.names[label]}, run {run}")
                panels, figure = _figure(states, f"states_{data.environments.index(env) + 1}_{number + 1}", data.names[label])
                blocks.pictures(panels, figure, _caption(len(states)), size="small")
                for letter, state in zip(LABELS, states, strict=False):
                    _tell(blocks, letter, state)
                    common = {"env": env, "algorithm": label, "run": run, "label": letter, "state": state["state"]}
                    visits += [{**common, **{name: visit[name] for name in VISIT_COLUMNS[5:]}} for visit in state["visits"]]
                    actions += [{**common, "visit": visit["visit"], **row} for visit in state["visits"] for row in _grouped(visit)]
        if not visits:
            return None
        blocks.text(
            "Of the states with the most of the visits 1, 5 and 10: from the one whose score changed most to the one where it changed least. "
            "A state counts as visited once a wave, and the actions are those of one tree. N is the number of finished trajectories through the state "
            "before the visit, success their (discounted) rate; R is the reward of the transition that a search ranks and learns from.",
            mark="muted",
        )
        blocks.file("state_visits", pd.DataFrame(visits, columns=VISIT_COLUMNS))
        blocks.file("state_actions", pd.DataFrame(actions, columns=ACTION_COLUMNS))
        return blocks.fragment()


def _first_run(data: ReportData, env: str, label: str) -> str | None:
    """The run of the lowest seed that tells of states."""
    return next((run for _, run in sorted(seed_runs(data, env, label).items()) if data.states.get(run)), None)


def _caption(states: int) -> str:
    return f"State score S(s) and samples n(s) of {states} state{'' if states == 1 else 's'} over their visits (logarithmic); the states are described below."


def _figure(states: Sequence[State], name: str, algorithm: str) -> tuple[list[str], Figure]:
    titles = {"score": "state score S(s)", "samples": "samples n(s)"}
    panels = []
    with figures.style():
        for column, title in titles.items():
            picture, (axes,) = figures.grid(1, 1, PANEL)
            _panel(axes, states, column, title)
            panels.append(inline(figures.as_svg(picture, f"{name}_{column}"), f"{name}_{column}", f"{title} of {algorithm} over the visits of chosen states"))
        picture, places = figures.grid(2, 2, PANEL)
        for axes, (column, title) in zip(places, titles.items(), strict=True):
            _panel(axes, states, column, title)
        return panels, figures.finished(picture, name, f"State score and samples of {algorithm} over the visits of chosen states")


def _panel(axes: Axes, states: Sequence[State], column: str, title: str) -> None:
    last = max(visit["visit"] for state in states for visit in state["visits"])
    ends = {}
    for place, (letter, state) in enumerate(zip(LABELS, states, strict=False)):
        x, y = [visit["visit"] for visit in state["visits"]], [float(visit[column]) for visit in state["visits"]]
        colour, dashes = list(COLOURS)[place % len(COLOURS)], DASHES[place % len(DASHES)]
        axes.plot(x, y, color=colour, linestyle=(0, dashes) if dashes else "-", linewidth=1.5, marker="o", markersize=3)
        ends[letter] = (x[-1], y[-1], colour)
    axes.set_ylim(bottom=0, top=1.08 * max(axes.get_ylim()[1], 1.0))
    high = axes.get_ylim()[1]
    places = figures.spread_labels({letter: y / high for letter, (_, y, _) in ends.items()}, 0.085)
    for letter, (x_end, _, colour) in ends.items():
        axes.annotate(letter, (x_end, high * places[letter]), (6, 0), textcoords="offset points", va="center", color=colour, weight="bold", fontsize=8.5)
    axes.set_xscale("log")
    axes.set_xlim(0.9, 1.5 * last)
    axes.set_xticks([tick for tick in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if tick <= last])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=column == "samples"))
    axes.set_title(title, loc="left", fontsize=8.5)
    axes.set_xlabel("visit")
    axes.tick_params(labelsize=7.5)
    figures.plain_frame(axes)


def _tell(blocks: Blocks, letter: str, state: State) -> None:
    """The state in words, and a row for each action that was tried at its first, fifth and tenth visit."""
    seen = f" First seen in {state['task']}: “{one_line(state['observation'])}”" if state.get("observation") else ""
    blocks.text(f"State {letter}: {one_line(state['state'])}; {count(state.get('count'))} visits.{seen}")
    body: list[list[Cell | str]] = []
    for visit in state["visits"]:
        rows = _grouped(visit)
        for place, row in enumerate(rows[:MOST_ACTIONS]):
            rate = visit["won"] / visit["total"] if visit["total"] else None
            numbers = [count(visit["total"]), fraction(rate, 2), fraction(visit["score"]), count(visit["samples"])] if place == 0 else [""] * 4
            times = f" ({row['times']} times)" if row["times"] > 1 else ""
            remark = "" if row["valid"] else "invalid"
            remark = "the task is solved" if row["success"] else remark
            body.append([str(visit["visit"]) if place == 0 else "", *numbers, one_line(row["command"]) + times, f"{row['reward']:+.3f}", remark])
        if len(rows) > MOST_ACTIONS:
            body.append(["", *[""] * 4, f"and {len(rows) - MOST_ACTIONS} more, in tables/state_actions.csv", "", ""])
    if body:
        blocks.table(Table(["visit", "N", "success", "S(s)", "n(s)", "action tried", "R", ""], body, words=frozenset({5, 7})))


def _grouped(visit: State) -> list[dict[str, Any]]:
    """The actions of a visit, best first; equal ones once with their number."""
    found: dict[tuple[Any, ...], int] = {}
    for action in visit.get("actions", []):
        key = tuple(action[name] for name in KEYS)
        found[key] = found.get(key, 0) + 1
    rows = [dict(zip(KEYS, key, strict=True)) | {"times": times} for key, times in found.items()]
    return sorted(rows, key=lambda row: (-row["reward"], row["command"]))


def one_line(text: str, longest: int = 160) -> str:
    """``text`` without line breaks, cut to a length."""
    flat = " ".join(str(text).split())
    return flat if len(flat) <= longest else flat[: longest - 3].rstrip() + "..."
