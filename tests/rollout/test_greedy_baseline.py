"""The sampler ``greedy_baseline``: what is sampled, what is greedy, and what each is used for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import numpy as np

from tests.rollout.players import Drawing, Knowing, Player, context, household
from threespo_algorithms.remax import ReMax, ReMaxConfig
from threespo_bench.contracts.engine import Generation, Sampling
from threespo_bench.contracts.sampler import RolloutContext, Sampler
from threespo_bench.rollout.greedy_baseline import GreedyBaselineSampler
from threespo_bench.rollout.grouped import GroupedSampler
from threespo_bench.turns import TurnBatch


def collect(run: RolloutContext, sampler: Sampler) -> TurnBatch:
    async def gather() -> list[TurnBatch]:
        return [turns async for turns in sampler.collect(run, None)]  # type: ignore[arg-type]

    batches = asyncio.run(gather())
    assert len(batches) == 1
    return batches[0]


class GreedyKnows(Player):
    """Knows the way if it is asked for its most probable answer, and draws a command else."""

    def __init__(self, knowing: Player) -> None:
        super().__init__()
        self._knowing, self._drawing = knowing, Drawing()

    async def generate(self, messages: list[dict[str, str]], seed: int, sampling: Sampling, prefix: Sequence[int] = ()) -> Generation:
        self.requests.append((messages[-1]["content"], seed, sampling))
        return await (self._knowing if sampling.temperature == 0 else self._drawing).generate(messages, seed, sampling, prefix)


def test_the_greedy_return_of_the_task_is_the_baseline_of_its_sampled_episodes() -> None:
    environment = household()
    tasks = environment.tasks("train")[:2]
    solved = {tasks[0].key}
    turns = collect(context(environment, GreedyKnows(Knowing(environment, tasks[:1])), tasks, max_turns=12), GreedyBaselineSampler(2))
    expected = [10.0 if key in solved else 0.0 for key in turns.task_key]
    assert turns.extras["baseline_return"].tolist() == expected
    assert (turns.episode_return() < 10).any()
    assert set(turns.traj_id) == {f"0/{place}/{branch}" for place in range(2) for branch in range(2)}
    advantages = ReMax(ReMaxConfig(invalid_action_penalty=0)).credit(turns).advantages
    np.testing.assert_array_equal(advantages[:, 0], turns.episode_return() - np.array(expected))


def test_greedy_turns_are_charged_and_not_in_the_batch() -> None:
    environment, policy = household(), GreedyKnows(Drawing())
    ticks: list[int] = []
    run = context(environment, policy, environment.tasks("train")[:2], tick=lambda: ticks.append(1))
    turns = collect(run, GreedyBaselineSampler(2))
    greedy = [sampling for _, _, sampling in policy.requests if sampling.temperature == 0]
    sampled = [sampling for _, _, sampling in policy.requests if sampling.temperature != 0]
    assert len(sampled) == len(turns) and set(sampled) == {run.sampling}
    assert greedy and set(greedy) == {Sampling(temperature=0.0, max_new_tokens=run.sampling.max_new_tokens)}
    assert run.budget.spent.env_steps == len(policy.requests) == len(ticks)
    assert run.budget.spent.tokens > turns.response_mask.sum()
    assert run.budget.spent.episodes == 2 * (2 + 1)


def test_sampled_episodes_are_those_of_the_grouped_sampler() -> None:
    environment = household()
    tasks = environment.tasks("train")[:2]
    ours = collect(context(environment, Drawing(), tasks, iteration=4), GreedyBaselineSampler(2))
    grouped = collect(context(environment, Drawing(), tasks, iteration=4), GroupedSampler(2))
    for column in ("group_id", "traj_id", "step_id", "step_reward", "response_ids", "next_anchor_obs"):
        assert np.array_equal(getattr(ours, column), getattr(grouped, column)), column


def test_every_request_has_a_seed_of_its_own_and_equal_runs_are_equal() -> None:
    environment = household()
    first, again = Drawing(), Drawing()
    batches = [collect(context(environment, policy, environment.tasks("train")[:2]), GreedyBaselineSampler(2)) for policy in (first, again)]
    assert max(Counter(seed for _, seed, _ in first.requests).values()) == 1
    assert Counter(first.requests) == Counter(again.requests)
    assert np.array_equal(batches[0].extras["baseline_return"], batches[1].extras["baseline_return"])
    assert np.array_equal(batches[0].response_ids, batches[1].response_ids)
