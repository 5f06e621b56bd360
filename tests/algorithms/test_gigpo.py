"""GiGPO against the worked numbers of the specification."""

from __future__ import annotations

import numpy as np
import pytest

from tests.algorithms.batches import b1, b2, turns
from threespo_algorithms.gigpo import GiGPO, GiGPOConfig
from threespo_algorithms.group_statistics import discounted_returns
from threespo_bench.errors import DataError, UsageError

REFERENCE = {"statistics_unit": "row", "singleton": "raw", "penalty_stage": "before_norm"}


def credit(batch, **options) -> np.ndarray:
    return GiGPO(GiGPOConfig(**options)).credit(batch).advantages[:, 0]


def test_mean_and_deviation():
    expected = [2.707589, 2.362242, 1.207589, -1.220697, -1.326374, -1.220697, -1.220697, -1.288955]
    np.testing.assert_allclose(credit(b1(), **REFERENCE), expected, atol=1e-6)


def test_mean_only():
    expected = [13.031250, 12.629167, 6.262500, -5.993750, -7.070833, -5.993750, -5.993750, -6.870833]
    np.testing.assert_allclose(credit(b1(), **REFERENCE, normalise_by_std=False), expected, atol=1e-6)
    expected = [12.683333, 13.791667, 11.666667, -6.341667, -8.333333, -5.708333, -6.341667, -5.708333, -5.708333]
    np.testing.assert_allclose(credit(b2(), **REFERENCE, normalise_by_std=False), expected, atol=1e-6)


def test_step_term_alone():
    whole, episode = credit(b1(), **REFERENCE), credit(b1(), **REFERENCE, step_weight=0)
    np.testing.assert_allclose(whole - episode, [1.5, 1.154653, 0, -0.5, -0.586394, -0.5, -0.5, -0.568258], atol=1e-6)
    whole, episode = (credit(b1(), **REFERENCE, normalise_by_std=False, step_weight=weight) for weight in (1, 0))
    expected = [6.768750, 6.366667, 0, -2.256250, -3.233333, -2.256250, -2.256250, -3.133333]
    np.testing.assert_allclose(whole - episode, expected, atol=1e-6)


def test_discounted_returns_follow_the_step_index_and_not_the_row_order():
    batch = b1()
    np.testing.assert_allclose(discounted_returns(batch, 0.95), [9.025, 9.5, 10, 0, 0, 0, 0, 0], atol=1e-12)
    order = np.array([2, 1, 0, 4, 3, 7, 5, 6])
    np.testing.assert_allclose(discounted_returns(batch.take(order), 0.95), [10, 9.5, 9.025, 0, 0, 0, 0, 0], atol=1e-12)


def test_returns_do_not_cross_trajectories():
    batch = turns("gggg", "aabb", [0, 1, 0, 1], ["s"] * 4, [0, 0, 0, 5], [1] * 4, [1] * 4)
    np.testing.assert_allclose(discounted_returns(batch, 0.5), [0, 0, 2.5, 5])


def test_a_turn_without_peers_gets_no_step_credit():
    batch = turns("gg", "ab", [0, 0], ["s", "other"], [1, 0], [1, 1], [1, 1])
    np.testing.assert_allclose(credit(batch), credit(batch, step_weight=0))


def test_equal_states_of_different_tasks_are_not_compared():
    batch = turns("gghh", "abcd", [0] * 4, ["s"] * 4, [1, 1, 0, 0], [1] * 4, [1] * 4)
    assert credit(batch).tolist() == [0.0] * 4


def test_missing_anchor_is_named():
    batch = b1()
    batch.anchor_obs = None
    with pytest.raises(DataError, match="gigpo needs the column anchor_obs"):
        credit(batch)


@pytest.mark.parametrize("option", [{"gamma": 1.5}, {"step_weight": -1}, {"group_size": 1}])
def test_bad_options(option):
    with pytest.raises(UsageError, match=next(iter(option))):
        GiGPOConfig(**option).validate()
