"""Every hook of threespo-bench, in the order of a run's life. A plugin is a module (or object) named by an entry point of the group
``threespo_bench``; it implements any of these functions under ``hookimpl`` and imports nothing heavy to do so.

    from threespo_bench.hookspecs import hookimpl
    from threespo_bench.contracts.entries import AlgorithmEntry

    @hookimpl
    def threespo_algorithms():
        return [AlgorithmEntry("mine", "my_package.mine:Mine", "one line about it")]
"""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from threespo_bench.contracts.entries import (
    AlgorithmEntry,
    EngineEntry,
    EnvironmentEntry,
    LauncherEntry,
    ModelEntry,
    ReportEntry,
    RolloutEntry,
    TrackerEntry,
)

PROJECT = "threespo_bench"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def threespo_algorithms() -> Iterable[AlgorithmEntry]:
    """Algorithms this plugin adds: ``run --algo NAME``."""


@hookspec
def threespo_environments() -> Iterable[EnvironmentEntry]:
    """Environments this plugin adds: ``run --env NAME``."""


@hookspec
def threespo_engines() -> Iterable[EngineEntry]:
    """Engines this plugin adds: ``engine=NAME``."""


@hookspec
def threespo_rollouts() -> Iterable[RolloutEntry]:
    """Rollout servers this plugin adds: ``rollout=NAME``."""


@hookspec
def threespo_models() -> Iterable[ModelEntry]:
    """Named models this plugin adds: ``model=NAME`` instead of ``model.path=FOLDER``."""


@hookspec
def threespo_trackers() -> Iterable[TrackerEntry]:
    """Trackers this plugin adds: ``tracker=NAME``."""


@hookspec
def threespo_launchers() -> Iterable[LauncherEntry]:
    """Launchers this plugin adds: ``compare --launcher NAME``."""


@hookspec
def threespo_report_sections() -> Iterable[ReportEntry]:
    """Sections this plugin adds to every comparison report."""
