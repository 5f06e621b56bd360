"""``threespo-bench leaderboard``: all finished runs of a store, ranked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from threespo_bench.cli.output import console, load_host, note, say, table
from threespo_bench.cli.run_selection import STORE, filters, read_runs, selection

if TYPE_CHECKING:
    from threespo_bench.inspection.leaderboard import Board

_EPILOG = """\
Rows of different budgets or from different machines are not a matched comparison; `compare` and `report` are for that.

threespo-bench leaderboard

threespo-bench leaderboard runs --env household --html leaderboard.html
"""


@click.command("leaderboard", epilog=_EPILOG)
@click.argument("store", default=STORE, metavar="[STORE]", type=click.Path(path_type=Path))
@filters
@click.option("--html", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Write the tables as one self-contained page, too.")
@click.option("--json", "as_json", is_flag=True, help="Plain data instead of tables.")
@click.pass_context
def command(
    context: click.Context,
    store: Path,
    algorithms: tuple[str, ...],
    environments: tuple[str, ...],
    seeds: str,
    experiment: str,
    html: Path | None,
    as_json: bool,
) -> None:
    """Rank the finished runs of a store for each environment: mean success over seeds at the last evaluation, with its interval."""
    from functools import partial

    from threespo_bench.inspection.leaderboard import boards
    from threespo_bench.reporting import INTERVAL, mean_interval

    chosen = selection(context, algorithms, environments, seeds, experiment)
    runs = read_runs(store)
    host = load_host(context)
    made = boards(chosen.of(runs), partial(mean_interval, host))
    how = "mean over seeds of the success on held-out tasks at the last evaluation of finished runs"
    how += "; the interval is that of the mean over seeds" if INTERVAL in host.reports else "; no plugin gives intervals"
    if html is not None:
        _write_page(html, made, store, how)
    if as_json:
        import json
        from dataclasses import asdict

        say(json.dumps([asdict(board) for board in made], indent=2))
        return
    if not made:
        note(f"no finished run in {store}" + (" is like that" if runs else ""))
    for board in made:
        _print(board)
    if made:
        note(how)


def _print(board: Board) -> None:
    from threespo_bench.inspection.leaderboard_page import HEAD, cells

    shown = table(*(name for name in HEAD if name), title=board.environment)
    for rank, row in enumerate(board.standings, 1):
        shown.add_row(*(text for name, text in zip(HEAD, cells(rank, row), strict=True) if name))
    console().print(shown)
    say()


def _write_page(path: Path, made: list[Board], store: Path, how: str) -> None:
    from threespo_bench.atomic import storage_errors, write_text
    from threespo_bench.inspection.leaderboard_page import page

    with storage_errors(f"write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, page(made, f"Leaderboard of {store.resolve().name}", how[0].upper() + how[1:] + "."))
    note(f"wrote {path}")
