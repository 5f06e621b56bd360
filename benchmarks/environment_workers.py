"""What environment workers gain with slow environments and what they cost with fast ones: seconds of the same episodes with and without them.

    python benchmarks/environment_workers.py [--workers N ...] [--delay MILLISECONDS ...] [--episodes N] [--trees N ...] [--turns N] [--repeat N]

The policy costs nothing, so what is measured is environments and the way to them. "sleeping" waits in each step, as a simulator on another machine
or a GPU does; it leaves the processor to others. "household" is the built-in environment, whose steps take microseconds. Overhead is the wall time that a
worker's answer takes beyond the step itself, one episode at a time. "3spo" is one iteration of that method with so many trees: its search and its credit.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import numpy as np
from sleeping_world import Sleeping, SleepingConfig

from threespo_algorithms.threespo import ThreeSPO, ThreeSPOConfig
from threespo_bench.budget import Budget, Limits
from threespo_bench.contracts.engine import Generation, RolloutEngine, Sampling
from threespo_bench.contracts.environment import Environment, Message
from threespo_bench.contracts.rollout import RolloutOptions
from threespo_bench.contracts.sampler import RolloutContext
from threespo_bench.rollout.environment_workers import EnvironmentWorkers, start_workers
from threespo_bench.rollout.episode import Episode
from threespo_bench.seeding import Streams
from threespo_envs.household.environment import HouseholdConfig, HouseholdEnvironment


def said(command: str) -> Generation:
    """A response that costs nothing."""
    return Generation(np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(1, np.float32), command, 0, finished=True)


async def play(environment: Environment, workers: EnvironmentWorkers | None, episodes: int, turns: int, at_once: bool) -> float:
    """Seconds a step of ``episodes`` episodes; their beginnings are not counted."""
    live = [Episode(environment, turns + 1, environment.anchors[0], workers) for _ in range(episodes)]
    tasks = environment.tasks("train")
    await asyncio.gather(*(episode.start(tasks[i % len(tasks)], 0) for i, episode in enumerate(live)))
    answer = said("look")

    async def one(episode: Episode) -> None:
        for _ in range(turns):
            await episode.act(answer)

    began = time.perf_counter()
    if at_once:
        await asyncio.gather(*map(one, live))
    else:
        for episode in live:
            await one(episode)
    return (time.perf_counter() - began) / (episodes * turns)


class Saying(RolloutEngine):
    """A policy that costs nothing."""

    version = 0

    async def generate(self, messages: list[Message], seed: int, sampling: Sampling, prefix: Sequence[int] = ()) -> Generation:
        return said("look")

    def encode(self, messages: list[Message], response: str | None = None) -> np.ndarray:
        return np.zeros(1, np.int32)


async def search(environment: Environment, workers: EnvironmentWorkers | None, trees: int, turns: int) -> float:
    """Seconds a step of an iteration of 3SPO on ``trees`` tasks, in trees of 80 steps."""
    algorithm = ThreeSPO(ThreeSPOConfig(anchor="obs", search_key="obs", graph_search=False, env_steps_per_tree=80))
    tasks, budget = environment.tasks("train")[:trees], Budget(Limits(iterations=1))
    run = RolloutContext(environment, Saying(), tasks, 0, Streams(0), budget, Sampling(), turns, "obs", workers=workers)
    began = time.perf_counter()
    async for batch in algorithm.collect(run):
        algorithm.credit(batch)
        algorithm.observe(batch, lambda turns: turns.old_log_probs)
    return (time.perf_counter() - began) / budget.spent.env_steps


Play = Callable[[Environment, EnvironmentWorkers | None], Coroutine[Any, Any, float]]


def measure(environment: Environment, counts: Sequence[int], repeat: int, play_once: Play) -> dict[int, float]:
    """Seconds a step for each number of workers: the median of runs that take turns."""
    pools = {count: start_workers(environment, RolloutOptions(environment_workers=count)) for count in counts}
    found: dict[int, list[float]] = {count: [] for count in counts}
    try:
        for number in range(repeat + 1):
            for count, workers in pools.items():
                seconds = asyncio.run(play_once(environment, workers))
                if number:  # the first starts the processes
                    found[count].append(seconds)
    finally:
        for workers in pools.values():
            if workers is not None:
                workers.close()
    return {count: statistics.median(seconds) for count, seconds in found.items()}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--delay", type=float, nargs="+", default=[5.0, 50.0])
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--trees", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    episodes = partial(play, episodes=options.episodes, turns=options.turns, at_once=True)
    searches = {f"3spo, trees: {trees}": partial(search, trees=trees, turns=options.turns) for trees in options.trees}
    for delay in options.delay:
        for name, play_once in ({"episodes": episodes} | searches).items():
            seconds = measure(Sleeping(SleepingConfig(delay / 1000)), [0, *options.workers], options.repeat, play_once)
            for count, value in seconds.items():
                times = seconds[0] / value
                print(f"{name}, sleeping {delay:g} ms, {count} workers: {1000 * value:.2f} ms a step, {times:.2f} times as fast as without workers")
    one_by_one = partial(play, episodes=options.episodes, turns=10 * options.turns, at_once=False)
    seconds = measure(HouseholdEnvironment(HouseholdConfig()), [0, 1], options.repeat, one_by_one)
    overhead = 1e6 * (seconds[1] - seconds[0])
    print(f"household: {1e6 * seconds[0]:.1f} us a step without workers, {1e6 * seconds[1]:.1f} us with one (overhead {overhead:.0f} us)")


if __name__ == "__main__":
    main()
