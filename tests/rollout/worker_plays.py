"""What tests of environment workers play, with and without them, and what they compare."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.rollout.slow_worlds import (
    Gathering,
)
from tests.rollout.test_adaptive_tree import Told
from tests.rollout.test_monte_carlo import Asking
from tests.rollout.test_single_stream import Noting
from threespo_bench.budget import Budget, Limits
from threespo_bench.contracts.engine import Sampling
from threespo_bench.contracts.environment import Environment
from threespo_bench.contracts.rollout import RolloutOptions
from threespo_bench.contracts.sampler import RolloutContext
from threespo_bench.rollout.environment_workers import EnvironmentWorkers, in_step, start_workers
from threespo_bench.rollout.greedy_baseline import GreedyBaselineSampler
from threespo_bench.rollout.grouped import GroupedSampler
from threespo_bench.rollout.monte_carlo import MonteCarloSampler
from threespo_bench.rollout.segment_tree import SegmentTreeSampler
from threespo_bench.seeding import Streams
from threespo_bench.turns import TurnBatch


@contextmanager
def workers_of(environment: Environment, count: int, timeout: float = 60.0) -> Iterator[EnvironmentWorkers | None]:
    workers = start_workers(environment, RolloutOptions(environment_workers=count, environment_timeout=timeout))
    try:
        yield workers
    finally:
        if workers is not None:
            processes = workers.processes
            workers.close()
            assert gone(processes, 0.5)


class Ledger(Budget):
    """Writes down what is charged, in its order."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.charges: list[dict[str, int]] = []

    def charge(self, **amounts: int) -> None:
        super().charge(**amounts)
        self.charges.append(amounts)


def iteration(
    environment: Environment, workers: EnvironmentWorkers | None, tasks: int = 4, engine: Gathering | None = None, env_steps: int = 100_000
) -> RolloutContext:
    budget, everything = Ledger(Limits(env_steps=env_steps)), environment.tasks("train")
    engine = in_step(workers, engine or Gathering())
    return RolloutContext(environment, engine, everything[:tasks], 0, Streams(0), budget, Sampling(), 6, "obs", pool=everything, workers=workers)


def collected(batches: AsyncIterator[TurnBatch]) -> list[TurnBatch]:
    """All batches of an iteration, at the end or the failure of which nothing is left running, and the event loop has nothing to complain of."""
    complaints: list[dict[str, Any]] = []

    async def collect() -> list[TurnBatch]:
        asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))
        try:
            return [turns async for turns in batches]
        finally:
            assert asyncio.all_tasks() == {asyncio.current_task()}, "something is still running"

    try:
        return asyncio.run(collect())
    finally:
        assert complaints == []


def play_grouped(environment: Environment, workers: EnvironmentWorkers | None, group_size: int = 3) -> TurnBatch:
    return collected(GroupedSampler(group_size).collect(iteration(environment, workers), None))[0]


def told(turns: TurnBatch) -> list[tuple[Any, ...]]:
    extras = turns.extras
    columns = [turns.group_id, turns.traj_id, turns.step_id, turns.step_reward, turns.anchor_obs, *(extras[name] for name in sorted(extras))]
    return list(zip(*(np.asarray(column).tolist() for column in columns), strict=True))


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(processes: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(alive, processes))


class Varying(Told):
    """Asks for none to four samples, whatever the state is."""

    def samples(self, task_key: str, key: str, root: bool) -> int:
        return 4 if root else int(key.split()[2]) % 5


SAMPLERS = {
    "grouped": lambda run: GroupedSampler(3).collect(run, None),
    "greedy_baseline": lambda run: GreedyBaselineSampler(2).collect(run, None),
    "segment_tree": lambda run: SegmentTreeSampler((2, 2, 2), 2).collect(run, None),
    "monte_carlo": lambda run: Asking(MonteCarloSampler(2, 2)).collect(run),
    "adaptive_tree": lambda run: Varying(search_key="place", env_steps_per_tree=20).collect(run),
    "first_completed": lambda run: Noting(collection="first_completed", offline_rollouts=1).collect(run),
}
