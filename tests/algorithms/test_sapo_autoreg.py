"""SAPO against the worked numbers of the specification."""

from __future__ import annotations

import numpy as np
import pytest

from threespo_algorithms.sapo_autoreg import SAPOAutoreg, SAPOAutoregConfig
from threespo_bench.contracts.objective import ValueTokens
from threespo_bench.errors import DataError, UsageError
from threespo_bench.testing import check_algorithm, sample_turns
from threespo_bench.turns import TurnBatch


def logits(value: list[float]) -> np.ndarray:
    """z+ - z- that say these values, with the default constants."""
    return np.array(value) / 10 * 5


def three_turns(valid: tuple[bool, ...] = (True, True, True), reward: float = 10.0, end: str = "terminated") -> TurnBatch:
    """V 2, 4, 6 and Q 3, 5, 8; the state after the last turn is worth 3."""
    last = np.array([False, False, True])
    return TurnBatch(
        list("ggg"), list("aaa"), np.arange(3), np.array([0, 0, reward]), np.array([[1, 0], [1, 1], [1, 0]], bool), action_valid=np.array(valid),
        terminated=last & (end == "terminated"), truncated=last & (end == "truncated"),
        extras={"value_logit": logits([2, 4, 6]), "action_value_logit": logits([3, 5, 8]), "next_value_logit": np.r_[np.nan, np.nan, logits([3.0])]},
    )  # fmt: skip


def recorded() -> TurnBatch:
    """Episodes of every kind, with logits."""
    turns, rng = sample_turns(), np.random.default_rng(0)
    turns.values = None
    names = ("value_logit", "action_value_logit", "next_value_logit")
    turns.extras |= {name: rng.normal(scale=5, size=len(turns)) for name in names}
    return turns


def test_contract():
    check_algorithm(SAPOAutoreg, turns=recorded())


def test_values_are_read_from_the_difference_of_the_logits():
    algorithm = SAPOAutoreg(SAPOAutoregConfig(objective=ValueTokens(value_temperature=2)))
    np.testing.assert_allclose(algorithm._read(np.array([1.2 - 0.4, 3 - 0.5, -9])), [4.0, 10, -10], atol=1e-12)


def test_raw_advantages_and_targets():
    credit = SAPOAutoreg(SAPOAutoregConfig(normalise=False)).credit(three_turns())
    np.testing.assert_allclose(credit.advantages, [[6.592275, 0], [5.31, 5.31], [4.0, 0]], atol=1e-6)
    np.testing.assert_allclose(credit.returns, [8.592275, 9.31, 10], atol=1e-6)
    np.testing.assert_allclose(credit.action_returns, [4.75, 7.6, 10], atol=1e-6)


def test_an_invalid_action_is_charged_and_then_normalised():
    turns = three_turns(valid=(True, False, True))
    raw = SAPOAutoreg(SAPOAutoregConfig(normalise=False)).credit(turns)
    np.testing.assert_allclose(raw.advantages[:, 0], [6.592275, 5.21, 4.0], atol=1e-6)
    credit = SAPOAutoreg(SAPOAutoregConfig()).credit(turns)
    np.testing.assert_allclose(credit.advantages, [[1.250955, 0], [-0.054222, -0.054222], [-1.196733, 0]], atol=1e-6)
    np.testing.assert_allclose(credit.returns, [8.592275, 9.31, 10], atol=1e-6)  # the targets are not charged


def test_a_cut_episode_goes_on_with_the_value_of_the_next_state():
    credit = SAPOAutoreg(SAPOAutoregConfig(normalise=False)).credit(three_turns(reward=0, end="truncated"))
    np.testing.assert_allclose(credit.advantages[:, 0], [0.768555, -1.142875, -3.15], atol=1e-6)
    np.testing.assert_allclose(credit.action_returns, [4.75, 7.6, 0.95 * 3], atol=1e-6)


def test_the_action_value_of_another_trajectory_is_never_a_target():
    turns = TurnBatch.concatenate([three_turns(), three_turns(reward=0)])
    turns.traj_id[3:] = "b"
    order = np.array([5, 1, 3, 0, 4, 2])
    credit = SAPOAutoreg(SAPOAutoregConfig()).credit(turns.take(order))
    np.testing.assert_allclose(credit.action_returns, np.array([4.75, 7.6, 10, 4.75, 7.6, 0])[order], atol=1e-6)


def test_one_turn_keeps_its_raw_advantage():
    turns = three_turns().take(np.array([2]))
    assert SAPOAutoreg(SAPOAutoregConfig()).credit(turns).advantages[0].tolist() == pytest.approx([4.0, 0])


def test_equal_advantages_give_exactly_zero():
    turns = three_turns()
    turns.traj_id[:], turns.step_reward[:], turns.extras["value_logit"][:] = list("abc"), 9.025, 0.1
    assert (SAPOAutoreg(SAPOAutoregConfig()).credit(turns).advantages == 0).all()


def test_padding_does_not_matter():
    turns = recorded()
    n, plain = len(turns), SAPOAutoreg(SAPOAutoregConfig()).credit(turns)
    padded = turns.take(np.r_[np.arange(n), 0, 1])
    padded.padding = np.arange(n + 2) >= n
    padded.step_reward[n:] = np.nan
    for name in ("value_logit", "action_value_logit", "next_value_logit"):
        padded.extras[name][n:] = np.nan
    credit = SAPOAutoreg(SAPOAutoregConfig()).credit(padded)
    for name in ("advantages", "returns", "action_returns"):
        found = getattr(credit, name)
        np.testing.assert_allclose(found[:n], getattr(plain, name), atol=1e-12)
        assert (found[n:] == 0).all()


def test_a_recorded_batch_may_bring_the_values_themselves():
    turns = three_turns(reward=0, end="truncated")
    expected = SAPOAutoreg(SAPOAutoregConfig()).credit(turns)
    turns.values = np.array([2.0, 4, 6])
    turns.extras = {"action_values": np.array([3.0, 5, 8]), "next_value": np.array([np.nan, np.nan, 3.0])}
    credit = SAPOAutoreg(SAPOAutoregConfig()).credit(turns)
    for name in ("advantages", "returns", "action_returns"):
        np.testing.assert_allclose(getattr(credit, name), getattr(expected, name), atol=1e-12)


@pytest.mark.parametrize("column", ["value_logit", "action_value_logit", "next_value_logit"])
def test_missing_logits_are_named(column):
    turns = three_turns(end="truncated")
    del turns.extras[column]
    with pytest.raises(DataError, match=f"sapo_autoreg needs the column {column}"):
        SAPOAutoreg(SAPOAutoregConfig()).credit(turns)


def test_missing_action_values_are_named():
    turns = three_turns()
    turns.values, turns.extras = np.zeros(3), {}
    with pytest.raises(DataError, match="sapo_autoreg needs the column action_values"):
        SAPOAutoreg(SAPOAutoregConfig()).credit(turns)


@pytest.mark.parametrize("option", [{"gamma": -1}, {"lam": 2}, {"invalid_action_penalty": -0.1}])
def test_bad_options(option):
    with pytest.raises(UsageError, match=next(iter(option))):
        SAPOAutoregConfig(**option).validate()


def test_bad_options_of_the_value_losses():
    with pytest.raises(UsageError, match="value_temperature"):
        SAPOAutoregConfig(objective=ValueTokens(value_temperature=0)).validate()
