"""``threespo-bench ls``: the runs of a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from threespo_bench.cli.output import console, note, say, table
from threespo_bench.cli.run_selection import COLOURS, STORE, age, filters, percent, read_runs, selection

if TYPE_CHECKING:
    from threespo_bench.inspection.summary import RunSummary

_STATES = ("running", "finished", "failed", "interrupted", "none", "damaged")
_EPILOG = """\
FOLDER is a folder of experiments (by default runs), an experiment, or a run. The age is the time since a run ended, or else since it was started.

threespo-bench ls

threespo-bench ls runs --algo 3spo --state finished

threespo-bench ls runs --experiment '3spo-*' --seeds 0..4 --json
"""


@click.command("ls", epilog=_EPILOG)
@click.argument("folder", default=STORE, metavar="[FOLDER]", type=click.Path(path_type=Path))
@filters
@click.option("--state", "states", multiple=True, type=click.Choice(_STATES), help="Runs in this state only; can be given several times.")
@click.option("--json", "as_json", is_flag=True, help="Plain data instead of a table.")
@click.pass_context
def command(
    context: click.Context,
    folder: Path,
    algorithms: tuple[str, ...],
    environments: tuple[str, ...],
    seeds: str,
    experiment: str,
    states: tuple[str, ...],
    as_json: bool,
) -> None:
    """List recorded runs: experiment, algorithm, environment, seed, state, steps, success on held-out tasks, age."""
    chosen = selection(context, algorithms, environments, seeds, experiment, states)
    everything = read_runs(folder)
    runs = chosen.of(everything)
    if as_json:
        import json

        say(json.dumps([_plain(run) for run in runs], indent=2))
        return
    if not runs:
        note(f"no run in {folder}" + (f" is like that; there are {len(everything)}" if everything else ""))
        return
    _print(runs)


def _print(runs: list[RunSummary]) -> None:
    from rich.text import Text

    shown = table("experiment", "run", "algorithm", "env", "seed", "state", "env steps", "success", "age")
    for run in runs:
        state = Text(run.state, style=COLOURS.get(run.state, ""))
        seed = "-" if run.seed is None else str(run.seed)
        shown.add_row(run.experiment, run.path.name, run.algorithm, run.env, seed, state, f"{run.env_steps:,}", percent(run.success), age(run.changed))
    console().print(shown)
    for run in runs:
        if run.state == "damaged":
            note(f"{run.experiment}/{run.path.name}: {run.error}", "yellow")


def _plain(run: RunSummary) -> dict[str, Any]:
    from dataclasses import asdict

    return {"experiment": run.experiment, "name": run.path.name, **asdict(run), "path": str(run.path)}
