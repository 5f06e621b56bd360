"""The three variants of PPO: worked numbers, penalties, cut episodes, and what must not matter."""

from __future__ import annotations

import numpy as np
import pytest

from tests.algorithms.batches import b1
from threespo_algorithms.ppo import PPO, PPOConfig, PPORow, PPOTurn
from threespo_bench.errors import DataError, UsageError
from threespo_bench.testing import check_algorithm, sample_turns
from threespo_bench.turns import TurnBatch

VARIANTS = (PPO, PPOTurn, PPORow)
PLAIN = {"whiten": False, "penalty_stage": "before_norm"}


def recorded(seed: int = 0) -> TurnBatch:
    """Episodes of every kind with a value for each token."""
    turns, rng = sample_turns(seed), np.random.default_rng(seed)
    turns.values = np.where(turns.response_mask, rng.normal(size=turns.response_mask.shape), 0.0)
    turns.extras["next_value"] = rng.normal(size=len(turns))
    return turns


def three_turns(reward: list[float], end: str, **columns: object) -> TurnBatch:
    """A trajectory with values 2, 4, 6 before its turns and other ones inside of them."""
    last = np.array([False, False, True])
    return TurnBatch(
        list("ggg"), list("aaa"), np.arange(3), np.array(reward), np.array([[1, 1], [1, 0], [1, 1]], bool), terminated=last & (end == "terminated"),
        truncated=last & (end == "truncated"), action_valid=np.ones(3, bool), values=np.array([[2.0, -1], [4, np.nan], [6, -3]]),
        extras={"next_value": np.array([np.nan, np.nan, 3.0])}, **columns,
    )  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("stage", ["before_norm", "after_norm"])
def test_contract(variant, stage):
    check_algorithm(variant, PPOConfig(penalty_stage=stage, gamma=0.97, lam=0.9), turns=recorded())


def test_turns_with_one_value_each():
    check_algorithm(PPOTurn, turns=one_value_a_turn())


def one_value_a_turn() -> TurnBatch:
    turns = recorded()
    turns.values = turns.values[:, 0]
    return turns


@pytest.mark.parametrize(
    ("reward", "end", "expected"),
    [
        ([0.0, 0, 10], "terminated", [6.592275, 5.310000, 4.000000]),
        ([0.0, 0, 0], "terminated", [-1.552788, -3.715000, -6.000000]),
        ([0.0, 0, 0], "truncated", [0.768555, -1.142875, -3.150000]),
    ],
)
def test_turn_level(reward, end, expected):
    turns = three_turns(reward, end)
    credit = PPOTurn(PPOConfig(gamma=0.95, lam=0.95, **PLAIN)).credit(turns)
    np.testing.assert_allclose(credit.advantages, np.where(turns.response_mask, np.array(expected)[:, None], 0.0), atol=1e-6)
    np.testing.assert_allclose(credit.returns, np.add(expected, [2, 4, 6]), atol=1e-6)


def test_turn_level_is_whitened_over_turns():
    turns = three_turns([0.0, 0, 10], "terminated")
    advantages = PPOTurn(PPOConfig(gamma=0.95, lam=0.95)).credit(turns).advantages
    np.testing.assert_allclose(advantages[:, 0], np.array([6.592275, 5.31, 4.0] - np.float64(5.300758)) / 1.296162, atol=1e-5)
    turns.response_mask[1, 1], turns.values[1, 1] = True, 5.0  # a longer response changes no other turn
    np.testing.assert_array_equal(PPOTurn(PPOConfig(gamma=0.95, lam=0.95)).credit(turns).advantages[:, 0], advantages[:, 0])


def test_token_level():
    turns = TurnBatch(["g"], ["a"], [0], [1.0], np.array([[1, 1, 1, 1, 0]], bool), values=np.array([[0.2, 0.3, 0.5, 0.6, 0.9]]))
    credit = PPO(PPOConfig(gamma=0.95, lam=0.9)).credit(turns)
    np.testing.assert_allclose(credit.advantages[0], [0.921821, 0.804294, -0.780556, -0.945559, 0], atol=1e-6)
    np.testing.assert_allclose(credit.returns[0], [0.735807, 0.827260, 0.912000, 1.000000, 0], atol=1e-6)


def test_token_level_goes_on_from_turn_to_turn():
    turns = three_turns([0.0, 0, 10], "terminated")
    gamma, values = 0.9, np.array([2, -1, 4, 6, -3])
    one_step = PPO(PPOConfig(gamma=gamma, lam=0.0, **PLAIN)).credit(turns)
    np.testing.assert_allclose(one_step.advantages[turns.response_mask], np.r_[gamma * values[1:], 10] - values, atol=1e-12)
    whole = PPO(PPOConfig(gamma=gamma, lam=1.0, **PLAIN)).credit(turns)
    np.testing.assert_allclose(whole.returns[turns.response_mask], 10 * gamma ** np.arange(4, -1, -1), atol=1e-12)


def test_token_level_of_a_cut_episode_goes_on_with_the_value_of_the_next_state():
    turns = three_turns([0.0, 0, 0], "truncated")
    credit = PPO(PPOConfig(gamma=1.0, lam=1.0, **PLAIN)).credit(turns)
    np.testing.assert_allclose(credit.returns[turns.response_mask], 3.0, atol=1e-12)


