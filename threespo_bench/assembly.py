"""From a configuration to the parts of a run: plugins loaded, constructed and checked against one another."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil, prod
from pathlib import Path
from typing import Any

from threespo_bench.budget import Budget
from threespo_bench.config.plain import to_plain
from threespo_bench.config.schema import RunConfig
from threespo_bench.contracts.algorithm import Algorithm
from threespo_bench.contracts.engine import Engine
from threespo_bench.contracts.environment import Environment, Task
from threespo_bench.contracts.rollout import ROLLOUT_CAPABILITIES, Rollout
from threespo_bench.errors import BenchError, DataError, EngineError, UsageError
from threespo_bench.host import PluginHost
from threespo_bench.rollout.environment_workers import start_workers
from threespo_bench.seeding import Streams
from threespo_bench.store import free_run_path
from threespo_bench.tasks import TaskStream
from threespo_bench.training import TrainingRun
from threespo_bench.vocabulary import unknown_words

HOST_CAPABILITIES = frozenset({"restore"})
"""What every environment has because the host does it where the environment does not: going back, by replaying the actions."""


def build(config: RunConfig, host: PluginHost) -> TrainingRun:
    """Everything the loop works on; nothing is recorded anywhere until the runner connects it.

    Raises:
        UsageError: parts that do not fit one another, with the setting to change.
        DataError: tasks or model cannot be read.
    """
    parts = load_parts(config, host)
    streams = Streams(config.seed)
    workers = start_workers(parts.environment, config.rollout.options)
    engine = parts.engine_class(config.engine.options, model_path(config, host), config.seed, parts.rollout)
    engine.prepare(parts.algorithm.needs)
    return TrainingRun(
        config=config,
        algorithm=parts.algorithm,
        environment=parts.environment,
        engine=engine,
        streams=streams,
        budget=Budget(config.budget),
        tasks=TaskStream(parts.training_tasks, streams),
        evaluation_tasks=parts.evaluation_tasks,
        log=lambda kind, metrics, seconds: None,
        checkpoint=lambda: None,
        workers=workers,
    )


@dataclass
class Parts:
    """The parts of a run that cost little, checked; the engine is not constructed yet. ``model`` is the folder of the starting weights."""

    algorithm: Algorithm
    environment: Environment
    engine_class: type[Engine]
    rollout: Rollout
    model: Path
    training_tasks: Sequence[Task]
    evaluation_tasks: Sequence[Task]


def load_parts(config: RunConfig, host: PluginHost, lacking: Callable[[BenchError], None] | None = None) -> Parts:
    """Load and construct all but the engine, and check that the parts fit.

    Args:
        lacking: told what engine and rollout lack on this machine, instead of an error.

    Raises:
        UsageError: parts that do not fit.
        DataError: the environment's data, or the model, is not here. EngineError: what engine or rollout need is not here.
    """
    algorithm: Algorithm = _load(host, "algorithms", config.algorithm.name)(config.algorithm.options)
    environment_class: type[Environment] = _load(host, "environments", config.env.name)
    engine_class: type[Engine] = _load(host, "engines", config.engine.name)
    rollout = Rollout(config.rollout.name, config.rollout.options, _load(host, "rollouts", config.rollout.name))
    environment = environment_class(config.env.options)
    _check_needs(config, algorithm, engine_class)
    _check_rollout(config, algorithm, engine_class, rollout)
    _check_anchor(config, environment)
    model = Path(model_path(config, host)).expanduser()
    try:
        engine_class.check(config.engine.options, model, rollout)
    except (DataError, EngineError) as error:
        if lacking is None:
            raise
        lacking(error)
    training = _tasks(environment, config.train_split, config.env.name)
    evaluation = _tasks(environment, config.evaluation.split, config.env.name)
    return Parts(algorithm, environment, engine_class, rollout, model, training, list(islice(evaluation, config.evaluation.episodes)))


def examine(config: RunConfig, host: PluginHost) -> tuple[Parts | None, list[BenchError]]:
    """The parts of a run, and what is lacking here to carry it out; no parts where even the environment's data is. Raises UsageError or PluginError."""
    lacking: list[BenchError] = []
    try:
        parts = load_parts(config, host, lacking.append)
    except (DataError, EngineError) as error:
        return None, [*lacking, error]
    if config.model.path is not None and not parts.model.is_dir() and not any(isinstance(error, DataError) for error in lacking):
        fix = "model.path= takes a local Hugging Face folder, model= a name that threespo-bench list shows"
        lacking.append(DataError(f"there is no model folder {parts.model}", fix=fix))
    return parts, lacking


def dry_run(config: RunConfig, host: PluginHost) -> dict[str, Any]:
    """What a run would be, as plain data: everything but the engine is built, nothing is written.

    ``lacking`` are the errors with which the run would end on this machine before it starts. Numbers that are not known, also because of them, are None.

    Raises:
        UsageError, PluginError: no machine could carry it out.
    """
    parts, lacking = examine(config, host)
    model = _known_model(config, host)
    return {
        "run": free_run_path(Path(config.out), config.experiment, run_name(host, config)).as_posix(),
        "config": to_plain(config),
        "training_tasks": None if parts is None else len(parts.training_tasks),
        "evaluation_tasks": None if parts is None else len(parts.evaluation_tasks),
        "model": None if model is None else str(model),
        "parameters": None if model is None else parameter_count(model),
        "iterations_at_least": None if parts is None else _fewest_iterations(config, parts),
        "warnings": [] if parts is None else warnings(config, parts),
        "lacking": lacking,
    }


