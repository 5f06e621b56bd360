"""Generalised advantages against the worked numbers of the specification and against the recursion written out step by step."""

from __future__ import annotations

import numpy as np
import pytest

from threespo_algorithms.generalized_advantage import (
    Segments,
    cut,
    end_values,
    generalized_advantage,
    single_rows,
    token_advantage,
    trajectories,
    turn_advantage,
    turn_values,
    value_diagnostics,
    whiten,
)
from threespo_bench.errors import DataError
from threespo_bench.turns import TurnBatch


def one_row(reward: list[float], values: list[float], mask: list[int]) -> TurnBatch:
    """A trajectory of one turn."""
    return TurnBatch(["g"], ["a"], np.zeros(1), np.array([sum(reward)]), np.array([mask], bool), values=np.array([values]))


def of_tokens(turns: TurnBatch, gamma: float, lam: float) -> tuple[np.ndarray, np.ndarray]:
    return token_advantage(turns, trajectories(turns), turns.step_reward, np.zeros(len(turns)), gamma, lam)


def chain(rewards: list[float], **columns: object) -> TurnBatch:
    """A trajectory of turns of one token."""
    n = len(rewards)
    return TurnBatch(["g"] * n, ["a"] * n, np.arange(n), np.array(rewards), np.ones((n, 1), bool), **columns)


@pytest.mark.parametrize("pad", [0.0, 0.9, np.nan])
def test_tokens(pad):
    turns = one_row([0, 0, 0, 1], [0.2, 0.3, 0.5, 0.6, pad], [1, 1, 1, 1, 0])
    advantage, returns = of_tokens(turns, 0.95, 0.9)
    np.testing.assert_allclose(advantage[0], [0.535807, 0.527260, 0.412000, 0.400000, 0], atol=1e-6)
    np.testing.assert_allclose(returns[0], [0.735807, 0.827260, 0.912000, 1.000000, 0], atol=1e-6)
    np.testing.assert_allclose(whiten(advantage[turns.response_mask]), [0.921821, 0.804294, -0.780556, -0.945559], atol=1e-6)


@pytest.mark.parametrize("inside", [9.0, np.nan])
def test_observation_tokens_inside_are_no_time_steps(inside):
    turns = one_row([1], [0.1, 0.2, inside, inside, 0.5, 0.7], [1, 1, 0, 0, 1, 1])
    advantage, _ = of_tokens(turns, 1.0, 0.95)
    valid = advantage[turns.response_mask]
    np.testing.assert_allclose(valid, [0.822712, 0.760750, 0.485000, 0.300000], atol=1e-6)
    np.testing.assert_allclose(whiten(valid), [0.945573, 0.691493, -0.439232, -1.197833], atol=1e-6)
    assert advantage[0, 2:4].tolist() == [0, 0]


TURNS = [
    ([0.0, 0, 10], 0.0, [6.592275, 5.310000, 4.000000]),
    ([0.0, 0, 0], 0.0, [-1.552788, -3.715000, -6.000000]),
    ([0.0, 0, 0], 3.0, [0.768555, -1.142875, -3.150000]),
]


@pytest.mark.parametrize(("rewards", "end", "expected"), TURNS, ids=["success", "failure", "cut"])
def test_turns(rewards, end, expected):
    turns, value = chain(rewards), np.array([2.0, 4, 6])
    advantage = turn_advantage(turns, trajectories(turns), value, np.array([np.nan, np.nan, end]), 0.95, 0.95)
    np.testing.assert_allclose(advantage, expected, atol=1e-6)
    if rewards[-1]:
        np.testing.assert_allclose(advantage + value, [8.592275, 9.31, 10], atol=1e-6)


def test_order_of_rows_and_neighbours_do_not_matter():
    turns = TurnBatch(list("gggggg"), list("aabbba"), np.array([2, 0, 1, 0, 2, 1]), np.array([10.0, 0, 0, 0, 7, 0]), np.ones((6, 1), bool))
    turns.padding = np.array([False, False, True, True, True, False])
    advantage = turn_advantage(turns, trajectories(turns), np.array([6.0, 2, 1, 1, 1, 4]), np.zeros(6), 0.95, 0.95)
    np.testing.assert_allclose(advantage, [4.0, 6.592275, 0, 0, 0, 5.31], atol=1e-6)


def step_by_step(reward, value, end, gamma, lam) -> list[float]:
    advantage, found = 0.0, []
    for r, v in zip(reward[::-1], value[::-1], strict=True):
        advantage, end = r + gamma * end - v + gamma * lam * advantage, v
        found.append(advantage)
    return found[::-1]


def test_many_segments_at_once():
    rng = np.random.default_rng(0)
    lengths = np.r_[0, rng.integers(0, 9, 40), 0]
    starts, total = np.r_[0, np.cumsum(lengths)[:-1]], int(lengths.sum())
    reward, value, end = rng.normal(size=total), rng.normal(size=total), rng.normal(size=len(lengths))
    found = generalized_advantage(reward, value, starts, lengths, end, 0.9, 0.8)
    for start, length, last in zip(starts, lengths, end, strict=True):
        part = slice(start, start + length)
        np.testing.assert_allclose(found[part], step_by_step(reward[part], value[part], last, 0.9, 0.8), atol=1e-12)


