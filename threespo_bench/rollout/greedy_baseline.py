"""The sampler ``greedy_baseline``: sampled rollouts of every task and one greedy episode whose return is their baseline (ReMax)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np

from threespo_bench.contracts.algorithm import Algorithm
from threespo_bench.contracts.engine import Sampling
from threespo_bench.contracts.environment import Task
from threespo_bench.contracts.sampler import RolloutContext, Sampler
from threespo_bench.rollout.batching import make_batch
from threespo_bench.rollout.concurrency import together
from threespo_bench.rollout.episode import PlayedTurn
from threespo_bench.rollout.playing import begin, play
from threespo_bench.turns import TurnBatch


class GreedyBaselineSampler(Sampler):
    """Plays ``rollouts`` sampled episodes and one greedy episode (temperature 0) of each task of the iteration, all in parallel.

    The batch has the sampled turns only. The return of the greedy episode of their task is their column ``baseline_return``; its turns are
    charged to the budget like all others.

    Args:
        rollouts: sampled episodes of one task; they share the task, the environment's seed and the group id.
    """

    def __init__(self, rollouts: int) -> None:
        self.rollouts = rollouts

    async def collect(self, context: RolloutContext, algorithm: Algorithm) -> AsyncIterator[TurnBatch]:
        """One batch: the turns of all sampled rollouts, trajectory by trajectory."""
        places = [(place, branch) for place in range(len(context.tasks)) for branch in range(self.rollouts)]
        episodes = await together(
            [
                *(_sampled(context, place, branch) for place, branch in places),
                *(_greedy(context, place) for place in range(len(context.tasks))),
            ]
        )
        sampled, greedy = episodes[: len(places)], episodes[len(places) :]
        baselines = [sum(turn.reward for turn in episode) for episode in greedy]
        rows = [(place, branch, turn) for (place, branch), episode in zip(places, sampled, strict=True) for turn in episode]
        yield make_batch(
            [turn for _, _, turn in rows],
            [f"{context.iteration}/{place}" for place, _, _ in rows],
            [f"{context.iteration}/{place}/{branch}" for place, branch, _ in rows],
            {"baseline_return": np.array([baselines[place] for place, _, _ in rows], float)},
        )

    def most_env_steps(self, tasks: int, max_turns: int) -> int:
        """All episodes at the step limit, the greedy ones included."""
        return tasks * (self.rollouts + 1) * max_turns


async def _sampled(context: RolloutContext, place: int, branch: int) -> list[PlayedTurn]:
    return await _play(context, context.tasks[place], context.sampling, "sample", context.iteration, place, branch)


async def _greedy(context: RolloutContext, place: int) -> list[PlayedTurn]:
    return await _play(context, context.tasks[place], replace(context.sampling, temperature=0.0), "greedy", context.iteration, place)


async def _play(context: RolloutContext, task: Task, sampling: Sampling, stream: str, *keys: int) -> list[PlayedTurn]:
    return await play(context, await begin(context, task), lambda turn: context.streams.integer(stream, *keys, turn), sampling)
