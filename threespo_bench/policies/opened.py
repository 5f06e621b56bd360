"""A policy that can be asked: its engine at the checkpoint's weights, the environment, and how they are used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from threespo_bench.assembly import model_path
from threespo_bench.checkpointing import read_state
from threespo_bench.config.schema import RunConfig
from threespo_bench.contracts.algorithm import Algorithm
from threespo_bench.contracts.engine import Engine, Sampling
from threespo_bench.contracts.environment import Environment, Task
from threespo_bench.contracts.rollout import Rollout
from threespo_bench.errors import DataError, UsageError
from threespo_bench.host import PluginHost
from threespo_bench.policies.source import RUN, SHARDING_ENGINE, Source, as_shards, model_folder
from threespo_bench.rollout.environment_workers import EnvironmentWorkers, start_workers

LITERATURE_SPLITS = {"eval_in_distribution": "valid_seen", "eval_out_of_distribution": "valid_unseen"}
"""What the literature on ALFWorld calls its two evaluation splits, and what most environments call such splits here."""


@dataclass
class OpenedPolicy:
    """Everything needed to play.

    Attributes:
        algorithm: of a run, with its state at the checkpoint; None for a policy without a run.
        anchor: the kind of state key to play with.
        workers: the processes in which episodes live; None for this one.
    """

    source: Source
    config: RunConfig
    engine: Engine
    environment: Environment
    algorithm: Algorithm | None
    anchor: str
    workers: EnvironmentWorkers | None = None

    @property
    def max_turns(self) -> int:
        """The step limit of an episode."""
        return self.config.rollout.options.max_turns or self.environment.max_turns

    @property
    def sampling(self) -> Sampling:
        """How evaluation draws tokens."""
        limit = self.config.rollout.options.max_new_tokens or self.environment.max_new_tokens
        return Sampling(temperature=self.config.evaluation.temperature, max_new_tokens=limit)


@contextmanager
def open_policy(source: Source, config: RunConfig, host: PluginHost, environment: Environment) -> Iterator[OpenedPolicy]:
    """The policy with its engine started; the engine is closed afterwards.

    Raises:
        UsageError: engine, rollout and algorithm do not fit. DataError, StorageError: model or checkpoint cannot be read.
    """
    with started_engine(source, config, host) as (engine, algorithm):
        if algorithm is not None:
            restore(source, engine, algorithm, weights=_shards_for(source, config) is None)
        anchor = environment.anchors[0] if algorithm is None else _anchor(algorithm, environment)
        workers = start_workers(environment, config.rollout.options)
        try:
            yield OpenedPolicy(source, config, engine, environment, algorithm, anchor, workers)
        finally:
            if workers is not None:
                workers.close()
            environment.close()


@contextmanager
def started_engine(source: Source, config: RunConfig, host: PluginHost) -> Iterator[tuple[Engine, Algorithm | None]]:
    """The engine of a policy, and the algorithm if it is that of a run. A run's checkpoint is not loaded yet: :func:`restore` does that."""
    algorithm: Algorithm | None = None
    if source.kind == RUN:
        algorithm = host.find("algorithms", config.algorithm.name).load()(config.algorithm.options)
    engine_class: type[Engine] = host.find("engines", config.engine.name).load()
    rollout = Rollout(config.rollout.name, config.rollout.options, host.find("rollouts", config.rollout.name).load())
    if not engine_class.works_with(rollout):
        raise UsageError(f"engine {config.engine.name} does not work with rollout={rollout.name}", fix="leave rollout= out, or choose another engine")
    shards = _shards_for(source, config)
    with model_folder(shards or source, host, lambda: model_path(config, host)) as model:
        engine_class.check(config.engine.options, Path(model).expanduser(), rollout)
        engine = engine_class(config.engine.options, model, config.seed, rollout)
        try:
            if algorithm is not None and shards is None:
                engine.prepare(algorithm.needs)
            yield engine, algorithm
        finally:
            engine.close()


def _shards_for(source: Source, config: RunConfig) -> Source | None:
    """The shards of a run that is played by another engine than the one that wrote them: it gets them merged, as its model."""
    return as_shards(source) if source.kind == RUN and config.engine.name != SHARDING_ENGINE else None


def restore(source: Source, engine: Engine, algorithm: Algorithm, *, weights: bool = True) -> None:
    """Put the algorithm's memory, and unless the engine was built on them the ``weights``, back to the source's checkpoint."""
    assert source.checkpoint is not None
    folder = source.checkpoint.folder
    version = read_state(folder, "loop")["policy_version"]
    algorithm.load_state_dict(read_state(folder, "algorithm"))
    if not weights:
        return
    engine.learner.load(folder / "learner")
    if engine.rollout.version != version:  # an engine whose rollout part holds weights of its own
        engine.publish()


def open_environment(config: RunConfig, host: PluginHost) -> Environment:
    """The configured environment."""
    return host.find("environments", config.env.name).load()(config.env.options)


def tasks_of(environment: Environment, split: str, episodes: int | None, name: str) -> list[Task]:
    """The first ``episodes`` tasks of a split; the literature's names of splits are understood too. Raises UsageError or DataError."""
    try:
        tasks: Sequence[Task] = environment.tasks(split)
    except UsageError:
        if split not in LITERATURE_SPLITS:
            raise
        tasks = environment.tasks(LITERATURE_SPLITS[split])
    if not len(tasks):
        raise DataError(f"environment {name} has no tasks in the split {split}")
    return list(islice(tasks, episodes))


def _anchor(algorithm: Algorithm, environment: Environment) -> str:
    """The algorithm's kind of state key, or the environment's first where it is another environment that lacks it."""
    anchor = algorithm.config.anchor
    return anchor if anchor in environment.anchors else environment.anchors[0]
