"""The sampler ``grouped``: what is in its batch, and that nothing but names decides what is drawn."""

from __future__ import annotations

import asyncio
from collections import Counter

import numpy as np
import pytest

from tests.rollout.players import Drawing, Knowing, context, household
from threespo_bench.contracts.sampler import RolloutContext
from threespo_bench.rollout.grouped import GroupedSampler
from threespo_bench.turns import TurnBatch


def collect(run: RolloutContext, group_size: int = 3) -> TurnBatch:
    async def gather() -> list[TurnBatch]:
        return [turns async for turns in GroupedSampler(group_size).collect(run, None)]  # type: ignore[arg-type]

    batches = asyncio.run(gather())
    assert len(batches) == 1
    return batches[0]


def episodes(turns: TurnBatch) -> dict[str, list[tuple[object, ...]]]:
    """Trajectory -> what was seen and said in it."""
    found: dict[str, list[tuple[object, ...]]] = {}
    for row in range(len(turns)):
        told = (int(turns.step_id[row]), turns.extras["observation"][row], turns.extras["command"][row], turns.next_anchor_obs[row])
        found.setdefault(turns.traj_id[row], []).append(told)
    return found


def test_groups_and_trajectories() -> None:
    environment = household()
    tasks = environment.tasks("train")[:4]
    turns = collect(context(environment, Drawing(), tasks, iteration=7))
    assert set(turns.group_id) == {"7/0", "7/1", "7/2", "7/3"}
    assert set(turns.traj_id) == {f"7/{place}/{branch}" for place in range(4) for branch in range(3)}
    for group in set(turns.group_id):
        rows = turns.group_id == group
        assert set(turns.task_key[rows]) == {tasks[int(group[2:])].key}
        assert len(set(turns.anchor_obs[rows & (turns.step_id == 0)])) == 1, "rollouts of a group start in the same state"
    for turns_of_one in episodes(turns).values():
        assert [told[0] for told in turns_of_one] == list(range(len(turns_of_one)))


def test_the_states_of_a_trajectory_are_a_chain_and_only_its_last_turn_ends_it() -> None:
    environment = household()
    turns = collect(context(environment, Drawing(), environment.tasks("train")[:3]))
    for trajectory in set(turns.traj_id):
        rows = np.flatnonzero(turns.traj_id == trajectory)
        assert (turns.next_anchor_obs[rows[:-1]] == turns.anchor_obs[rows[1:]]).all()
        ended = turns.terminated[rows] | turns.truncated[rows]
        assert ended.tolist() == [False] * (len(rows) - 1) + [True]


def test_a_goal_out_of_reach_gives_truncation_and_no_success() -> None:
    environment = household()
    turns = collect(context(environment, Drawing(), environment.tasks("train")[:4], max_turns=2))
    last = turns.step_id == 1
    assert last.sum() == 12
    assert turns.truncated.tolist() == last.tolist()
    assert not turns.terminated.any() and not turns.success.any()
    assert (turns.episode_return() == 0).all()


def test_success_is_termination_and_pays_its_own_episode_only() -> None:
    environment = household()
    tasks = environment.tasks("train")[:4]
    turns = collect(context(environment, Knowing(environment, tasks[:2]), tasks, max_turns=20))
    won = np.isin(turns.task_key, [task.key for task in tasks[:2]])
    assert (turns.episode_return()[won] == 10).all() and (turns.episode_return()[~won] == 0).all()
    assert (turns.terminated == turns.success).all()
    assert not turns.truncated[won].any()
    assert turns.truncated[~won & (turns.step_id == 19)].all()
    before = turns.episode_return()[turns.traj_id == "0/0/0"]
    turns.step_reward[turns.traj_id == "0/0/1"] = 77.0
    assert (turns.episode_return()[turns.traj_id == "0/0/0"] == before).all()


def test_what_is_spent_is_counted_to_the_last_token() -> None:
    environment = household()
    ticks = []
    run = context(environment, Drawing(), environment.tasks("train")[:3], tick=lambda: ticks.append(1))
    turns = collect(run)
    spent = run.budget.spent
    assert spent.env_steps == len(turns) == len(ticks)
    assert spent.tokens == turns.response_mask.sum()
    assert spent.prompt_tokens == sum(map(len, turns.prompt_ids))
    assert spent.episodes == 9


def test_equal_runs_give_equal_batches_and_other_iterations_and_seeds_do_not() -> None:
    environment = household()
    tasks = environment.tasks("train")[:3]
    first, again, later, other = (
        collect(context(environment, Drawing(), tasks, iteration=iteration, seed=seed)) for iteration, seed in ((0, 0), (0, 0), (1, 0), (0, 1))
    )
    assert episodes(first) == episodes(again)
    assert np.array_equal(first.response_ids, again.response_ids)
    commands = [[told[2] for key in sorted(found) for told in found[key]] for found in map(episodes, (first, later, other))]
    assert commands[0] != commands[1] and commands[0] != commands[2]


def test_what_one_rollout_draws_depends_on_no_other_rollout() -> None:
    environment = household()
    tasks = environment.tasks("train")[:4]
    small = episodes(collect(context(environment, Drawing(), tasks[:2]), group_size=2))
    large = episodes(collect(context(environment, Drawing(), tasks), group_size=5))
    assert len(large) == 20
    assert {key: large[key] for key in small} == small


def test_every_request_has_a_seed_of_its_own() -> None:
    environment, policy = household(), Drawing()
    turns = collect(context(environment, policy, environment.tasks("train")[:4]), group_size=4)
    seeds = Counter(seed for _, seed, _ in policy.requests)
    assert len(seeds) == len(policy.requests) == len(turns)


@pytest.mark.parametrize("group_size", [1, 6])
def test_group_size(group_size: int) -> None:
    environment = household()
    turns = collect(context(environment, Drawing(), environment.tasks("train")[:2]), group_size=group_size)
    assert len(set(turns.traj_id)) == 2 * group_size
