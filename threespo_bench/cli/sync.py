"""``threespo-bench sync``: send recorded runs to a tracking server, whatever it has not got yet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from threespo_bench.cli.output import load_host, note, say
from threespo_bench.cli.run_selection import STORE
from threespo_bench.errors import StorageError, TrackerError

if TYPE_CHECKING:
    from threespo_bench.syncing import Sent

_EPILOG = """\
RUNS are runs, experiments or folders of experiments, by default runs. Comparisons are sent with their report. What is there already is not sent again.

Without --uri a run goes where its configuration says, else to MLFLOW_TRACKING_URI, else to the SQLite file in the runs folder.

threespo-bench sync

threespo-bench sync runs/group-sizes --uri http://mlflow.example:5000

threespo-bench sync runs/default/3spo-household-seed0 --dry-run
"""
_STYLES = {"sent": "green", "complete": "dim", "to send": "yellow", "locked": "yellow", "failed": "red", "unreadable": "red"}


@click.command("sync", epilog=_EPILOG)
@click.argument("runs", nargs=-1, metavar="[RUNS]...", type=click.Path(path_type=Path))
@click.option("--uri", metavar="URI", help="Tracking server or database, instead of the one that a run's configuration names.")
@click.option("--dry-run", is_flag=True, help="Only say what would be sent.")
@click.pass_context
def command(context: click.Context, runs: tuple[Path, ...], uri: str | None, dry_run: bool) -> None:
    """Send recorded runs to MLflow, as far as it has not got them: after an unreachable server, without a tracker, or to another server."""
    from threespo_bench.config.compose import default_names
    from threespo_bench.inspection.summary import runs_in
    from threespo_bench.syncing import Synchronisation

    found = [run for folder in runs or (Path(STORE),) for run in runs_in(folder)]
    if not found:
        note(f"no run in {', '.join(map(str, runs or (STORE,)))}")
        return
    synchronisation = Synchronisation(load_host(context), default_names()["tracker"], uri, dry=dry_run)
    total, done = synchronisation.count(found), []
    for sent in synchronisation(found):
        done.append(sent)
        say(f"[{len(done)}/{total}] {_name(sent)}: {_text(sent)}", _STYLES[sent.what])
    _finish(done)


def _name(sent: Sent) -> str:
    comparison = not (sent.path / "config.yaml").is_file()
    return f"comparison {sent.path.name}" if comparison else f"{sent.path.parent.name}/{sent.path.name}"


def _text(sent: Sent) -> str:
    said = {
        "sent": f"sent, {sent.values:,} values" if sent.values else "sent, no value was missing",
        "complete": "nothing to send",
        "to send": "would be sent",
        "locked": "left alone, a process works on it; sync it when that has ended",
        "failed": "not sent",
        "unreadable": "not sent",
    }[sent.what]
    return f"{said}: {sent.note}" if sent.note else said


def _finish(done: list[Sent]) -> None:
    """Where to look; raises what the command ends with, if something was not sent."""
    for where in dict.fromkeys(sent.where for sent in done if sent.where):
        say(where)
    for what, kind in (("failed", TrackerError), ("unreadable", StorageError)):
        bad = [sent for sent in done if sent.what == what]
        if bad:
            raise kind(f"{len(bad)} of {len(done)} could not be sent, first {_name(bad[0])}: {bad[0].note}")
