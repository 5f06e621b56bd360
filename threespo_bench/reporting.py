"""Reports as the host sees them: contributions that are asked for by name. The host knows none and works without any."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threespo_bench.atomic import storage_errors
from threespo_bench.errors import BenchError
from threespo_bench.host import PluginHost

if TYPE_CHECKING:
    import numpy as np

    from threespo_bench.turns import TurnBatch

CURVE = "curve"
"""The report contribution that draws a single run: a function of (run folder, PNG path)."""
COMPARISON = "comparison"
"""The one that writes a comparison: a function of (runs, out, baseline=, sections=, title=)."""
CREDIT = "credit"
"""The one that draws who gets the credit: a function of (turns, advantages of the turns by algorithm, PNG or SVG path)."""


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


def write_comparison(
    host: PluginHost, runs: Sequence[Path], out: Path, baseline: str | None = None, title: str = "", warn: Callable[[str], None] = lambda text: None
) -> Any:
    """Write the report of several runs with the sections of all plugins, and return its paths.

    A section that cannot be imported is left out with a warning.
    """
    writer = host.find("reports", COMPARISON).load()
    sections = []
    for contribution in host.reports.values():
        try:
            target = contribution.load()
            if inspect.isclass(target):
                sections.append(target())
        except BenchError as error:
            warn(f"report section left out: {error}")
    return writer(runs, out, baseline=baseline, sections=sections, title=title)
