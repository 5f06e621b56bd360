"""The built-in engines, models and trackers. Each imports its heavy library in its own module, on use."""

from __future__ import annotations

from threespo_bench.contracts.entries import EngineEntry, ModelEntry, TrackerEntry
from threespo_bench.hookspecs import hookimpl


@hookimpl
def threespo_engines() -> list[EngineEntry]:
    return [
        EngineEntry(
            name="embedded",
            target="threespo_plugins.embedded.engine:EmbeddedEngine",
            summary="torch and transformers in this process, on the CPU or one GPU; exact resume",
        )
    ]


@hookimpl
def threespo_models() -> list[ModelEntry]:
    return [
        ModelEntry(
            name="household_tiny",
            target="threespo_plugins.models.household_tiny:path",
            summary="a small word-level Qwen2 model warm-started on households; ships with the package",
            aliases=("household-tiny",),
        )
    ]


@hookimpl
def threespo_trackers() -> list[TrackerEntry]:
    return [
        TrackerEntry(name="mlflow", target="threespo_plugins.mlflow_tracker:MlflowTracker", summary="MLflow, by default an SQLite file in the runs folder"),
        TrackerEntry(name="none", target="threespo_plugins.no_tracker:NoTracker", summary="no tracker: the run folder is the only record"),
    ]
