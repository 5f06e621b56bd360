"""The sampler ``single_stream``: one rollout of a task at a time; tasks are drawn by priority, and the baseline is frozen at dispatch.

A batch belongs to one policy version. With the collection ``batch`` all rollouts of a batch start together and all are waited for. With
``first_completed`` a fixed number of rollouts is in flight, at most one of a task; whenever one ends the next is dispatched, and the batch is
ready when enough have ended. What is unfinished then is dropped, or played to its end and added, before the new policy is published. No clock
is involved: rollouts that end in the same round of requests are taken in the order of their dispatch, so equal runs give equal batches.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import numpy as np

from threespo_bench.contracts.algorithm import Algorithm
from threespo_bench.contracts.environment import Task
from threespo_bench.contracts.sampler import RolloutContext, Sampler
from threespo_bench.rollout.batching import make_batch
from threespo_bench.rollout.concurrency import stop, together
from threespo_bench.rollout.episode import PlayedTurn
from threespo_bench.rollout.playing import begin, play, play_turn
from threespo_bench.turns import TurnBatch

COLLECTIONS = ("batch", "first_completed")
UNFINISHED = ("drop", "finish")


class StreamAlgorithm(Algorithm):
    """What the sampler asks of its algorithm."""

    @abstractmethod
    def task_weights(self, task_keys: Sequence[str]) -> np.ndarray:
        """(K,) positive weights that tasks are drawn by; asked before each batch."""

    @abstractmethod
    def knows(self, task_key: str) -> bool:
        """The task was initialised before."""

    @abstractmethod
    def initialise(self, task_key: str, successes: int, rollouts: int, version: int) -> None:
        """The task is about to be used for the first time; of ``rollouts`` rollouts of policy ``version`` (maybe none) so many succeeded."""

    @abstractmethod
    def dispatch_value(self, task_key: str, version: int) -> float:
        """The baseline of a rollout of an initialised task that policy ``version`` is about to start; the rollout keeps it."""


@dataclass(slots=True)
class Request:
    """A rollout that was dispatched.

    Attributes:
        index: number of the dispatch in its iteration. slot: the place among those in flight that it takes.
        value: the baseline frozen at dispatch. version: the policy published then.
        turns: what was played so far.
    """

    index: int
    slot: int
    task: Task
    value: float
    version: int
    turns: list[PlayedTurn] = field(default_factory=list)


class TaskChoice:
    """Draws tasks by weight without replacement; when all have been drawn, they are drawn anew.

    The order of the largest ``log w + Gumbel noise`` is that of successive draws with probability proportional to the weights that are left.

    Args:
        tasks: the candidates, in any order: noise goes to tasks in the order of their keys.
        weights: of the given task keys. generator: of the noise.
    """

    def __init__(self, tasks: Sequence[Task], weights: Callable[[Sequence[str]], np.ndarray], generator: np.random.Generator) -> None:
        self._tasks = sorted(tasks, key=lambda task: task.key)
        self._log_weights = np.log(weights([task.key for task in self._tasks]))
        self._generator = generator
        self._order = self._draw()

    def upcoming(self, count: int) -> list[Task]:
        """The tasks that the next ``count`` draws can give, each once."""
        return self._order[:count]

    def next(self, busy: Collection[str] = ()) -> Task:
        """The next task whose key is not among ``busy``, which must not be all of them."""
        while True:
            for place, task in enumerate(self._order):
                if task.key not in busy:
                    return self._order.pop(place)
            self._order += self._draw()

    def _draw(self) -> list[Task]:
        noise = self._generator.gumbel(size=len(self._tasks))
        return [self._tasks[i] for i in np.argsort(-(self._log_weights + noise), kind="stable")]


class Dispatcher:
    """Plays the rollouts of one batch.

    Args:
        first_index: number of the batch's first dispatch in the iteration.
    """

    def __init__(self, context: RolloutContext, algorithm: StreamAlgorithm, choice: TaskChoice, first_index: int) -> None:
        self._context, self._algorithm, self._choice = context, algorithm, choice
        self._index = first_index
        self.completed: list[Request] = []
        self.dropped: list[Request] = []

    async def initialise(self, count: int, rollouts: int, at_once: int) -> int:
        """Play ``rollouts`` rollouts of every unknown task that ``count`` draws can give, ``at_once`` at a time; returns the turns played."""
        if not rollouts:  # nothing to play: a task is initialised when it is dispatched
            return 0
        tasks = [task for task in self._choice.upcoming(count) if not self._algorithm.knows(task.key)]
        gate = asyncio.Semaphore(at_once)

        async def attempt(task: Task, branch: int) -> list[PlayedTurn]:
            async with gate:
                seed_of = lambda turn: self._context.streams.integer("offline", task.key, branch, turn)  # noqa: E731
                return await play(self._context, await begin(self._context, task), seed_of)

        version = self._context.engine.version
        attempts = await together([attempt(task, branch) for task in tasks for branch in range(rollouts)])
        for place, task in enumerate(tasks):
            own = attempts[place * rollouts : (place + 1) * rollouts]
            self._algorithm.initialise(task.key, sum(turns[-1].success for turns in own), rollouts, version)
        return sum(map(len, attempts))

    async def batch(self, count: int) -> None:
        """Dispatch ``count`` rollouts and wait for all of them."""
        self.completed = [self._dispatch(slot) for slot in range(count)]
        await together([self._play(request) for request in self.completed])

    async def first_completed(self, count: int, slots: int, drop: bool) -> None:
        """Keep ``slots`` rollouts in flight until ``count`` have ended; those that end in the same round all count."""
        running: dict[asyncio.Task[None], Request] = {}

        def send(slot: int) -> None:
            request = self._dispatch(slot, busy={other.task.key for other in running.values()})
            running[asyncio.create_task(self._play(request))] = request

        try:
            for slot in range(slots):
                send(slot)
            while running:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                ended = [task for task in running if task.done()]  # in the order of dispatch
                requests = [running.pop(task) for task in ended]
                _raise_first(ended)
                self.completed += requests
                if len(self.completed) < count:
                    for request in requests:
                        send(request.slot)
                elif drop:
                    break
        finally:
            await stop(running)
        self.dropped = list(running.values())

    def turns(self) -> TurnBatch:
        """The turns of the completed rollouts, rollout by rollout in the order of dispatch."""
        rows = [(request, turn) for request in sorted(self.completed, key=lambda request: request.index) for turn in request.turns]
        iteration = self._context.iteration
        return make_batch(
            [turn for _, turn in rows],
            group_ids=[f"{iteration}/{request.index}" for request, _ in rows],
            traj_ids=[f"{iteration}/{request.index}/0" for request, _ in rows],
            extras={
                "dispatch_value": np.array([request.value for request, _ in rows], float),
                "dispatch_version": np.array([request.version for request, _ in rows], np.int64),
            },
        )

    def _dispatch(self, slot: int, busy: Collection[str] = ()) -> Request:
        task, version = self._choice.next(busy), self._context.engine.version
        if not self._algorithm.knows(task.key):
            self._algorithm.initialise(task.key, 0, 0, version)
        request = Request(self._index, slot, task, self._algorithm.dispatch_value(task.key, version), version)
        self._index += 1
        return request

    async def _play(self, request: Request) -> None:
        context = self._context
        episode = await begin(context, request.task)
        while not episode.ended:
            seed = context.streams.integer("sample", context.iteration, request.index, 0, len(request.turns))
            request.turns.append(await play_turn(context, episode, seed))
        context.budget.charge(episodes=1)


class SingleStreamSampler(Sampler):
    """Plays single rollouts of tasks drawn from the whole pool, for a :class:`StreamAlgorithm`.

    Args:
        episodes: rollouts that an iteration completes.
        collection: ``batch`` or ``first_completed``.
        batch_episodes: rollouts that a batch of ``first_completed`` waits for; an iteration has as many batches as its ``episodes`` take.
        in_flight: rollouts that ``first_completed`` plays at once. unfinished: what becomes of the rest: ``drop`` or ``finish``.
        offline_rollouts: rollouts of a task before its first use. They are charged to the budget and not learned from.
    """

    def __init__(self, episodes: int, collection: str, batch_episodes: int, in_flight: int, unfinished: str, offline_rollouts: int) -> None:
        self.episodes, self.collection, self.offline_rollouts = episodes, collection, offline_rollouts
        self.batch_episodes, self.in_flight, self.unfinished = batch_episodes, in_flight, unfinished
        self._seen: Counter[str] = Counter()

    async def collect(self, context: RolloutContext, algorithm: Algorithm) -> AsyncIterator[TurnBatch]:
        """Batches until ``episodes`` rollouts are completed or the budget is spent; nothing is in flight between two batches."""
        assert isinstance(algorithm, StreamAlgorithm)
        self._seen.clear()
        pool = context.pool or context.tasks
        while not self._seen["batches"] or (self._seen["completed"] < self.episodes and not context.budget.exhausted()):
            choice = TaskChoice(pool, algorithm.task_weights, context.streams.generator("priority", context.iteration, self._seen["batches"]))
            dispatcher = Dispatcher(context, algorithm, choice, first_index=self._seen["completed"] + self._seen["dropped"])
            slots = self.episodes if self.collection == "batch" else min(self.in_flight, len(pool))
            draws = self.episodes if self.collection == "batch" else self.batch_episodes - 1 + slots
            self._seen["offline_turns"] += await dispatcher.initialise(draws, self.offline_rollouts, at_once=slots)
            if self.collection == "batch":
                await dispatcher.batch(self.episodes)
            else:
                await dispatcher.first_completed(self.batch_episodes, slots, drop=self.unfinished == "drop")
            self._count(dispatcher, slots)
            yield dispatcher.turns()

    def most_env_steps(self, tasks: int, max_turns: int) -> int:
        """All rollouts that can be dispatched at the step limit, each of a new task with its ``offline_rollouts``."""
        if self.collection == "batch":
            rollouts = self.episodes
        else:
            rollouts = ceil(self.episodes / self.batch_episodes) * (self.batch_episodes - 1 + self.in_flight)
        return rollouts * (1 + self.offline_rollouts) * max_turns

    def diagnostics(self) -> dict[str, float]:
        """What the last iteration's collection did.

        ``stream/completed_turns`` and ``stream/dropped_turns`` are mean lengths: first-completed collection prefers short rollouts, and their
        difference shows how much. ``stream/waiting_share`` is the share of the places in flight, each as long as the busiest, that had nothing to play.
        """
        seen = self._seen
        return {
            "stream/completed": float(seen["completed"]),
            "stream/dropped": float(seen["dropped"]),
            "stream/completed_turns": seen["completed_turns"] / max(seen["completed"], 1),
            "stream/dropped_turns": seen["dropped_turns"] / max(seen["dropped"], 1),
            "stream/waiting_share": 1.0 - (seen["completed_turns"] + seen["dropped_turns"]) / max(seen["capacity"], 1),
            "stream/offline_turns": float(seen["offline_turns"]),
        }

    def _count(self, dispatcher: Dispatcher, slots: int) -> None:
        busy: Counter[int] = Counter()
        for name, requests in (("completed", dispatcher.completed), ("dropped", dispatcher.dropped)):
            self._seen[name] += len(requests)
            for request in requests:
                self._seen[f"{name}_turns"] += len(request.turns)
                busy[request.slot] += len(request.turns)
        self._seen["capacity"] += slots * max(busy.values())
        self._seen["batches"] += 1


def _raise_first(ended: Sequence[asyncio.Task[Any]]) -> None:
    """Raise the error of the earliest dispatch that has one; all are looked at, or asyncio would warn of those that were not."""
    errors = [error for task in ended if (error := task.exception()) is not None]
    if errors:
        raise errors[0]
