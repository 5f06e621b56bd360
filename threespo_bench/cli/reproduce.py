"""``threespo-bench reproduce``: make a recorded run again and see whether it comes out the same."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from threespo_bench.cli.output import load_host, say, warn
from threespo_bench.errors import NotReproduced

_EPILOG = """\
The new run gets the recorded configuration and takes as long as the old one did. Equal code, versions and thread numbers give equal numbers on one machine.

threespo-bench reproduce runs/default/3spo-household-seed0

threespo-bench reproduce runs/default/3spo-household-seed0 --out again
"""


@click.command("reproduce", epilog=_EPILOG)
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--out", metavar="DIR", type=click.Path(file_okay=False, path_type=Path), help="Folder for the new run, by default `reproduced` in the store.")
@click.option("--no-progress", is_flag=True, help="Show messages only.")
@click.pass_context
def command(context: click.Context, run: Path, out: Path | None, no_progress: bool) -> int:
    """Make a run again from its folder and compare the metrics row by row; warn where code, versions, machine or threads are not what they were."""
    from threespo_bench.inspection.summary import one_run

    path = one_run(run)
    host = load_host(context)
    from threespo_bench.cli.progress import make_progress
    from threespo_bench.cli.run import finish
    from threespo_bench.inspection.reproduction import reproduce

    found = reproduce(path, host, out, progress=make_progress(quiet=no_progress), say=warn)
    if found.comparison is None:
        return finish(found.outcome)
    rows = found.comparison
    say(f"made again in {found.outcome.run}")
    if rows.equal:
        say(f"equal: all {rows.compared} rows of metrics", "bold green")
        return 0
    raise NotReproduced(f"the runs differ: {rows.where}", fix=_advice(found.changed, found.deterministic))


def _advice(changed: tuple[str, ...], deterministic: bool) -> str:
    if not deterministic:
        return "its engine does not promise equal numbers"
    if changed:
        return "put back what the warnings name, most likely the first: " + changed[0]
    return "nothing that is recorded has changed: the environment or a plugin draws random numbers of its own, or the machine computes differently"
