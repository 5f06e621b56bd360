"""DMPO: the weights of turns, and the worked margin."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.algorithms.batches import turns
from tests.algorithms.test_preference_pairs import scored
from threespo_algorithms.dmpo import DMPO, DMPOConfig, turn_weights
from threespo_bench.contracts.objective import Preference
from threespo_bench.errors import UsageError
from threespo_bench.objectives.preference import preference_losses
from threespo_bench.testing import check_algorithm


@pytest.mark.parametrize(
    ("length", "gamma", "expected"),
    [(3, 0.7, [1, 0.543379, 0.223744]), (2, 0.7, [1, 0.411765]), (3, 1.0, [1, 0.666667, 0.333333]), (1, 0.7, [1]), (1, 1.0, [1])],
)
def test_worked_weights_of_turns(length, gamma, expected):
    np.testing.assert_allclose(turn_weights(length, gamma), expected, atol=1e-6)


@pytest.mark.parametrize("gamma", [0.01, 0.7, 0.99, 1.0])
def test_weights_begin_with_one_and_fall(gamma):
    weights = turn_weights(30, gamma)
    assert weights[0] == 1 and (np.diff(weights) < 0).all() and (weights > 0).all()


def worked():
    """The winner's turns have log-ratios 1, 0.5 and 0.2, the loser's -0.5 and -1."""
    batch = turns("ggggg", "AAABB", [0, 1, 2, 0, 1], ["s"] * 5, [0, 0, 10, 0, 0], [1] * 5, [2, 1, 3, 1, 2])
    return scored(batch, [1, 0.5, 0.2, -0.5, -1])


@pytest.mark.parametrize(("gamma", "margin", "loss"), [(0.7, 0.222820, 0.587930), (None, 0.320000, 0.545893)])
def test_worked_margin_and_loss(gamma, margin, loss):
    batch = worked()
    algorithm = DMPO(DMPOConfig(gamma=gamma or 1.0))
    if gamma is None:
        algorithm.turn_weights = np.ones  # that is DPO on trajectories
    credit = algorithm.credit(batch)
    ratio = np.where(batch.response_mask, batch.old_log_probs - batch.ref_log_probs, 0).sum(axis=1)
    (won,), (lost,) = credit.preferences.chosen, credit.preferences.rejected
    liked, disliked = (torch.tensor([item.weights @ ratio[item.rows]]) for item in (won, lost))
    found = preference_losses(Preference(), liked, disliked)
    assert 0.1 * found.margins.item() == pytest.approx(margin, abs=1e-6)
    assert found.losses.item() == pytest.approx(loss, abs=1e-6)
    slope = 0.1 / (1 + np.exp(margin))
    weights = np.r_[won.weights, -lost.weights]
    np.testing.assert_allclose(credit.advantages[:, 0], slope * weights, atol=1e-7)


def test_a_turn_keeps_its_weight_when_others_are_left_out():
    batch = worked()
    batch.action_valid[0] = False
    preferences = DMPO(DMPOConfig()).credit(batch).preferences
    assert preferences.chosen[0].rows.tolist() == [1, 2]
    np.testing.assert_allclose(preferences.chosen[0].weights, [0.543379, 0.223744], atol=1e-6)


def test_weights_follow_the_step_and_not_the_row():
    order = np.array([2, 4, 0, 3, 1])
    preferences = DMPO(DMPOConfig()).credit(worked().take(order)).preferences
    assert order[preferences.chosen[0].rows].tolist() == [0, 1, 2] and order[preferences.rejected[0].rows].tolist() == [3, 4]


@pytest.mark.parametrize("pairing", ["best_worst", "all_mixed"])
def test_contract(pairing):
    check_algorithm(DMPO, DMPOConfig(pairing=pairing))


@pytest.mark.parametrize("gamma", [0, 1.1])
def test_bad_options(gamma):
    with pytest.raises(UsageError, match="gamma"):
        DMPOConfig(gamma=gamma).validate()
