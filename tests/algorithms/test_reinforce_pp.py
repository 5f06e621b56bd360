"""REINFORCE++ and its baseline variant against the worked numbers of the specification."""

from __future__ import annotations

import numpy as np
import pytest

from tests.algorithms.batches import b1, turns
from threespo_algorithms.reinforce_pp import ReinforcePP, ReinforcePPConfig, at_last_token, discounted_token_returns, whiten
from threespo_algorithms.reinforce_pp_baseline import ReinforcePPBaseline, ReinforcePPBaselineConfig
from threespo_bench.completion import complete
from threespo_bench.errors import DataError, UsageError
from threespo_bench.testing import check_algorithm, sample_turns

REFERENCE = {"statistics_unit": "row", "singleton": "raw", "penalty_stage": "before_norm"}
IN_REWARD = {"kl_in_reward_coef": 0.1}


def credit(batch, **options) -> np.ndarray:
    return ReinforcePP(ReinforcePPConfig(**options)).credit(batch).advantages


def baseline_credit(batch, **options) -> list[float]:
    return ReinforcePPBaseline(ReinforcePPBaselineConfig(**options)).credit(batch).advantages[:, 0].tolist()


def mask_of(*lengths: int) -> np.ndarray:
    return np.arange(max(lengths)) < np.array(lengths)[:, None]


def whitened(values: list[float]) -> np.ndarray:
    """The formula, written down once more."""
    x = np.array(values, float)
    return (x - x.mean()) / np.sqrt(x.var(ddof=1) + 1e-8)


# ---- returns of tokens


def test_worked_example():
    mask = mask_of(3, 2, 1)
    rewards = np.array([[0, -0.1, 1], [0, 0, np.nan], [0.2, np.nan, np.nan]])
    returns = discounted_token_returns(rewards, mask, 0.9, np.arange(3), np.zeros(3, int))
    np.testing.assert_allclose(returns, [[0.72, 0.8, 1], [0, 0, 0], [0.2, 0, 0]], atol=1e-12)
    assert returns[mask].mean() == pytest.approx(0.453333, abs=1e-6) and returns[mask].std(ddof=1) == pytest.approx(0.439394, abs=1e-6)
    expected = [[0.606897, 0.788966, 1.244139], [-1.031725, -1.031725, 0], [-0.576552, 0, 0]]
    np.testing.assert_allclose(whiten(returns, mask), expected, atol=1e-6)


def test_returns_run_through_the_turns_of_a_trajectory_in_the_order_of_time():
    mask = mask_of(2, 3, 1)
    rewards = np.array([[0, 0, 0], [0, 0, 1.0], [4.0, 0, 0]])
    # One trajectory, the second row first; tokens 1, 1, 1, 2, 2 and the other trajectory.
    returns = discounted_token_returns(rewards, mask, 0.5, np.array([0, 0, 1]), np.array([1, 0, 0]))
    np.testing.assert_allclose(returns, [[0, 0, 0], [0.25, 0.5, 1], [4, 0, 0]], atol=1e-12)
    returns = discounted_token_returns(rewards, mask, 0.5, np.array([0, 0, 1]), np.array([0, 1, 0]))
    np.testing.assert_allclose(returns, [[0.0625, 0.125, 0], [0.25, 0.5, 1], [4, 0, 0]], atol=1e-12)


def test_tokens_that_were_not_generated_are_passed_over():
    mask = np.array([[True, False, True, True], [False, True, False, False]])
    rewards = np.array([[0, np.nan, 0, 2.0], [np.nan, 1.0, np.nan, np.nan]])
    returns = discounted_token_returns(rewards, mask, 0.5, np.arange(2), np.zeros(2, int))
    np.testing.assert_allclose(returns, [[0.5, 0, 1, 2], [0, 1, 0, 0]], atol=1e-12)


def test_the_reward_of_a_turn_without_tokens_reaches_the_turns_before_it():
    mask = mask_of(2, 0)
    rewards = at_last_token(np.array([0.0, 8.0]), mask)
    returns = discounted_token_returns(rewards, mask, 0.5, np.zeros(2, int), np.arange(2))
    np.testing.assert_allclose(returns, [[2, 4], [0, 0]], atol=1e-12)


def test_the_last_token_of_a_turn():
    mask = np.array([[True, False, True, False], [True, False, False, False]])
    np.testing.assert_array_equal(at_last_token(np.array([3.0, 5.0]), mask), [[0, 0, 3, 0], [5, 0, 0, 0]])


@pytest.mark.parametrize("inside", [[7.0], [9.025] * 8, [0.1 + 0.2, 0.3, 0.3], [1e6 + 1e-4, 1e6]])
def test_whitening_of_one_or_equal_values_is_exactly_zero(inside):
    values = np.array([[*inside, 99.0]])
    assert (whiten(values, values != 99.0) == 0).all()


# ---- REINFORCE++


def test_discount_over_the_tokens_of_a_trajectory():
    won = 10 * 0.9 ** np.arange(5, -1, -1.0)
    expected = whitened([*won, *[0] * 10])
    result = credit(b1(), gamma=0.9, invalid_action_penalty=0)
    np.testing.assert_allclose(result[b1().response_mask], expected, atol=1e-9)
    assert (result[~b1().response_mask] == 0).all()


