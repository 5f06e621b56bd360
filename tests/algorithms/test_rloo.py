"""RLOO against the worked numbers of the specification."""

from __future__ import annotations

import numpy as np
import pytest

from tests.algorithms.batches import b1, b3, turns
from threespo_algorithms.rloo import RLOO, RLOOConfig
from threespo_bench.errors import UsageError
from threespo_bench.testing import check_algorithm

REFERENCE = {"statistics_unit": "row", "singleton": "raw", "penalty_stage": "before_norm"}


def credit(batch, **options) -> list[float]:
    return RLOO(RLOOConfig(**options)).credit(batch).advantages[:, 0].tolist()


def test_reference_statistics_over_rows():
    expected = [7.157143] * 3 + [-4.271429, -4.385714] + [-4.271429] * 3
    np.testing.assert_allclose(credit(b1(), **REFERENCE), expected, atol=1e-6)


def test_statistics_over_trajectories():
    np.testing.assert_allclose(credit(b1(), penalty_mode="none"), [10] * 3 + [-5] * 5, atol=1e-6)


def test_single_turn_group():
    np.testing.assert_allclose(credit(b3()), [0.666667, -0.666667, -0.666667, 0.666667], atol=1e-6)


@pytest.mark.parametrize("stage", ["before_norm", "after_norm"])
def test_a_local_penalty_is_not_scaled(stage):
    np.testing.assert_allclose(credit(b1(), penalty_stage=stage), [10] * 3 + [-5, -5.1] + [-5] * 3, atol=1e-6)


def test_the_baseline_of_a_trajectory_is_the_mean_of_the_others():
    returns = [4.0, -1.0, 2.5, 0.5, 8.0]
    batch = turns("ggggg", "abcde", [0] * 5, ["s"] * 5, returns, [1] * 5, [1] * 5)
    others = [np.mean(returns[:i] + returns[i + 1 :]) for i in range(5)]
    np.testing.assert_allclose(credit(batch), np.subtract(returns, others), atol=1e-12)


def test_penalty_summed_over_the_trajectory():
    # Returns 10, -0.1 and 0.
    np.testing.assert_allclose(credit(b1(), penalty_mode="trajectory_sum"), [10.05] * 3 + [-5.1] * 2 + [-4.95] * 3, atol=1e-9)


@pytest.mark.parametrize(("value", "copies"), [(9.025, 8), (9.9, 8), (7.737809, 7), (0.1, 8)])
@pytest.mark.parametrize("unit", ["row", "trajectory"])
def test_equal_rewards_give_exactly_zero(value, copies, unit):
    batch = turns("g" * copies, "abcdefgh"[:copies], [0] * copies, ["s"] * copies, [np.float32(value)] * copies, [1] * copies, [1] * copies)
    assert credit(batch, statistics_unit=unit) == [0.0] * copies


@pytest.mark.parametrize(("singleton", "expected"), [("raw", 7.0), ("zero", 0.0)])
def test_group_of_one(singleton, expected):
    batch = turns("g", "a", [0], ["s"], [7], [1], [1])
    assert credit(batch, singleton=singleton) == [expected]


@pytest.mark.parametrize("options", [{}, REFERENCE])
def test_contract(options):
    check_algorithm(RLOO, RLOOConfig(**options))


@pytest.mark.parametrize("option", [{"group_size": 1}, {"invalid_action_penalty": -1}, {"statistics_unit": "token"}, {"singleton": "one"}])
def test_bad_options(option):
    with pytest.raises(UsageError, match=next(iter(option))):
        RLOOConfig(**option).validate()
