"""Options that several commands share to choose among recorded runs, and how runs are written in tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from threespo_bench.cli.output import load_host
from threespo_bench.cli.overrides import seeds as read_seeds
from threespo_bench.errors import UsageError

if TYPE_CHECKING:
    from threespo_bench.inspection.selection import Selection
    from threespo_bench.inspection.summary import RunSummary

STORE = "runs"
COLOURS = {"finished": "green", "failed": "red", "damaged": "red", "running": "cyan", "interrupted": "yellow", "waiting": "dim"}
_UNITS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}


def filters(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options ``--algo``, ``--env``, ``--seeds`` and ``--experiment``; the arguments are for :func:`selection`."""
    for option in (
        click.option("--experiment", default="", metavar="PATTERN", help="Experiments whose folder is called so; * and ? stand for anything."),
        click.option("--seeds", default="", metavar="SEEDS", help="These seeds only, e.g. 0..4 or 0,3."),
        click.option("--env", "environments", multiple=True, metavar="NAME", help="This environment only; can be given several times."),
        click.option("--algo", "algorithms", multiple=True, metavar="NAME", help="This algorithm only; can be given several times."),
    ):
        function = option(function)
    return function


def selection(
    context: click.Context, algorithms: Sequence[str], environments: Sequence[str], seeds: str, experiment: str, states: Sequence[str] = ()
) -> Selection:
    """The filter that the options describe. Aliases count; a name that no plugin has may still be that of a recorded run."""
    from threespo_bench.inspection.selection import Selection

    host = load_host(context) if algorithms or environments else None

    def names(kind: str, given: Sequence[str]) -> list[str]:
        return [host.find(kind, name).name if host and name in host.names(kind) else name for name in given]

    numbers = read_seeds(seeds) if seeds else []
    return Selection(names("algorithms", algorithms), names("environments", environments), numbers, tuple(states), experiment)


def read_runs(folder: Path) -> list[RunSummary]:
    """Summaries of all runs of a run, experiment or store. Raises StorageError."""
    from threespo_bench.inspection.summary import runs_in, summarise

    return [summarise(path) for path in runs_in(folder)]


def age(changed: float | None) -> str:
    """``5 min``, ``3 h``, ``12 d``: how long ago."""
    if changed is None:
        return "-"
    seconds = max(0.0, time.time() - changed)
    for unit, length, limit in (("s", 1, 60), ("min", 60, 3_600), ("h", 3_600, 172_800)):
        if seconds < limit:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def seconds_of(text: str, option: str) -> float:
    """``7d``, ``12h``, ``30m``, ``45s`` in seconds. Raises UsageError."""
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not number.replace(".", "", 1).isdigit():
        raise UsageError(f"{option} {text}: is no length of time", fix=f"write {option} 7d, 12h, 30m or 45s")
    return float(number) * _UNITS[unit]


def percent(value: float | None) -> str:
    """A success, or a dash."""
    return "-" if value is None else f"{value:.1%}"


def size(count: int) -> str:
    """Bytes in words."""
    number = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError("unreachable")
