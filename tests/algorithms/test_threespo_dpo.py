"""3SPO-DPO: the search and the history of 3SPO, pairs at every expanded state."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from tests.algorithms.scripted import Edges, ScriptedEnvironment, ScriptedPolicy, context
from threespo_algorithms.threespo import ThreeSPO, ThreeSPOConfig
from threespo_algorithms.threespo_dpo import ThreeSPODPO, ThreeSPODPOConfig
from threespo_bench.contracts.algorithm import Credit
from threespo_bench.errors import DataError, UsageError
from threespo_bench.testing import check_algorithm
from threespo_bench.turns import TurnBatch

TREE: Edges = {"s1": [("s2", None), ("s3", None), ("s1", None)], "s2": [("s4", True), ("s5", False), ("s3", None)], "s3": [("s4", True)]}
OPTIONS = {"novelty": "changed", "env_steps_per_tree": 7, "tasks_per_iteration": 2}


def search(kind: type[ThreeSPO] = ThreeSPODPO, **options: Any) -> tuple[ThreeSPO, list[TurnBatch], list[Credit]]:
    """The search of the tree with as many samples as it draws, credited and observed wave by wave."""

    class AsDrawn(kind):
        def samples(self, task_key: str, key: str, root: bool) -> int:
            return len(TREE[key])

    algorithm = AsDrawn(kind.Config(**{**OPTIONS, **options}))
    waves, credits = [], []

    async def collect() -> None:
        async for turns in algorithm.collect(context(ScriptedEnvironment(TREE, "s1"), ScriptedPolicy())):
            waves.append(turns)
            credits.append(algorithm.credit(turns))
            algorithm.observe(turns, lambda batch: np.zeros(batch.response_mask.shape))

    asyncio.run(collect())
    return algorithm, waves, credits


def pairs(credit: Credit) -> list[tuple[int, int]]:
    found = credit.preferences
    return [(int(better.rows[0]), int(worse.rows[0])) for better, worse in zip(found.chosen, found.rejected, strict=True)]


def wave(**options: Any) -> tuple[ThreeSPODPO, TurnBatch]:
    """The children of s2: a success, a failure and a way on."""
    _, waves, _ = search()
    turns = next(turns for turns in waves if turns.anchor_obs[0] == "s2")
    return ThreeSPODPO(ThreeSPODPOConfig(**{**OPTIONS, **options})), turns


def test_the_best_and_the_worst_child_of_every_state():
    algorithm, waves, credits = search()
    assert [turns.anchor_obs[0] for turns in waves[:2]] == ["s1", "s2"]
    assert algorithm.transition_reward(waves[0]).tolist() == [0.5, 0.5, 0]  # unseen states: novelty alone
    assert pairs(credits[0]) == [(0, 2)]
    assert algorithm.transition_reward(waves[1]).tolist() == [1, 0.5, 0.5]
    assert pairs(credits[1]) == [(0, 2)]  # the later one of equals is the worse
    np.testing.assert_allclose(credits[0].advantages[:, 0], [0.05, 0, -0.05], atol=1e-12)
    assert credits[0].selected.tolist() == [True, False, True]


def test_each_expanded_state_has_its_own_pair():
    algorithm, turns = wave()
    other = turns.take(np.arange(3))
    other.group_id[:] = "another"
    other.traj_id = np.array(["x", "y", "z"], object)
    assert len(pairs(algorithm.credit(TurnBatch.concatenate([turns, other])))) == 2


def test_search_and_history_are_those_of_3spo():
    ours, waves, _ = search()
    plain, plain_waves, _ = search(ThreeSPO)
    assert [list(turns.traj_id) for turns in waves] == [list(turns.traj_id) for turns in plain_waves]
    assert ours.history._counts == plain.history._counts and ours.history.clock == plain.history.clock


def test_equal_commands_are_no_pair():
    algorithm, turns = wave()
    turns.extras["command"][1] = turns.extras["command"][0]
    assert pairs(algorithm.credit(turns)) == [(0, 2)]
    turns.extras["command"][2] = turns.extras["command"][0]
    credit = algorithm.credit(turns)
    assert pairs(credit) == [] and (credit.advantages == 0).all() and credit.scale == 0


@pytest.mark.parametrize(("min_gap", "made"), [(0.05, 1), (0.5, 1), (0.51, 0)])
def test_a_gap_must_be_large_enough(min_gap, made):
    algorithm, turns = wave(min_gap=min_gap)
    assert len(pairs(algorithm.credit(turns))) == made


def test_equal_children_make_no_pair():
    algorithm, turns = wave(min_gap=0.0)
    turns.success[:] = False
    assert pairs(algorithm.credit(turns)) == []


@pytest.mark.parametrize(("mode", "expected"), [("exclude", [(0, 2)]), ("include", [(0, 2)]), ("penalise", [(0, 1)]), ("penalise_after", [(0, 1)])])
def test_an_invalid_action_can_lose(mode, expected):
    algorithm, turns = wave(invalid_actions=mode, invalid_action_penalty=0.3)
    turns.action_valid[1] = False
    assert pairs(algorithm.credit(turns)) == expected
    turns.action_valid[:] = [True, True, False]
    assert pairs(algorithm.credit(turns)) == ([(0, 1)] if mode == "exclude" else [(0, 2)])


def test_an_invalid_action_cannot_win():
    algorithm, turns = wave(invalid_actions="include")
    turns.action_valid[0] = False  # a success, by an action that is none
    assert pairs(algorithm.credit(turns)) == []
    turns.action_valid[:] = False
    assert pairs(algorithm.credit(turns)) == []


def test_a_wave_moves_the_policy_in_proportion_to_its_pairs():
    algorithm, turns = wave()
    assert algorithm.credit(turns).scale == 0.5
    whole, turns = wave(scale_small_waves=False)
    assert whole.credit(turns).scale == 1.0


def test_diagnostics_are_those_of_3spo_and_of_preferences():
    algorithm, turns = wave()
    diagnostics = algorithm.credit(turns).diagnostics
    assert diagnostics.keys() >= ThreeSPO(ThreeSPOConfig()).credit(turns).diagnostics.keys()
    assert diagnostics["preference/chosen"] == 1


def test_the_search_ranks_without_a_command():
    algorithm, turns = wave()
    del turns.extras["command"]
    assert np.isfinite(algorithm.rank(turns)).all()
    with pytest.raises(DataError, match="threespo_dpo needs the column command"):
        algorithm.credit(turns)


@pytest.mark.parametrize("mode", ["exclude", "include", "penalise", "penalise_after"])
def test_contract(mode):
    _, turns = wave()
    turns.action_valid[1] = False
    check_algorithm(ThreeSPODPO, ThreeSPODPOConfig(invalid_actions=mode, **OPTIONS), turns=turns)


@pytest.mark.parametrize("option", [{"min_gap": -1}, {"reference_update_iterations": -1}, {"alpha": -1}])
def test_bad_options(option):
    with pytest.raises(UsageError, match=next(iter(option))):
        ThreeSPODPOConfig(**option).validate()
