"""What a sampler gets and gives: it spends environment steps on tasks and yields turns when they are ready to be learned from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from threespo_bench.budget import Budget
from threespo_bench.contracts.engine import RolloutEngine, Sampling
from threespo_bench.contracts.environment import Environment, Task
from threespo_bench.seeding import Streams

if TYPE_CHECKING:
    from threespo_bench.contracts.algorithm import Algorithm
    from threespo_bench.rollout.environment_workers import EnvironmentWorkers
    from threespo_bench.turns import TurnBatch


@dataclass
class RolloutContext:
    """All that a sampler may use in one iteration.

    Attributes:
        environment: the family to spawn live episodes from.
        engine: the rollout engine.
        tasks: the tasks of this iteration, in the order of the task stream.
        iteration: its number, from 0.
        streams: the run's random streams.
        budget: counts what is spent; the rollout layer charges it, a sampler may ask what is left.
        sampling: how training tokens are drawn.
        max_turns: the step limit of an episode.
        anchor: the kind of state key to record.
        pool: all training tasks, for samplers that choose by themselves.
        keep_next_prompt: record the prompt that the episode would have gone on with, in the column ``next_prompt_ids`` (algorithms with values).
        tick: called after every environment step, for the progress display.
        workers: the processes in which episodes live; None for this one. :func:`threespo_bench.rollout.playing.begin` starts an episode in the right place.
    """

    environment: Environment
    engine: RolloutEngine
    tasks: Sequence[Task]
    iteration: int
    streams: Streams
    budget: Budget
    sampling: Sampling
    max_turns: int
    anchor: str
    pool: Sequence[Task] = ()
    keep_next_prompt: bool = False
    tick: Callable[[], None] = lambda: None
    workers: EnvironmentWorkers | None = None


class Sampler(ABC):
    """Decides which episodes are played, from which states, and when a batch is ready."""

    @abstractmethod
    def collect(self, context: RolloutContext, algorithm: Algorithm) -> AsyncIterator[TurnBatch]:
        """One iteration of experience as one or more batches."""

    def most_env_steps(self, tasks: int, max_turns: int) -> int | None:
        """The most environment steps that one iteration can charge; None if there is no bound that is known before. The dry run shows what follows from it.

        Args:
            tasks: tasks of the iteration. max_turns: the step limit of an episode.
        """
        return None

    def diagnostics(self) -> dict[str, float]:
        """Scalars about the last collection, for algorithms that pass them on."""
        return {}
