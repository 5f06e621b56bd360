"""KTO: trajectories as good or bad by themselves."""

from __future__ import annotations

import numpy as np
import pytest

from tests.algorithms.batches import b1, b2
from tests.algorithms.test_preference_pairs import one_turn, scored
from threespo_algorithms.kto import KTO, KTOConfig
from threespo_bench.contracts.objective import Preference
from threespo_bench.errors import UsageError
from threespo_bench.testing import check_algorithm


def rows(batch) -> tuple[list[list[int]], list[list[int]]]:
    found = KTO(KTOConfig()).credit(batch).preferences
    assert not found.paired
    return [item.rows.tolist() for item in found.chosen], [item.rows.tolist() for item in found.rejected]


def won(batch, *winners: int):
    batch.success = np.isin(np.arange(len(batch)), winners)
    return batch


def test_labels():
    assert rows(won(b1(), 2)) == ([[0, 1, 2]], [[3, 4], [5, 6, 7]])
    assert rows(won(b2(), 2, 5)) == ([[0, 1, 2], [3, 4, 5]], [[6, 7, 8]])
    assert rows(won(b2())) == ([], [[0, 1, 2], [3, 4, 5], [6, 7, 8]])


def test_success_and_not_reward_is_what_is_desirable():
    assert rows(one_turn([10, 4, 0])) == ([[0]], [[1], [2]])


def test_labels_follow_the_trajectories_and_not_the_rows():
    order = np.array([7, 2, 4, 0, 5, 1, 3, 6])
    good, bad = rows(won(b1(), 2).take(order))
    assert [order[row].tolist() for row in good] == [[0, 1, 2]] and [order[row].tolist() for row in bad] == [[3, 4], [5, 6, 7]]


def test_what_is_left_out():
    batch = won(b1(), 2, 4)  # B succeeds by an invalid action
    assert rows(batch)[0] == [[0, 1, 2], [3]]
    batch.response_mask[[3, 5, 6, 7]] = False
    assert rows(batch) == ([[0, 1, 2]], [])
    batch.padding = np.arange(8) < 3
    assert rows(batch) == ([], [])


def test_worked_weights():
    """r = 1, -0.5 for successes and 1.1, -0.8 for failures: z0 is their mean, 0.2."""
    batch = scored(one_turn([10, 10, 0, 0]), [1, -0.5, 1.1, -0.8])
    found = KTO(KTOConfig()).credit(batch).advantages[:, 0]
    slope = [0.1 * p * (1 - p) for p in 1 / (1 + np.exp(-0.1 * np.array([0.8, -0.7, -0.9, 1.0])))]
    np.testing.assert_allclose(found, np.array(slope) * [1, 1, -1, -1], atol=1e-12)
    objective = Preference(loss="kto", desirable_weight=1.5, undesirable_weight=0.5)
    np.testing.assert_allclose(KTO(KTOConfig(objective=objective)).credit(batch).advantages[:, 0], found * [1.5, 1.5, 0.5, 0.5], atol=1e-12)


def test_contract():
    check_algorithm(KTO)


@pytest.mark.parametrize("option", [{"rollouts": 0}, {"objective": Preference()}, {"reference_update_iterations": -1}])
def test_bad_options(option):
    with pytest.raises(UsageError, match=next(iter(option))):
        KTOConfig(**option).validate()
