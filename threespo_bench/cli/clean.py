"""``threespo-bench clean``: remove runs that came to nothing, and old checkpoints."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from threespo_bench.cli.output import console, note, say, table, warn
from threespo_bench.cli.run_selection import STORE, age, filters, read_runs, seconds_of, selection, size
from threespo_bench.errors import UsageError

if TYPE_CHECKING:
    from threespo_bench.inspection.cleaning import Removal

_EPILOG = """\
Nothing is removed without --yes. A run that a process works on is never touched, and a run that is not finished keeps its newest checkpoint.

threespo-bench clean --failed

threespo-bench clean runs --failed --interrupted --older-than 7d --yes

threespo-bench clean runs --checkpoints --keep 1 --yes
"""


@click.command("clean", epilog=_EPILOG)
@click.argument("folder", default=STORE, metavar="[FOLDER]", type=click.Path(path_type=Path))
@click.option("--failed", is_flag=True, help="Failed runs.")
@click.option("--interrupted", is_flag=True, help="Interrupted runs, those whose process was killed included.")
@click.option("--checkpoints", is_flag=True, help="Old checkpoints, and what killed processes left of new ones.")
@click.option("--keep", type=click.IntRange(min=0), help="How many of the newest checkpoints stay, by default 1; 0 only for finished runs.")
@click.option("--older-than", metavar="TIME", help="Runs that ended longer ago, e.g. 7d or 12h.")
@filters
@click.option("--yes", is_flag=True, help="Do it.")
@click.pass_context
def command(
    context: click.Context,
    folder: Path,
    failed: bool,
    interrupted: bool,
    checkpoints: bool,
    keep: int | None,
    older_than: str | None,
    algorithms: tuple[str, ...],
    environments: tuple[str, ...],
    seeds: str,
    experiment: str,
    yes: bool,
) -> None:
    """Remove failed or interrupted runs, or old checkpoints. Only shows what it would remove, unless --yes is given."""
    if not (failed or interrupted or checkpoints):
        raise UsageError("it was not said what to remove", fix="add --failed, --interrupted or --checkpoints")
    if keep is not None and not checkpoints:
        raise UsageError("--keep is about checkpoints", fix="add --checkpoints")
    from threespo_bench.inspection.cleaning import removable_checkpoints, removable_runs

    limit = time.time() - seconds_of(older_than, "--older-than") if older_than else None
    chosen = selection(context, algorithms, environments, seeds, experiment)
    runs = [run for run in chosen.of(read_runs(folder)) if limit is None or (run.changed is not None and run.changed < limit)]
    states = [state for state, wanted in (("failed", failed), ("interrupted", interrupted)) if wanted]
    removals = list(removable_runs(runs, states))
    gone = {removal.run.path for removal in removals}
    if checkpoints:
        removals += removable_checkpoints([run for run in runs if run.path not in gone], 1 if keep is None else keep)
    if not removals:
        say(f"nothing to remove in {folder}")
        return
    _print(removals)
    if not yes:
        note("nothing was removed; the same with --yes removes it")
        return
    _remove(removals)


def _print(removals: list[Removal]) -> None:
    shown = table("experiment", "run", "what", "age", "size")
    for removal in removals:
        shown.add_row(removal.run.experiment, removal.run.path.name, removal.what, age(removal.run.changed), size(removal.size))
    console().print(shown)
    say(f"{len(removals)} things, {size(sum(removal.size for removal in removals))}")


def _remove(removals: list[Removal]) -> None:
    from threespo_bench.inspection.cleaning import remove

    done = []
    for removal in removals:
        if remove(removal):
            done.append(removal)
        else:
            warn(f"{removal.run.experiment}/{removal.run.path.name}: left alone, a process has begun to work on it")
    say(f"removed {len(done)} things, {size(sum(removal.size for removal in done))}")
