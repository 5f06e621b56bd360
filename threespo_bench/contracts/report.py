"""What a report section is: something that looks at the numbers of a comparison and returns a piece of the page.

The built-in sections are written against this contract and nothing else, so a stranger's section can do all that they do:

    class UniqueStates(ReportSection):
        name, title, order = "unique_states", "Unique states", 45

        def render(self, data):
            states = data.training.groupby("algorithm", observed=True)["state/unique_ratio"].mean()
            return Fragment(html=states.to_frame().to_html(), tables={"unique_states": states.reset_index()})

    @hookimpl
    def threespo_report_sections():
        return [ReportEntry("unique_states", "my_package.sections:UniqueStates", "distinct states over visited states")]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Problem:
    """Something a reader must know before trusting a number.

    Attributes:
        where: the run (its folder relative to the others) or the cell it concerns.
        message: one line. severity: ``error`` (a result is missing), ``warning`` (a result may be wrong) or ``note``.
    """

    where: str
    message: str
    severity: str = "error"


@dataclass(frozen=True)
class Horizon:
    """How far the runs of one environment are compared: up to ``limit`` on ``axis``; ``reason`` says where the limit comes from."""

    axis: str
    limit: float
    reason: str


@dataclass(frozen=True)
class Figure:
    """A picture for the ``figures`` folder: ``name`` is the file stem, ``svg`` a complete document, ``png`` its bytes, ``alt`` its text."""

    name: str
    svg: str
    png: bytes
    alt: str


@dataclass(frozen=True)
class Fragment:
    """What a section gives.

    Attributes:
        html: elements for the page, without the heading; they must load nothing from elsewhere.
        markdown: the same for ``report.md``, which else points to the page; figures are at ``figures/NAME.png``.
        figures: pictures to be written as files. tables: data frames to be written as ``tables/NAME.csv``. No other section may use the names.
    """

    html: str
    markdown: str = ""
    figures: tuple[Figure, ...] = ()
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)


@dataclass(frozen=True)
class ReportData:
    """All numbers of a report. Success is a fraction in [0, 1]; seeds are the only replication unit.

    Attributes:
        title: of the page.
        environments: their labels, sorted.
        algorithms: their labels, sorted. A label is the registered name, with the options that tell variants of one algorithm apart.
        names: algorithm label -> the name to print. baseline: an algorithm label, or None.
        runs: a row per run: ``run env algorithm seed state error counted reason``, budgets, totals, digests, per-run results.
        evaluations: a row per run and evaluation: ``run env algorithm seed counted``, the axes, ``success``, ``success/KIND`` ...
        training: a row per run and iteration: the same keys, ``train/success`` and the diagnostics of the algorithm. Of a very long run every
            n-th iteration only, which a problem of severity ``note`` tells.
        curves: a row per environment, axis, algorithm and grid point: ``env axis algorithm x mean low high seeds``.
        summary: a row per environment and algorithm, best first: final success, gain, area, end reward, paired difference, cost.
        horizons: environment -> how far its runs are compared.
        digests: a row per environment, seed and digest: ``env seed digest agree values``.
        problems: what is missing, excluded or not matched.
        inputs: SHA-256 of the files that were read.
        improvement: a row per environment (and all of them together) and ordered pair of algorithms: ``env algorithm other probability low high``.
        efficiency: a row per environment, axis, level of success and algorithm: what was spent until the level was reached.
        configs: run -> all its options by dotted key. manifests: run -> its manifest.
        states: run -> what its algorithm tells of states that were visited again (:meth:`~threespo_bench.contracts.algorithm.Algorithm.case_study`).
        smooth: trailing window of the curves in evaluations, 1 for none. sources: names of the CSV files with foreign results.
    """

    title: str
    environments: tuple[str, ...]
    algorithms: tuple[str, ...]
    names: Mapping[str, str]
    baseline: str | None
    runs: pd.DataFrame
    evaluations: pd.DataFrame
    training: pd.DataFrame
    curves: pd.DataFrame
    summary: pd.DataFrame
    horizons: Mapping[str, Horizon]
    digests: pd.DataFrame
    problems: tuple[Problem, ...]
    inputs: str
    improvement: pd.DataFrame
    efficiency: pd.DataFrame
    configs: Mapping[str, Mapping[str, Any]]
    manifests: Mapping[str, Mapping[str, Any]]
    smooth: int = 1
    sources: tuple[str, ...] = ()
    states: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)


class ReportSection(ABC):
    """A section of the report; made without arguments. One that raises is shown as a problem and spoils no other.

    A contribution of the hook ``threespo_report_sections`` that is a class is taken for a section.

    Attributes:
        name: identifier, the anchor on the page. title: its heading.
        order: place on the page, ascending; the built-in sections are from 10 (verdict) to 70 (commands).
    """

    name: ClassVar[str]
    title: ClassVar[str]
    order: ClassVar[int] = 100

    @abstractmethod
    def render(self, data: ReportData) -> Fragment | None:
        """The section, or None if there is nothing to say. The same data must give the same bytes."""
