"""Which of a store's runs a command is about."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from threespo_bench.inspection.summary import RunSummary

STATES = ("running", "finished", "failed", "interrupted", "none", "damaged")


@dataclass(frozen=True)
class Selection:
    """Filters; an empty one lets everything pass.

    Attributes:
        algorithms, environments, states: names. seeds: numbers. experiment: a pattern with ``*`` and ``?`` for the experiment's folder.
    """

    algorithms: Collection[str] = ()
    environments: Collection[str] = ()
    seeds: Collection[int] = ()
    states: Collection[str] = ()
    experiment: str = ""

    def __call__(self, run: RunSummary) -> bool:
        """Whether a run passes all filters."""
        return (
            (not self.algorithms or run.algorithm in self.algorithms)
            and (not self.environments or run.env in self.environments)
            and (not self.seeds or run.seed in self.seeds)
            and (not self.states or run.state in self.states)
            and (not self.experiment or fnmatchcase(run.experiment, self.experiment))
        )

    def of(self, runs: Iterable[RunSummary]) -> list[RunSummary]:
        """Those that pass."""
        return [run for run in runs if self(run)]