def random_turns() -> TurnBatch:
    rng = np.random.default_rng(1)
    trajectory = np.repeat(np.arange(12), rng.integers(1, 6, 12))
    step = np.concatenate([np.arange(n) for n in np.bincount(trajectory)])
    order = rng.permutation(len(trajectory))
    mask = rng.random((len(trajectory), 6)) < 0.6
    values = np.where(mask, rng.normal(size=mask.shape), np.nan)
    return TurnBatch(["g"] * len(order), trajectory[order], step[order], rng.normal(size=len(order)), mask, values=values)


def test_tokens_of_several_turns_are_one_sequence_with_each_reward_on_the_last_token():
    turns = random_turns()
    turns.response_mask[:, 2] = True
    turns.values[:, 2] = 0.5
    end = np.linspace(-1, 1, len(turns))
    advantage, returns = token_advantage(turns, trajectories(turns), turns.step_reward, end, 0.97, 0.9)
    for trajectory in range(12):
        rows = np.flatnonzero(turns.traj_id == trajectory)
        rows = rows[np.argsort(turns.step_id[rows])]
        masks = [turns.response_mask[row] for row in rows]
        reward = np.concatenate([np.r_[np.zeros(mask.sum() - 1), turns.step_reward[row]] for row, mask in zip(rows, masks, strict=True)])
        value = np.concatenate([turns.values[row, mask] for row, mask in zip(rows, masks, strict=True)])
        expected = np.array(step_by_step(reward, value, end[rows[-1]], 0.97, 0.9))
        np.testing.assert_allclose(np.concatenate([advantage[row, mask] for row, mask in zip(rows, masks, strict=True)]), expected, atol=1e-12)
        np.testing.assert_allclose(np.concatenate([returns[row, mask] for row, mask in zip(rows, masks, strict=True)]), expected + value, atol=1e-12)
    assert (advantage[~turns.response_mask] == 0).all() and (returns[~turns.response_mask] == 0).all()


def test_the_reward_of_a_turn_without_tokens_goes_to_the_token_before():
    turns = chain([1.0, 5.0, 0.0], values=np.zeros((3, 1)))
    turns.response_mask[1] = False
    np.testing.assert_allclose(of_tokens(turns, 1.0, 1.0)[0][:, 0], [6, 0, 0])
    turns.response_mask[:] = [[False], [True], [False]]
    np.testing.assert_allclose(of_tokens(turns, 1.0, 1.0)[0][:, 0], [0, 5, 0])  # nothing that a token did led to the first reward


def test_single_rows_are_sequences_of_their_own():
    turns = random_turns()
    advantage, _ = token_advantage(turns, single_rows(turns), turns.step_reward, np.zeros(len(turns)), 1.0, 1.0)
    expected = np.where(turns.response_mask, turns.step_reward[:, None] - turns.values, 0.0)
    np.testing.assert_allclose(advantage, expected, atol=1e-12)


def test_segments_know_their_last_rows():
    segments = trajectories(chain([0.0, 0, 0]).take(np.array([2, 0, 1])))
    assert segments.rows.tolist() == [1, 2, 0] and segments.last_rows.tolist() == [0]
    assert isinstance(segments, Segments)


def test_a_batch_of_padding_only():
    turns = chain([1.0, 2.0], padding=np.ones(2, bool), values=np.zeros((2, 1)))
    assert (turn_advantage(turns, trajectories(turns), np.zeros(2), np.zeros(2), 1, 1) == 0).all()
    assert (of_tokens(turns, 1, 1)[0] == 0).all()


@pytest.mark.parametrize(("values", "expected"), [([3.0], [3.0]), ([], []), ([9.025] * 7, [0.0] * 7), ([0.1] * 8, [0.0] * 8)])
def test_whitening_of_nothing_to_compare(values, expected):
    assert whiten(np.array(values)).tolist() == expected


def test_the_end_of_a_task_has_no_value_and_a_cut_has_that_of_the_state():
    ends = {"terminated": np.array([1, 0, 0, 1]), "truncated": np.array([0, 0, 1, 1])}
    turns = TurnBatch(list("gggg"), list("abcd"), np.zeros(4), np.zeros(4), np.ones((4, 1), bool), **ends, extras={"next_value": np.array([np.nan, 2, 3, 4])})
    assert end_values(turns, "ppo").tolist() == [0, 0, 3, 0]
    del turns.extras["next_value"]
    with pytest.raises(DataError, match=r"ppo.* needs the column next_value") as caught:
        end_values(turns, "ppo")
    assert "marked terminated" in caught.value.fix
    turns.truncated[:] = False
    assert end_values(turns, "ppo").tolist() == [0] * 4
    turns.truncated = None
    assert not cut(turns).any()


def test_the_value_of_a_turn_is_the_one_before_its_first_token():
    turns = chain([0.0] * 3, values=np.array([[1.0, 2], [3, 4], [np.nan, np.nan]]))
    turns.response_mask = np.array([[1, 1], [0, 1], [0, 0]], bool)
    assert turn_values(turns).tolist() == [1, 4, 0]
    turns.values = np.array([5.0, 6, 7])
    assert turn_values(turns).tolist() == [5, 6, 7]


def test_diagnostics():
    value, returns = np.array([1.0, 2, 3]), np.array([1.0, 2, 6])
    found = value_diagnostics(value, returns, returns - value)
    assert found["critic/explained_variance"] == pytest.approx(1 - 2 / (14 / 3)) and found["critic/mean_return"] == 3
    assert "critic/explained_variance" not in value_diagnostics(value, np.ones(3), value)
    assert value_diagnostics(value[:0], value[:0], value[:0]) == {}