def test_rows_by_themselves_get_the_return_of_the_episode_less_their_own_penalty():
    turns = b1()
    turns.values = np.arange(turns.response_mask.size, dtype=float).reshape(turns.response_mask.shape)
    credit = PPORow(PPOConfig(**PLAIN)).credit(turns)
    score = np.array([10, 10, 10, 0, -0.1, 0, 0, 0])
    np.testing.assert_allclose(credit.advantages, np.where(turns.response_mask, score[:, None] - turns.values, 0.0), atol=1e-12)
    np.testing.assert_allclose(credit.returns, np.where(turns.response_mask, score[:, None], 0.0), atol=1e-12)


@pytest.mark.parametrize("variant", [PPO, PPOTurn])
def test_the_penalty_is_local(variant):
    turns = three_turns([0.0, 0, 10], "terminated")
    clean = variant(PPOConfig(**PLAIN)).credit(turns)
    turns.action_valid[1] = False
    charged = variant(PPOConfig(**PLAIN)).credit(turns)
    np.testing.assert_allclose(clean.advantages - charged.advantages, [[0, 0], [0.1, 0], [0, 0]], atol=1e-12)
    np.testing.assert_array_equal(clean.returns, charged.returns)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_penalty_after_whitening_is_charged_as_it_is(variant):
    turns = recorded()
    with_penalty, without = (variant(PPOConfig(invalid_action_penalty=penalty)).credit(turns) for penalty in (0.25, 0.0))
    expected = np.where(turns.response_mask & ~turns.action_valid[:, None], 0.25, 0.0)
    np.testing.assert_allclose(without.advantages - with_penalty.advantages, expected, atol=1e-12)
    np.testing.assert_array_equal(without.returns, with_penalty.returns)


@pytest.mark.parametrize("variant", VARIANTS)
def test_whitened_over_what_counts(variant):
    turns = recorded()
    advantages = variant(PPOConfig(invalid_action_penalty=0)).credit(turns).advantages
    counted = advantages[turns.response_mask] if variant is not PPOTurn else advantages[np.arange(len(turns)), turns.response_mask.argmax(axis=1)]
    assert counted.mean() == pytest.approx(0, abs=1e-12) and counted.std(ddof=1) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_under_a_mask_or_in_padding_does_not_matter(variant):
    turns = recorded()
    plain = variant(PPOConfig()).credit(turns)
    n = len(turns)
    spoilt = turns.take(np.r_[np.arange(n), 0, 1])
    spoilt.padding = np.arange(n + 2) >= n
    spoilt.values[~spoilt.response_mask] = np.nan
    spoilt.values[n:], spoilt.step_reward[n:], spoilt.extras["next_value"][n:] = np.nan, np.nan, np.nan
    spoilt.extras["next_value"][:n][~turns.truncated] = np.nan
    credit = variant(PPOConfig()).credit(spoilt)
    np.testing.assert_allclose(credit.advantages[:n], plain.advantages, atol=1e-12)
    np.testing.assert_allclose(credit.returns[:n], plain.returns, atol=1e-12)
    assert (credit.advantages[n:] == 0).all() and (credit.returns[n:] == 0).all()
    assert credit.diagnostics == pytest.approx(plain.diagnostics)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_single_time_step_is_not_whitened(variant):
    turns = TurnBatch(["g"], ["a"], [0], [3.0], np.ones((1, 1), bool), values=np.ones((1, 1)))
    assert variant(PPOConfig()).credit(turns).advantages.tolist() == [[2.0]]


@pytest.mark.parametrize("variant", VARIANTS)
def test_equal_advantages_give_exactly_zero(variant):
    turns = TurnBatch(list("gggggggg"), list("abcdefgh"), np.zeros(8), np.full(8, 9.025), np.ones((8, 1), bool), values=np.full((8, 1), 0.1))
    assert (variant(PPOConfig()).credit(turns).advantages == 0).all()


@pytest.mark.parametrize(("variant", "column"), [(PPO, "next_value"), (PPOTurn, "next_value"), (PPO, "values"), (PPOTurn, "values"), (PPORow, "values")])
def test_missing_columns_are_named(variant, column):
    turns = recorded()
    turns.extras.pop(column, None)
    turns.values = None if column == "values" else turns.values
    with pytest.raises(DataError, match=rf"{variant.name}.* needs the column {column}"):
        variant(PPOConfig()).credit(turns)


def test_rows_by_themselves_need_no_value_of_the_next_state():
    turns = recorded()
    del turns.extras["next_value"]
    assert np.isfinite(PPORow(PPOConfig()).credit(turns).advantages).all()


@pytest.mark.parametrize("variant", [PPO, PPORow])
def test_one_value_a_turn_is_refused_where_each_token_needs_one(variant):
    with pytest.raises(DataError, match="needs a value for each token"):
        variant(PPOConfig()).credit(one_value_a_turn())


@pytest.mark.parametrize("option", [{"gamma": 1.1}, {"lam": -0.1}, {"invalid_action_penalty": -1}, {"penalty_stage": "never"}])
def test_bad_options(option):
    with pytest.raises(UsageError, match=next(iter(option))):
        PPOConfig(**option).validate()


def test_bad_options_of_the_critic():
    config = PPOConfig()
    config.critic.epochs = 0
    with pytest.raises(UsageError, match=r"algorithm\.critic\.epochs=0"):
        config.validate()