def test_each_turn_as_a_sequence_with_the_return_of_the_episode():
    result = credit(b1(), sequence="turn", penalty_stage="before_norm")
    expected = whitened([10] * 6 + [0] * 2 + [-0.1] * 2 + [0] * 6)
    np.testing.assert_allclose(result[b1().response_mask], expected, atol=1e-9)
    discounted = credit(b1(), sequence="turn", gamma=0.5, penalty_stage="before_norm")
    expected = whitened([5, 10, 2.5, 5, 10, 10, 0, 0, -0.05, -0.1] + [0] * 6)
    np.testing.assert_allclose(discounted[b1().response_mask], expected, atol=1e-9)


def test_penalty_in_the_reward_and_after_whitening():
    early = credit(b1(), penalty_stage="before_norm")
    np.testing.assert_allclose(early[b1().response_mask], whitened([10] * 6 + [-0.1] * 4 + [0] * 6), atol=1e-9)  # it reaches the turn before
    late = credit(b1())
    np.testing.assert_allclose(late[b1().response_mask], whitened([10] * 6 + [0] * 10) - np.repeat([0, 0.1, 0], [8, 2, 6]), atol=1e-9)


def test_kl_penalty_in_the_reward():
    batch = turns("gh", "ab", [0, 0], ["s"] * 2, [1, 0], [1, 1], [2, 1])
    batch.old_log_probs, batch.ref_log_probs = np.array([[-1.0, -2.0], [-1.0, np.nan]]), np.array([[-1.5, -1.0], [-3.0, np.nan]])
    # Rewards less 0.1 * (0.5, -1, 2): -0.05, 1.1 and -0.2; returns 1.05, 1.1 and -0.2.
    result = credit(batch, **IN_REWARD)
    np.testing.assert_allclose(result[batch.response_mask], whitened([1.05, 1.1, -0.2]), atol=1e-9)


def test_kl_penalty_asks_for_the_reference_and_names_the_missing_column():
    assert ReinforcePP(ReinforcePPConfig()).needs == frozenset()
    algorithm = ReinforcePP(ReinforcePPConfig(**IN_REWARD))
    assert algorithm.needs == {"reference"}
    batch = sample_turns()
    batch.ref_log_probs = None
    with pytest.raises(DataError, match="reinforce_pp needs the column ref_log_probs"):
        algorithm.credit(batch)
    expected = np.where(batch.response_mask, -0.25, 0.0)

    class Learner:
        def score(self, turns, policy="actor"):
            assert policy == "reference"
            return expected

    complete(batch, algorithm.needs, Learner())
    assert batch.ref_log_probs is expected
    assert np.isfinite(algorithm.credit(batch).advantages).all()


@pytest.mark.parametrize("sequence", ["trajectory", "turn"])
@pytest.mark.parametrize("value", [0.0, 9.025, 0.1])
def test_equal_rewards_give_exactly_zero(sequence, value):
    batch = turns("gggg", "abcd", [0] * 4, ["s"] * 4, [value] * 4, [1] * 4, [1, 3, 2, 1])
    assert (credit(batch, sequence=sequence) == 0).all()


def test_a_single_token_gives_zero():
    assert credit(turns("g", "a", [0], ["s"], [7], [1], [1])).tolist() == [[0.0]]


@pytest.mark.parametrize("options", [{}, {"sequence": "turn", "penalty_stage": "before_norm"}, {**IN_REWARD, "gamma": 0.9}])
def test_contract(options):
    check_algorithm(ReinforcePP, ReinforcePPConfig(**options))


@pytest.mark.parametrize(
    "option",
    [{"rollouts": 0}, {"gamma": 1.1}, {"sequence": "row"}, {"kl_in_reward_coef": -1}, {"invalid_action_penalty": -1}, {"penalty_stage": "never"}],
)
def test_bad_options(option):
    with pytest.raises(UsageError, match=next(iter(option))):
        ReinforcePPConfig(**option).validate()


# ---- with a group baseline


def test_baseline_reference_statistics_over_rows():
    expected = [1.249973] * 3 + [-0.745992, -0.765952] + [-0.745992] * 3
    np.testing.assert_allclose(baseline_credit(b1(), **REFERENCE), expected, atol=1e-6)


def test_baseline_over_trajectories_and_whitening_over_tokens():
    # Centred returns 20/3 and -10/3; six tokens of the former, ten of the latter.
    tokens = whitened([20 / 3] * 6 + [-10 / 3] * 10)
    expected = [tokens[0]] * 3 + [tokens[-1], tokens[-1] - 0.1] + [tokens[-1]] * 3
    np.testing.assert_allclose(baseline_credit(b1()), expected, atol=1e-9)


@pytest.mark.parametrize(("singleton", "raw"), [("raw", 7.0), ("zero", 0.0)])
def test_baseline_group_of_one(singleton, raw):
    """A lone trajectory enters the whitening with its raw score or with 0."""
    batch = turns("ggh", "abc", [0] * 3, ["s"] * 3, [1, 0, 7], [1] * 3, [1, 1, 1])
    np.testing.assert_allclose(baseline_credit(batch, singleton=singleton), whitened([0.5, -0.5, raw]), atol=1e-9)


@pytest.mark.parametrize("unit", ["row", "trajectory"])
@pytest.mark.parametrize("value", [9.025, 9.9, 7.737809, 0.1])
def test_baseline_equal_rewards_give_exactly_zero(value, unit):
    batch = turns("g" * 8, "abcdefgh", [0] * 8, ["s"] * 8, [np.float32(value)] * 8, [1] * 8, [1, 2] * 4)
    assert baseline_credit(batch, statistics_unit=unit) == [0.0] * 8


@pytest.mark.parametrize("options", [{}, REFERENCE])
def test_baseline_contract(options):
    check_algorithm(ReinforcePPBaseline, ReinforcePPBaselineConfig(**options))
