"""GRPO and Dr.GRPO against the worked numbers of the specification."""

from __future__ import annotations

import numpy as np
import pytest

from tests.algorithms.batches import b1, b3, turns
from threespo_algorithms.grpo import GRPO, GRPOConfig
from threespo_bench.errors import UsageError
from threespo_bench.testing import check_algorithm

REFERENCE = {"statistics_unit": "row", "singleton": "raw", "penalty_stage": "before_norm"}


def credit(batch, **options) -> list[float]:
    return GRPO(GRPOConfig(**options)).credit(batch).advantages[:, 0].tolist()


def test_reference_statistics_over_rows():
    expected = [1.207589, 1.207589, 1.207589, -0.720697, -0.739980, -0.720697, -0.720697, -0.720697]
    np.testing.assert_allclose(credit(b1(), **REFERENCE), expected, atol=1e-6)


def test_dr_grpo_does_not_divide():
    expected = [6.2625] * 3 + [-3.7375, -3.8375] + [-3.7375] * 3
    np.testing.assert_allclose(credit(b1(), **REFERENCE, normalise_by_std=False), expected, atol=1e-6)


def test_dr_grpo_over_trajectories():
    expected = [20 / 3] * 3 + [-10 / 3] * 5
    np.testing.assert_allclose(credit(b1(), penalty_mode="none", normalise_by_std=False), expected, atol=1e-6)


def test_statistics_over_trajectories():
    expected = [1.154700] * 3 + [-0.577350, -0.594671] + [-0.577350] * 3
    np.testing.assert_allclose(credit(b1(), penalty_stage="before_norm"), expected, atol=1e-6)


def test_penalty_summed_over_the_trajectory():
    expected = [1.154657] * 3 + [-0.585946] * 2 + [-0.568712] * 3
    np.testing.assert_allclose(credit(b1(), penalty_mode="trajectory_sum"), expected, atol=1e-6)


def test_default_charges_the_penalty_after_normalisation():
    expected = [1.154700] * 3 + [-0.577350, -0.677350] + [-0.577350] * 3
    np.testing.assert_allclose(credit(b1()), expected, atol=1e-6)


def test_single_turn_group():
    np.testing.assert_allclose(credit(b3(), **REFERENCE), [0.866024, -0.866024, -0.866024, 0.866024], atol=1e-6)


@pytest.mark.parametrize(("value", "copies"), [(9.025, 8), (9.9, 8), (7.737809, 7), (0.1, 8)])
@pytest.mark.parametrize("unit", ["row", "trajectory"])
def test_equal_rewards_give_exactly_zero(value, copies, unit):
    names = "abcdefgh"[:copies]
    batch = turns("g" * copies, names, [0] * copies, ["s"] * copies, [np.float32(value)] * copies, [1] * copies, [1] * copies)
    assert credit(batch, statistics_unit=unit) == [0.0] * copies


def test_a_penalty_alone_does_not_become_a_large_advantage():
    batch = turns("gggg", "abcd", [0] * 4, ["s"] * 4, [0] * 4, [1, 1, 1, 0], [1] * 4)
    np.testing.assert_allclose(credit(batch), [0, 0, 0, -0.1], atol=1e-12)
    assert min(credit(batch, **REFERENCE)) == pytest.approx(-1.5, abs=1e-3)  # what the reference does


@pytest.mark.parametrize(("singleton", "expected"), [("raw", 6.999993), ("zero", 0.0)])
def test_group_of_one(singleton, expected):
    batch = turns("g", "a", [0], ["s"], [7], [1], [1])
    assert credit(batch, singleton=singleton)[0] == pytest.approx(expected, abs=1e-6)


def test_wrong_group_key_is_seen_in_the_diagnostics():
    right = turns("aaaa", "wxyz", [0] * 4, ["s"] * 4, [1, 0, 1, 0], [1] * 4, [1] * 4)
    wrong = turns("abcd", "wxyz", [0] * 4, ["s"] * 4, [1, 0, 1, 0], [1] * 4, [1] * 4)
    assert sum(credit(right)) == pytest.approx(0, abs=1e-12)
    assert credit(wrong) == [0.0] * 4
    assert GRPO(GRPOConfig()).credit(wrong).diagnostics["group/singleton_share"] == 1.0


@pytest.mark.parametrize("option", [{"group_size": 1}, {"epsilon": 0}, {"penalty_mode": "all"}, {"statistics_unit": "token"}, {"singleton": "one"}])
def test_bad_options(option):
    with pytest.raises(UsageError, match=next(iter(option))):
        GRPOConfig(**option).validate()


# ---- pass@k


def test_pass_at_k_credits_the_best_rollout_by_its_lead():
    batch = turns("gggg", "abcd", [0] * 4, ["s"] * 4, [3, 1, 0, 2], [1] * 4, [1, 2, 1, 1])
    np.testing.assert_allclose(credit(batch, pass_at_k=True), [0.774596, 0, 0, 0], atol=1e-6)
    np.testing.assert_allclose(credit(batch, pass_at_k=True, normalise_by_std=False), [1, 0, 0, 0], atol=1e-12)


def test_pass_at_k_selects_trajectories_and_credits_all_turns_of_the_winner():
    result = GRPO(GRPOConfig(pass_at_k=True, penalty_mode="none")).credit(b1()).advantages
    expected = np.array([1.732051] * 3 + [0] * 5)
    np.testing.assert_allclose(result, np.where(b1().response_mask, expected[:, None], 0), atol=1e-6)
    np.testing.assert_allclose(credit(b1(), pass_at_k=True), [1.732051] * 3 + [0, -0.1, 0, 0, 0], atol=1e-6)
    # Returns 10, -0.1 and 0: the lead is 10 and the deviation 5.802586.
    np.testing.assert_allclose(credit(b1(), pass_at_k=True, penalty_mode="trajectory_sum"), [10 / 5.802586] * 3 + [0] * 5, atol=1e-6)


def test_pass_at_k_looks_into_each_group_by_itself():
    batch = turns("ghghgh", "abcdef", [0] * 6, ["s"] * 6, [1, 5, 1, 2, 0, 0], [1] * 6, [1] * 6)
    lead = 3 / np.std([5, 2, 0], ddof=1)
    np.testing.assert_allclose(credit(batch, pass_at_k=True), [0, lead, 0, 0, 0, 0], atol=1e-6)  # the best two of g are equal


@pytest.mark.parametrize("rewards", [[7.0], [9.025] * 8])
def test_pass_at_k_of_a_lone_or_equal_group_is_exactly_zero(rewards):
    n = len(rewards)
    batch = turns("g" * n, "abcdefgh"[:n], [0] * n, ["s"] * n, rewards, [1] * n, [1] * n)
    assert credit(batch, pass_at_k=True) == [0.0] * n


@pytest.mark.parametrize("option", [{"statistics_unit": "row"}, {"singleton": "raw"}, {"penalty_stage": "before_norm"}])
def test_options_that_pass_at_k_excludes(option):
    with pytest.raises(UsageError, match="pass_at_k"):
        GRPOConfig(pass_at_k=True, **option).validate()
    GRPOConfig(pass_at_k=True, penalty_stage="before_norm", penalty_mode="trajectory_sum").validate()


@pytest.mark.parametrize("options", [{}, REFERENCE, {"pass_at_k": True}])
def test_contract(options):
    check_algorithm(GRPO, GRPOConfig(**options))
