"""Reports as the host sees them: contributions that are asked for by name. The host knows none and works without any."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threespo_bench.atomic import storage_errors
from threespo_bench.errors import BenchError, UsageError
from threespo_bench.host import PluginHost

if TYPE_CHECKING:
    import numpy as np

    from threespo_bench.turns import TurnBatch

CURVE = "curve"
"""The report contribution that draws a single run: a function of (run folder, PNG path)."""
COMPARISON = "comparison"
"""The one that writes a comparison: a function of (runs, out, baseline=, sections=, title=). If it takes them, also of smooth= and csv=; they are
given only where the user asks for them. It returns the path of its page, or what the built-in one returns."""
CREDIT = "credit"
"""The one that draws who gets the credit: a function of (turns, advantages of the turns by algorithm, PNG or SVG path)."""

INTERVAL = "interval"
"""The one that says how sure a mean over seeds is: a function of (one value per seed), returning something with ``low`` and ``high``, NaN for one seed."""


def draw_curve(host: PluginHost, run: Path, out: Path) -> bool:
    """Draw the learning curve of a run; False if no plugin offers that."""
    if CURVE not in host.reports:
        return False
    host.find("reports", CURVE).load()(run, out)
    return True


def draw_credit(host: PluginHost, turns: TurnBatch, advantages: Mapping[str, np.ndarray], out: Path) -> Path:
    """Draw the (N,) advantages that each algorithm gives the turns of a batch, and return ``out``.

    Raises:
        UsageError: no plugin offers that. StorageError: ``out`` cannot be written.
    """
    draw = host.find("reports", CREDIT).load()
    with storage_errors(f"write {out}"):
        return draw(turns, advantages, out)


def mean_interval(host: PluginHost, values: Sequence[float]) -> tuple[float, float] | None:
    """The interval of the mean of one value per seed; None for fewer than two seeds, or if no plugin offers that."""
    if INTERVAL not in host.reports or len(values) < 2:
        return None
    found = host.find("reports", INTERVAL).load()(values)
    return float(found.low), float(found.high)


def write_comparison(
    host: PluginHost,
    runs: Sequence[Path],
    out: Path,
    baseline: str | None = None,
    title: str = "",
    warn: Callable[[str], None] = lambda text: None,
    smooth: int = 1,
    csv: Sequence[Path] = (),
) -> Any:
    """Write the report of several runs with the sections of all plugins, and return its paths.

    ``smooth`` is the trailing window of the curves, ``csv`` are files with results of others.

    A section that cannot be imported or made is left out with a warning.

    Raises:
        UsageError: the writer of a plugin cannot do what is asked for. Besides, what the writer raises.
    """
    contribution = host.find("reports", COMPARISON)
    writer = contribution.load()
    wanted: dict[str, Any] = {name: value for name, value, usual in (("smooth", smooth, 1), ("csv", csv, ())) if value != usual}
    for name in wanted:
        if not _takes(writer, name):
            raise UsageError(f"the report writer of {contribution.source.owner} has no option {name}", fix=f"leave out --{name}")
    return writer(runs, out, baseline=baseline, sections=_sections(host, warn), title=title, **wanted)


def _sections(host: PluginHost, warn: Callable[[str], None]) -> list[Any]:
    """One of every section; the classes among the report contributions."""
    sections = []
    for contribution in host.reports.values():
        try:
            target = contribution.load()
            if inspect.isclass(target):
                section = target()
                _check(section)
                sections.append(section)
        except BenchError as error:
            warn(f"report section left out: {error}")
        except Exception as error:  # a stranger's code
            told = f"{type(error).__name__}: {' '.join(str(error).split())}"
            warn(f"report section left out: {contribution.name} (from {contribution.source.owner}) cannot be made: {told}")
    return sections


def _check(section: Any) -> None:
    """What the page needs of a section before it is rendered."""
    for name, kind in (("name", str), ("title", str), ("order", (int, float))):
        if not isinstance(getattr(section, name, None), kind):
            raise TypeError(f"{name} is missing or of a wrong type")
    if not callable(getattr(section, "render", None)):
        raise TypeError("it has no method render")


def _takes(writer: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(writer).parameters.values()
    return any(parameter.name == name or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
