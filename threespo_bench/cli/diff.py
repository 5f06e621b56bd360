"""``threespo-bench diff``: what two recorded runs have not in common."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from threespo_bench.cli.output import console, say, table
from threespo_bench.cli.run_selection import percent

if TYPE_CHECKING:
    from threespo_bench.inspection.differences import Difference
    from threespo_bench.inspection.summary import RunSummary

_EPILOG = """\
threespo-bench diff runs/default/3spo-household-seed0 runs/default/grpo-household-seed0
"""


@click.command("diff", epilog=_EPILOG)
@click.argument("first", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("second", metavar="RUN", type=click.Path(path_type=Path))
def command(first: Path, second: Path) -> None:
    """Compare two runs: options, code, versions and machine, results, and the first row at which their metrics part."""
    from threespo_bench.inspection.differences import compare_metrics, condition_differences, option_differences
    from threespo_bench.inspection.summary import one_run, summarise

    paths = one_run(first), one_run(second)
    _print("options", option_differences(*paths), "all options are equal")
    _print("conditions", condition_differences(*paths), "code, versions, machine, tasks and starting weights are equal")
    _print("results", _results(summarise(paths[0]), summarise(paths[1])), "the results are equal")
    rows = compare_metrics(*paths)
    say(f"metrics: all {rows.compared} rows are equal" if rows.equal else f"metrics: the first difference is in {rows.where}")


def _print(title: str, found: Sequence[Difference], equal: str) -> None:
    from threespo_bench.config.compose import show

    if not found:
        say(equal)
        return
    shown = table(title, "first", "second")
    for row in found:
        shown.add_row(row.key, show(row.first), show(row.second))
    console().print(shown)
    say()


def _results(first: RunSummary, second: RunSummary) -> list[Difference]:
    """What differs of state, success, totals and time; the time always does."""
    from threespo_bench.cli.progress import duration
    from threespo_bench.inspection.differences import Difference

    def facts(run: RunSummary) -> dict[str, str]:
        totals = {name.replace("_", " "): f"{amount:,}" for name, amount in run.spent.items()}
        success = {"success at the start": percent(run.start), "final success": percent(run.success)}
        return {"state": run.state, **success, **totals, "time": "-" if run.seconds is None else duration(run.seconds)}

    one, two = facts(first), facts(second)
    return [Difference(key, one[key], two[key]) for key in one if one[key] != two[key]]
