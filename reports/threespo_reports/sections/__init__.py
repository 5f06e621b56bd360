"""The built-in sections, a module each, in reading order. Each is a :class:`ReportSection` like anybody's."""

from __future__ import annotations

from threespo_bench.contracts.report import ReportSection
from threespo_reports.sections.aggregate import Aggregate
from threespo_reports.sections.behaviour import Behaviour
from threespo_reports.sections.convergence import Curves
from threespo_reports.sections.cost import Cost
from threespo_reports.sections.differences import Differences
from threespo_reports.sections.efficiency import Efficiency
from threespo_reports.sections.failures import Failures
from threespo_reports.sections.improvement import Improvement
from threespo_reports.sections.learning import Learning
from threespo_reports.sections.matched import Matched
from threespo_reports.sections.methods import Methods
from threespo_reports.sections.profiles import Profiles
from threespo_reports.sections.provenance import Provenance
from threespo_reports.sections.regenerate import Regenerate
from threespo_reports.sections.states import States
from threespo_reports.sections.task_types import TaskTypes
from threespo_reports.sections.verdict import Verdict

BUILT_IN: tuple[type[ReportSection], ...] = (
    Verdict,
    Curves,
    Differences,
    Aggregate,
    Profiles,
    Improvement,
    Efficiency,
    TaskTypes,
    Learning,
    Behaviour,
    States,
    Cost,
    Failures,
    Methods,
    Matched,
    Provenance,
    Regenerate,
)
