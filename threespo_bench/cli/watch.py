"""``threespo-bench watch``: a running comparison, live."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from threespo_bench.cli.output import console, note, table
from threespo_bench.cli.run_selection import COLOURS, STORE, percent

if TYPE_CHECKING:
    from rich.console import RenderableType

    from threespo_bench.inspection.watching import Watch, WatchedRun

_EPILOG = """\
FOLDER is an experiment, or a folder of experiments, of which those are shown in which something is going on. It only reads: Ctrl-C ends the view and no run.

threespo-bench watch

threespo-bench watch runs/3spo-grpo-household --once
"""


@click.command("watch", epilog=_EPILOG)
@click.argument("folder", default=STORE, metavar="[FOLDER]", type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Print how things stand now, and end.")
@click.option("--every", type=click.FloatRange(min=0.1), default=2.0, show_default=True, metavar="SECONDS", help="How often to look.")
def command(folder: Path, once: bool, every: float) -> None:
    """Watch a running comparison: progress, success so far and environment steps a second of every run, until all runs have ended."""
    from threespo_bench.inspection.watching import Watch

    watch = Watch(folder)
    runs = watch.look()
    if not runs:
        note(f"nothing is going on in {folder}; threespo-bench ls {folder} lists the runs")
        return
    if once or not any(run.active for run in runs):
        console().print(frame(runs))
        return
    try:
        _follow(watch, runs, every)
    except KeyboardInterrupt:
        note("the view ended; the runs go on")


def _follow(watch: Watch, runs: list[WatchedRun], every: float) -> None:
    """Redraw until nothing is active any more; where there is no terminal, print the last picture only."""
    from rich.live import Live

    terminal = sys.stdout.isatty()
    out = console()
    with Live(frame(runs), console=out, auto_refresh=False, transient=not terminal) as live:
        while any(run.active for run in runs):
            time.sleep(every)
            runs = watch.look()
            if terminal:
                live.update(frame(runs), refresh=True)
    if not terminal:
        out.print(frame(runs))


def frame(runs: list[WatchedRun]) -> RenderableType:
    """The picture: a row for every run, and a line that counts them."""
    from rich.console import Group
    from rich.text import Text

    experiments = dict.fromkeys(run.experiment for run in runs)
    parts: list[RenderableType] = []
    for experiment in experiments:
        shown = table("run", "state", "progress", "", "env steps", "success", "steps/s", "left", title=experiment)
        for run in runs:
            if run.experiment == experiment:
                shown.add_row(*_cells(run))
        parts.append(shown)
    counts = Counter(run.state for run in runs)
    failures = [Text(f"{run.name}: {run.error}", style="red") for run in runs if run.state in ("failed", "damaged") and run.error]
    return Group(*parts, *failures, Text(", ".join(f"{count} {state}" for state, count in counts.items()), style="bold"))


def _cells(run: WatchedRun) -> tuple[Any, ...]:
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    from threespo_bench.cli.progress import duration

    state, found = Text(run.state, style=COLOURS.get(run.state, "dim")), run.summary
    if found is None:
        return (run.name, state, ProgressBar(total=1.0, completed=0.0, width=24), "", "", "", "", "")
    done = 1.0 if run.state == "finished" else found.fraction
    left = duration(found.seconds * (1 - done) / done) if run.state == "running" and found.seconds and done else ""
    speed = "" if found.speed is None else f"{found.speed:,.0f}"
    return (
        run.name,
        state,
        ProgressBar(total=1.0, completed=done, width=24),
        f"{done:.0%}",
        f"{found.env_steps:,}",
        percent(found.success),
        speed,
        left,
    )
