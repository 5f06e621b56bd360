"""``threespo-bench report``: a comparison of recorded runs, from their folders alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rich_click as click

from threespo_bench.cli.output import load_host, say, warn


@click.command("report")
@click.argument("runs", nargs=-1, metavar="RUNS...", type=click.Path(path_type=Path))
@click.option("--out", metavar="DIR", type=click.Path(file_okay=False, path_type=Path), help="Folder for the report, by default `report` in the first folder.")
@click.option("--baseline", metavar="NAME", help="The algorithm that the others are compared with.")
@click.option("--title", default="", help="Title of the page.")
@click.option("--smooth", metavar="N", type=click.IntRange(min=1), default=1, help="Draw trailing means over N evaluations; numbers are never smoothed.")
@click.option(
    "--csv",
    metavar="FILE",
    multiple=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Results of others: columns algorithm, env, seed, step, success. May be given several times, also without RUNS.",
)
@click.pass_context
def command(context: click.Context, runs: tuple[Path, ...], out: Path | None, baseline: str | None, title: str, smooth: int, csv: tuple[Path, ...]) -> None:
    """Write curves, tables and statistics of runs (or folders of runs) as HTML, Markdown, JSON, Parquet, CSV, PNG and SVG."""
    if not runs and not csv:
        raise click.UsageError("Missing argument 'RUNS...' (or --csv FILE).")
    host = load_host(context)
    if baseline:
        baseline = host.find("algorithms", baseline).name if baseline in host.names("algorithms") else baseline
    from threespo_bench.reporting import write_comparison

    default = runs[0] / "report" if runs else csv[0].parent / "report"
    show_paths(write_comparison(host, runs, out or default, baseline, title, warn, smooth=smooth, csv=csv))


def show_paths(paths: Any) -> None:
    """Say where a report is and what its reader should know; a plugin's own writer may return the path of its page alone, or nothing."""
    if paths is None or isinstance(paths, (str, Path)):
        say(str(paths or "the report was written"))
        return
    for problem in paths.problems:
        if problem.severity != "note":
            warn(f"{problem.where}: {problem.message}")
    for path in (paths.html, paths.markdown, *(figure for figure in paths.figures if figure.suffix == ".png")):
        say(str(path))
