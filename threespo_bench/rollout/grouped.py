"""The sampler ``grouped``: n rollouts of every task, all in parallel, one batch an iteration (GRPO, GiGPO and their relatives)."""

from __future__ import annotations

from collections.abc import AsyncIterator

from threespo_bench.contracts.algorithm import Algorithm
from threespo_bench.contracts.environment import Task
from threespo_bench.contracts.sampler import RolloutContext, Sampler
from threespo_bench.rollout.batching import make_batch
from threespo_bench.rollout.concurrency import together
from threespo_bench.rollout.episode import PlayedTurn
from threespo_bench.rollout.playing import begin, play
from threespo_bench.turns import TurnBatch


class GroupedSampler(Sampler):
    """Plays ``group_size`` independent rollouts of each task of the iteration to their end.

    Args:
        group_size: rollouts of one task; they share the task, the environment's seed and the group id.
    """

    def __init__(self, group_size: int) -> None:
        self.group_size = group_size

    async def collect(self, context: RolloutContext, algorithm: Algorithm) -> AsyncIterator[TurnBatch]:
        """One batch: the turns of all rollouts, trajectory by trajectory."""
        branches = [(place, task, branch) for place, task in enumerate(context.tasks) for branch in range(self.group_size)]
        episodes = await together(_play(context, place, task, branch) for place, task, branch in branches)
        turns = [turn for episode in episodes for turn in episode]
        groups = [f"{context.iteration}/{place}" for (place, _, _), episode in zip(branches, episodes, strict=True) for _ in episode]
        trajectories = [f"{context.iteration}/{place}/{b}" for (place, _, b), episode in zip(branches, episodes, strict=True) for _ in episode]
        yield make_batch(turns, groups, trajectories)

    def most_env_steps(self, tasks: int, max_turns: int) -> int:
        """All rollouts at the step limit."""
        return tasks * self.group_size * max_turns


async def _play(context: RolloutContext, place: int, task: Task, branch: int) -> list[PlayedTurn]:
    return await play(context, await begin(context, task), lambda turn: context.streams.integer("sample", context.iteration, place, branch, turn))