def parameter_count(model: Path) -> int | None:
    """Parameters in a folder's safetensors files, from their headers alone; None if there are none, or one is damaged."""
    total = 0
    for file in sorted(model.glob("*.safetensors")):
        try:
            with open(file, "rb") as stream:
                length = int.from_bytes(stream.read(8), "little")
                header = json.loads(stream.read(length) if length < file.stat().st_size else b"")
            total += sum(prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
        except (OSError, ValueError, LookupError, TypeError, AttributeError):  # a damaged file, which the engine refuses
            return None
    return total or None


def _fewest_iterations(config: RunConfig, parts: Parts) -> int | None:
    """Iterations if each of them takes as many environment steps as it can; None if that has no bound, or if tokens or updates can end the run before."""
    limits = config.budget
    if limits.tokens or limits.updates:
        return None
    if not limits.env_steps:
        return limits.iterations
    most = parts.algorithm.most_env_steps(config.rollout.options.max_turns or parts.environment.max_turns)
    if not most:
        return None
    fewest = ceil(limits.env_steps / most)
    return min(fewest, limits.iterations) if limits.iterations else fewest


def _known_model(config: RunConfig, host: PluginHost) -> Path | None:
    """The folder of the starting weights; None if the model's own function cannot say."""
    try:
        return Path(model_path(config, host)).expanduser()
    except (DataError, EngineError):
        return None


def model_path(config: RunConfig, host: PluginHost) -> str:
    """The folder of the starting weights."""
    return config.model.path or str(_load(host, "models", config.model.name)())


def display_name(host: PluginHost, config: RunConfig) -> str:
    """What users call the configured algorithm: its first alias if it has one (``3spo``), else its name."""
    entry = host.find("algorithms", config.algorithm.name).entry
    return entry.aliases[0] if entry.aliases else entry.name


def run_name(host: PluginHost, config: RunConfig) -> str:
    """The name of a run's folder, e.g. ``3spo-household-seed0``."""
    return f"{display_name(host, config)}-{config.env.name}-seed{config.seed}"


def warnings(config: RunConfig, parts: Parts | TrainingRun) -> list[str]:
    """What a user should know before the run starts and that is no error. Raises a BenchError if the algorithm lacks an input of its own."""
    found = []
    have = len(parts.evaluation_tasks)
    if have < config.evaluation.episodes:
        found.append(f"evaluation.episodes={config.evaluation.episodes}, but the split {config.evaluation.split} has only {have} tasks: all are used")
    if config.evaluation.split == config.train_split:
        found.append(f"evaluation.split={config.evaluation.split} is also the training split: success is not measured on held-out tasks")
    model = parts.model if isinstance(parts, Parts) else Path(parts.engine.model)
    unknown = unknown_words(model, parts.environment, parts.evaluation_tasks[0], config.rollout.options.max_turns or parts.environment.max_turns)
    return found + [unknown] * bool(unknown) + parts.algorithm.warnings()


def _load(host: PluginHost, kind: str, name: str) -> Any:
    return host.find(kind, name).load()


def _check_needs(config: RunConfig, algorithm: Algorithm, engine: type[Engine]) -> None:
    needs = set(algorithm.needs)
    reason = f"algorithm {config.algorithm.name} needs"
    missing = sorted(needs - engine.capabilities - HOST_CAPABILITIES)
    if missing:
        raise UsageError(
            f"{reason} {' and '.join(missing)}, which engine {config.engine.name} does not offer",
            fix=f"choose another engine (engine=NAME; 'threespo-bench info {config.engine.name}' shows what one offers), or another algorithm",
        )
    if config.algorithm.options.objective.needs_reference and "reference" not in engine.capabilities:
        raise UsageError(
            f"the objective of {config.algorithm.name} needs a reference policy, which engine {config.engine.name} does not offer",
            fix="set algorithm.objective.kl_coef=0 if it has that option, or choose another engine",
        )


def _check_rollout(config: RunConfig, algorithm: Algorithm, engine: type[Engine], rollout: Rollout) -> None:
    if not engine.works_with(rollout):
        raise UsageError(f"engine {config.engine.name} does not work with rollout={rollout.name}", fix="rollout=hf, or another engine")
    missing = sorted(algorithm.needs & ROLLOUT_CAPABILITIES - rollout.target.capabilities)
    if missing:
        raise UsageError(f"algorithm {config.algorithm.name} needs {' and '.join(missing)}, which rollout={rollout.name} does not offer", fix="rollout=hf")


def _check_anchor(config: RunConfig, environment: Environment) -> None:
    offered = environment.anchors
    for option, wanted in config.algorithm.options.state_keys().items():
        if wanted not in offered:
            raise UsageError(
                f"algorithm.{option}={wanted}, but environment {config.env.name} has the state keys {', '.join(offered)}",
                fix=f"set algorithm.{option}={offered[0]}",
            )


def _tasks(environment: Environment, split: str, name: str) -> Sequence[Task]:
    tasks = environment.tasks(split)
    if not len(tasks):
        raise DataError(f"environment {name} has no tasks in the split {split}")
    return tasks
