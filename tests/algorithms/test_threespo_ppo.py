"""3SPO-PPO: the search and the history of 3SPO, advantages by a critic."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.algorithms.scripted import Edges, ScriptedEnvironment, ScriptedPolicy, context
from threespo_algorithms.threespo import ThreeSPO, ThreeSPOConfig
from threespo_algorithms.threespo_ppo import ThreeSPOPPO, ThreeSPOPPOConfig
from threespo_bench.completion import VALUE_NEEDS, complete
from threespo_bench.contracts.algorithm import Credit
from threespo_bench.contracts.engine import Learner
from threespo_bench.errors import DataError, UsageError
from threespo_bench.testing import check_algorithm
from threespo_bench.turns import TurnBatch

TREE: Edges = {"s1": [("s2", None), ("s3", None)], "s2": [("s4", True), ("s5", False), ("s3", None)], "s3": [("s4", True)]}
WORTH = {1: 0.3, 2: 0.4, 3: 0.2, 4: 9.0, 5: 9.0}
"""Value of each state; the last two end the task, so that theirs must never be read."""


class Policy(ScriptedPolicy):
    """Its prompts are the numbers of the states."""

    def encode(self, messages, response=None) -> np.ndarray:
        return np.array([int(messages[0]["content"][1:])], np.int32)


class Values:
    """A learner that knows what each state is worth."""

    def values(self, turns: TurnBatch) -> np.ndarray:
        worth = np.array([WORTH[int(key[1:])] for key in turns.anchor_obs])
        return np.where(turns.response_mask, worth[:, None], 0.0)

    def prompt_values(self, prompts: Sequence[np.ndarray]) -> np.ndarray:
        return np.array([WORTH[int(prompt[0])] if len(prompt) else 0.0 for prompt in prompts])

    update = score = update_critic = None


class AsDrawn(ThreeSPOPPO):
    """Samples as many actions as the tree draws."""

    def samples(self, task_key: str, key: str, root: bool) -> int:
        return len(TREE[key])


def search(kind: type[ThreeSPO] = AsDrawn, **options: Any) -> tuple[ThreeSPO, list[TurnBatch], list[Credit]]:
    """The whole search of the tree, credited and observed wave by wave."""
    config = kind.Config(**{"novelty": "changed", "minimum_std": 0.0, **options})
    algorithm, waves, credits = kind(config), [], []
    run = replace(context(ScriptedEnvironment(TREE, "s1"), Policy()), keep_next_prompt=bool(algorithm.needs & VALUE_NEEDS))
    learner: Learner = Values()  # type: ignore[assignment]

    async def collect() -> None:
        async for turns in algorithm.collect(run):
            complete(turns, algorithm.needs, learner)
            waves.append(turns)
            credits.append(algorithm.credit(turns))
            algorithm.observe(turns, lambda batch: np.zeros(batch.response_mask.shape))

    asyncio.run(collect())
    return algorithm, waves, credits


def test_advantage_is_the_temporal_difference_whitened_over_the_wave():
    algorithm, waves, credits = search(gamma=0.9)
    assert [len(wave) for wave in waves[:2]] == [2, 3]
    root, second = waves[:2]
    np.testing.assert_array_equal(root.extras["next_value"], [0.4, 0.2])
    np.testing.assert_array_equal(second.extras["next_value"], [0, 0, 0.2])
    reward = algorithm.transition_reward(second)
    target = reward + 0.9 * np.array([0, 0, 0.2])
    np.testing.assert_allclose(credits[1].returns, target, atol=1e-12)
    difference = target - 0.4
    np.testing.assert_allclose(credits[1].advantages[:, 0], (difference - difference.mean()) / (difference.std(ddof=1) + 1e-6), atol=1e-12)
    np.testing.assert_allclose(credits[0].returns, algorithm.transition_reward(root) + np.array([0.36, 0.18]), atol=1e-12)


def test_search_history_and_reward_are_those_of_3spo():
    class Plain(ThreeSPO):
        samples = AsDrawn.samples

    ours, waves, _ = search()
    plain, plain_waves, _ = search(Plain)
    assert [list(wave.traj_id) for wave in waves] == [list(wave.traj_id) for wave in plain_waves]
    assert ours.history._counts == plain.history._counts and ours.history.clock == plain.history.clock
    for mine, theirs in zip(waves, plain_waves, strict=True):
        np.testing.assert_array_equal(ours.transition_reward(mine), plain.transition_reward(theirs))


def test_an_only_child_is_learned_from_by_its_raw_advantage():
    algorithm, waves, credits = search()
    alone = next(i for i, wave in enumerate(waves) if len(wave) == 1)
    assert credits[alone].selected.tolist() == [True]
    expected = algorithm.transition_reward(waves[alone]) - 0.2  # the task ends there
    np.testing.assert_allclose(credits[alone].advantages[:, 0], expected, atol=1e-12)


def second_wave(**options: Any) -> tuple[ThreeSPOPPO, TurnBatch]:
    algorithm, waves, _ = search(**options)
    waves[1].action_valid[1] = False
    return algorithm, waves[1]


def test_invalid_actions_take_no_part():
    algorithm, turns = second_wave(invalid_actions="exclude")
    credit = algorithm.credit(turns)
    assert credit.selected.tolist() == [True, False, True] and (credit.advantages[1] == 0).all()
    np.testing.assert_allclose(credit.advantages[[0, 2], 0], [np.sqrt(0.5), -np.sqrt(0.5)], atol=1e-4)


def test_penalty_after_whitening():
    _, turns = second_wave()
    configs = [ThreeSPOPPOConfig(invalid_actions=mode, invalid_action_penalty=0.6) for mode in ("include", "penalise_after")]
    free, charged = (ThreeSPOPPO(config).credit(turns).advantages[:, 0] for config in configs)
    np.testing.assert_allclose(free - charged, [0, 0.6, 0], atol=1e-12)


def test_a_cut_branch_goes_on_with_the_value_of_its_state():
    algorithm, waves, _ = search()
    turns = waves[1]
    turns.truncated[2], before = True, algorithm.credit(turns).returns
    np.testing.assert_array_equal(algorithm.credit(turns).returns, before)
    turns.terminated[2] = True
    assert algorithm.credit(turns).returns[2] == pytest.approx(before[2] - 0.95 * 0.2)


@pytest.mark.parametrize("mode", ["exclude", "include", "penalise", "penalise_after"])
def test_contract(mode):
    _, turns = second_wave()
    check_algorithm(ThreeSPOPPO, ThreeSPOPPOConfig(invalid_actions=mode, novelty="changed"), turns=turns)


def test_what_is_in_padding_or_after_the_end_does_not_matter():
    algorithm, turns = second_wave()
    plain = algorithm.credit(turns)
    padded = turns.take(np.array([0, 1, 2, 0]))
    padded.padding = np.array([False, False, False, True])
    padded.values[3], padded.extras["next_value"][[0, 1, 3]] = np.nan, np.nan
    credit = algorithm.credit(padded)
    np.testing.assert_allclose(credit.advantages[:3], plain.advantages, atol=1e-12)
    assert (credit.advantages[3] == 0).all() and credit.returns[3] == 0 and not credit.selected[3]
    assert all(np.isfinite(value) for value in credit.diagnostics.values())


def test_diagnostics_are_those_of_3spo_and_of_the_critic():
    _, turns = second_wave()
    diagnostics = ThreeSPOPPO(ThreeSPOPPOConfig()).credit(turns).diagnostics
    assert diagnostics["critic/mean_value"] == pytest.approx(0.4)
    assert diagnostics.keys() >= ThreeSPO(ThreeSPOConfig()).credit(turns).diagnostics.keys()


def test_the_search_ranks_before_there_are_values():
    algorithm, turns = second_wave()
    turns.values = None
    assert np.isfinite(algorithm.rank(turns)).all()
    with pytest.raises(DataError, match="threespo_ppo needs the column values"):
        algorithm.credit(turns)


@pytest.mark.parametrize("option", [{"gamma": 1.5}, {"alpha": -1}])
def test_bad_options(option):
    with pytest.raises(UsageError, match=next(iter(option))):
        ThreeSPOPPOConfig(**option).validate()
