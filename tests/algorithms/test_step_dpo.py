"""Step-DPO: which turns are compared, and by what."""

from __future__ import annotations

import numpy as np
import pytest

from tests.algorithms.batches import b1
from threespo_algorithms.step_dpo import StepDPO, StepDPOConfig
from threespo_bench.errors import DataError, UsageError
from threespo_bench.testing import check_algorithm
from threespo_bench.turns import TurnBatch, object_column


def recorded(commands: str = "abcdefgh", prompts=None) -> TurnBatch:
    """B1, all turns with the same prompt, each with a command of its own."""
    batch = b1()
    batch.prompt_ids = object_column([np.array(prompt, np.int32) for prompt in prompts or [[1, 2]] * 8])
    batch.extras["command"] = object_column(list(commands))
    return batch


def pairs(batch: TurnBatch, **options) -> list[tuple[int, int]]:
    found = StepDPO(StepDPOConfig(**options)).credit(batch).preferences
    assert all(len(item.rows) == 1 and item.weights.tolist() == [1] for item in [*found.chosen, *found.rejected])
    return [(int(better.rows[0]), int(worse.rows[0])) for better, worse in zip(found.chosen, found.rejected, strict=True)]


def test_turns_that_acted_in_one_state():
    """In s0 the turns A0, B0, C0, C1, in s1 A1, B1, C2, in s2 A2 alone; all but those of A have return 0."""
    assert pairs(recorded()) == [(0, 6), (1, 7)]
    assert pairs(recorded(), pairing="adjacent") == [(0, 3), (1, 4)]  # the others are ties


def test_the_states_of_two_tasks_are_two_states():
    batch = recorded()
    batch.group_id[3:] = "other"
    assert pairs(batch) == []


def test_the_prompt_must_be_the_same():
    batch = recorded(prompts=[[1, 2]] * 6 + [[1, 2, 3]] + [[1, 2]])
    assert pairs(batch) == [(0, 5), (1, 7)]


def test_the_same_action_is_not_better_than_itself():
    assert pairs(recorded("abcadfah")) == [(0, 5), (1, 7)]  # B0 and C1 did what A0 did
    assert pairs(recorded("aaaaaaaa")) == []


def test_without_commands_responses_are_compared():
    batch = recorded()
    del batch.extras["command"]
    batch.response_ids = np.where(batch.response_mask, 5, 0)
    assert pairs(batch) == [(0, 5), (1, 4)]  # A0, B0 and C1 say the same, as do A1 and C2
    batch.response_ids = None
    with pytest.raises(DataError, match="without the column command, step_dpo needs the column response_ids"):
        pairs(batch)


def test_the_sooner_success_is_preferred():
    batch = recorded()
    batch.step_reward[7] = 10  # now C wins, too: in s0 with C1 after two turns, and with A0 and C0 after three; in s1 with C2 at once and with A1 after two
    assert pairs(batch) == [(6, 3), (7, 4)]
    assert pairs(batch, pairing="adjacent") == [(1, 4), (5, 3), (6, 0), (7, 1)]


def test_ties_and_gaps():
    batch = recorded()
    batch.step_reward[:] = 0
    assert pairs(batch) == []
    assert pairs(recorded(), min_gap=9.1) == [(1, 7)]  # 9.025 in s0 and 9.5 in s1


def test_invalid_actions_lose_only():
    batch = recorded()
    batch.action_valid[[0, 6]] = False
    assert pairs(batch) == [(1, 7)]
    batch.action_valid[:] = True
    batch.action_valid[6] = False
    assert pairs(batch) == [(0, 6), (1, 7)]


def test_mixed_pairs_of_a_state():
    batch = recorded()
    with pytest.raises(DataError, match="step_dpo needs the column success"):
        pairs(batch, pairing="all_mixed")
    batch.success = np.arange(8) == 2
    assert pairs(batch, pairing="all_mixed") == [(0, 3), (0, 5), (0, 6), (1, 4), (1, 7)]


def test_credit_is_on_the_turns_of_the_pairs():
    advantages = StepDPO(StepDPOConfig()).credit(recorded()).advantages
    assert advantages[:, 0].tolist() == [0.05, 0.05, 0, 0, 0, 0, -0.05, -0.05]
    assert (advantages[~b1().response_mask] == 0).all()


@pytest.mark.parametrize("pairing", ["best_worst", "all_mixed", "adjacent"])
def test_contract(pairing):
    check_algorithm(StepDPO, StepDPOConfig(pairing=pairing))
    check_algorithm(StepDPO, StepDPOConfig(pairing="adjacent"), recorded())


@pytest.mark.parametrize("option", [{"group_size": 1}, {"gamma": 1.5}, {"pairing": "x"}])
def test_bad_options(option):
    with pytest.raises(UsageError, match=next(iter(option))):
        StepDPOConfig(**option).validate()
