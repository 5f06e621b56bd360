"""``threespo-bench report``: a comparison of recorded runs, from their folders alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rich_click as click

from threespo_bench.cli.output import load_host, say, warn


@click.command("report")
@click.argument("runs", nargs=-1, required=True, metavar="RUNS...", type=click.Path(path_type=Path))
@click.option("--out", metavar="DIR", type=click.Path(file_okay=False, path_type=Path), help="Folder for the report, by default `report` in the first folder.")
@click.option("--baseline", metavar="NAME", help="The algorithm that the others are compared with.")
@click.option("--title", default="", help="Title of the page.")
@click.pass_context
def command(context: click.Context, runs: tuple[Path, ...], out: Path | None, baseline: str | None, title: str) -> None:
    """Write curves, tables and statistics of runs (or folders of runs) as HTML, Markdown, PNG and CSV."""
    host = load_host(context)
    if baseline:
        baseline = host.find("algorithms", baseline).name if baseline in host.names("algorithms") else baseline
    from threespo_bench.reporting import write_comparison

    show_paths(write_comparison(host, runs, out or runs[0] / "report", baseline, title, warn))


def show_paths(paths: Any) -> None:
    """Say where a report is and what its reader should know."""
    for problem in paths.problems:
        if problem.severity != "note":
            warn(f"{problem.where}: {problem.message}")
    for path in (paths.html, paths.markdown, *(figure for figure in paths.figures if figure.suffix == ".png")):
        say(str(path))
