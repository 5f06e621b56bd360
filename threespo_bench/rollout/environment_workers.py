"""Processes in which episodes live, for environments that take long over a step.

Episodes are dealt to the least loaded worker; each worker holds many and carries out one operation at a time, while those of other workers go on. A worker
that crashes, or takes too long, costs nothing that a model has generated: its episodes go back to where they stood in a fresh process.
"""

from __future__ import annotations

import asyncio
import pickle
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from threespo_bench.contracts.engine import RolloutEngine
from threespo_bench.contracts.environment import Environment, Task
from threespo_bench.contracts.rollout import RolloutOptions
from threespo_bench.errors import DataError, UsageError
from threespo_bench.rollout.environment_worker import EnvironmentWorker, Request
from threespo_bench.rollout.lockstep import GatheredRollout, Lockstep
from threespo_bench.rollout.world import EpisodeState, Reached, World, way_back

CRASHES = 3
"""How often one command of one task may end a worker; the last time ends the run."""

_CLOSING_SECONDS = 1.5


class EnvironmentWorkers:
    """The workers of one run; their processes start when they are needed.

    Args:
        environment: the family that every process gets, by its pickle or else by its class and configuration.
        count: of processes. timeout: seconds that one step may take.

    Raises:
        UsageError: neither the environment nor its configuration can be pickled.
    """

    def __init__(self, environment: Environment, count: int, timeout: float) -> None:
        self.environment, self.timeout = environment, timeout
        self.family = _pickled(environment), _pickled((type(environment), environment.config))
        if self.family == (None, None):
            raise self.refusal(["neither it nor its configuration can be pickled"])
        self.counts: Counter[str] = Counter()
        self._workers = [EnvironmentWorker(self) for _ in range(count)]
        self._blamed: Counter[tuple[str, str]] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lockstep: Lockstep | None = None
        self._worlds = 0

    @property
    def processes(self) -> list[int]:
        """Ids of the processes that run now."""
        return [worker.process.pid for worker in self._workers if worker.process is not None]

    def world(self) -> RemoteWorld:
        """A live copy of its own; it is dealt to a worker when it is first used."""
        self._worlds += 1
        return RemoteWorld(self, self._worlds)

    def least_loaded(self) -> EnvironmentWorker:
        """The worker with the fewest live copies."""
        return min(self._workers, key=lambda worker: worker.load)

    def in_step(self, engine: RolloutEngine) -> RolloutEngine:
        """The engine to ask for responses: one that makes one batch of all that waits is not asked while a step is under way."""
        if not engine.gathers:
            return engine
        if self._lockstep is None:
            self._lockstep = Lockstep()
        return GatheredRollout(engine, self._lockstep)

    def take_counts(self) -> dict[str, float]:
        """Metrics of what has crashed and was made good since they were last taken."""
        row = {f"environment/{name}": float(self.counts[name]) for name in ("worker_crashes", "episodes_retried")}
        self.counts.clear()
        return row

    async def ask(self, request: Request) -> Any:
        """Have an operation carried out; raises what the environment raised."""
        loop = self._attach()
        future = loop.create_future()
        number = self._lockstep.began() if self._lockstep is not None else 0
        request.settle = partial(self._settle, future, number, self._lockstep)
        request.world.home().put(request)
        return await future

    def blame(self, request: Request, how: str) -> DataError | None:
        """Count a crash against the command that was being carried out; the error once that is too much."""
        request.attempts += 1
        task, what = request.blamed()
        self._blamed[task, what] += 1
        if max(request.attempts, self._blamed[task, what]) < CRASHES:
            return None
        name = type(self.environment).__name__
        return DataError(
            f"{name} has ended its worker {CRASHES} times at {what} of {task}: {how}",
            fix="mend the environment or leave the task out; rollout.environment_workers=0 plays it in this process",
        )

    def absolve(self, request: Request) -> None:
        """What crashed before went well now: it was not the command."""
        self._blamed.pop(request.blamed(), None)

    def refusal(self, reasons: Sequence[str]) -> UsageError:
        """The error for an environment that cannot be had in another process."""
        return UsageError(
            f"rollout.environment_workers: {type(self.environment).__name__} cannot be sent to another process: {'; '.join(reasons)}",
            fix="define its class and its configuration in a module that can be imported, or set rollout.environment_workers=0",
        )

    def close(self) -> None:
        """End all processes; live copies may let go of what they hold. May be called more than once."""
        running = [worker for worker in self._workers if worker.hang_up()]
        deadline = time.monotonic() + _CLOSING_SECONDS
        while time.monotonic() < deadline and any(worker.running for worker in running):
            time.sleep(0.01)
        for worker in running:
            worker.discard()

    def _attach(self) -> asyncio.AbstractEventLoop:
        """Work with the running loop; what an earlier loop was waiting for is forgotten."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            for worker in self._workers:
                worker.attach(loop)
        return loop

    @staticmethod
    def _settle(future: asyncio.Future[Any], number: int, lockstep: Lockstep | None, value: Any, error: BaseException | None) -> None:
        deliver = partial(_deliver, future, value, error)
        if lockstep is None:
            deliver()
        else:
            lockstep.ended(number, deliver)


def start_workers(environment: Environment, options: RolloutOptions) -> EnvironmentWorkers | None:
    """The workers that the options ask for; None where episodes live in this process. Raises UsageError as :class:`EnvironmentWorkers`."""
    if not options.environment_workers:
        return None
    return EnvironmentWorkers(environment, options.environment_workers, options.environment_timeout)


def in_step(workers: EnvironmentWorkers | None, engine: RolloutEngine) -> RolloutEngine:
    """See :meth:`EnvironmentWorkers.in_step`; without workers, the engine."""
    return engine if workers is None else workers.in_step(engine)


class RemoteWorld(World):
    """A live copy in a worker. Prompts are rendered and responses read here, by the family.

    Attributes:
        number: by which the worker knows it. generation: of the process that it lives in; -1 before it lives anywhere.
    """

    def __init__(self, workers: EnvironmentWorkers, number: int) -> None:
        self._workers, self.number, self.generation = workers, number, -1
        self.environment = workers.environment
        self._worker: EnvironmentWorker | None = None

    def home(self) -> EnvironmentWorker:
        """The worker it was dealt to."""
        if self._worker is None:
            self._worker = self._workers.least_loaded()
            self._worker.load += 1
        return self._worker

    def __del__(self) -> None:
        if self._worker is not None:
            self._worker.load -= 1
            self._worker.dropped.append(self.number)

    async def reset(self, task: Task, seed: int, kinds: Sequence[str]) -> Reached:
        return await self._workers.ask(Request(self, task, None, "reset", (task, seed), tuple(kinds)))

    async def step(self, state: EpisodeState, command: str, kinds: Sequence[str]) -> Reached:
        return await self._workers.ask(Request(self, state.task, state, "step", command, tuple(kinds)))

    async def go_back(self, state: EpisodeState) -> None:
        await self._workers.ask(Request(self, state.task, None, "go_back", way_back(state, self.environment)))

    async def key(self, state: EpisodeState, kind: str) -> str:
        return await self._workers.ask(Request(self, state.task, state, "key", kind))


def _pickled(value: Any) -> bytes | None:
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:  # whatever the parts of an environment raise
        return None


def _deliver(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():  # cancelled: nobody waits
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
