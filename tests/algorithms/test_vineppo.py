"""VinePPO against worked numbers."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tests.algorithms.batches import turns
from threespo_algorithms.vineppo import VinePPO, VinePPOConfig
from threespo_bench.errors import DataError, UsageError
from threespo_bench.rollout.monte_carlo import fill_backwards
from threespo_bench.testing import check_algorithm
from threespo_bench.testing.batches import sample_turns
from threespo_bench.turns import TurnBatch


def episode(values, reward, length=(1, 1, 1)) -> TurnBatch:
    batch = turns("ggg", "aaa", [0, 1, 2], ["s"] * 3, reward, [1] * 3, length)
    batch.values = np.array(values, float)
    batch.extras["next_value"] = np.append(batch.values[1:], 0.0)
    return batch


def credit(batch: TurnBatch, **options) -> np.ndarray:
    return VinePPO(VinePPOConfig(**options)).credit(batch).advantages


@pytest.mark.parametrize(("reward", "expected"), [([0, 0, 1], [0.3, 0.2, 0.1]), ([0, 0, 0], [0.3, 0.2, -0.9])])
def test_success_and_failure(reward, expected):
    np.testing.assert_allclose(credit(episode([0.4, 0.7, 0.9], reward), whiten="none")[:, 0], expected, atol=1e-6)


def test_states_beyond_the_cap_get_exactly_nothing():
    rewards = [0, 0, 1]
    values = fill_backwards(np.array(rewards, float), {0: 0.4})
    np.testing.assert_allclose(values, [0.4, 1, 1], atol=1e-12)
    advantage = credit(episode(values, rewards), whiten="none")[:, 0]
    np.testing.assert_allclose(advantage, [0.6, 0, 0], atol=1e-6)
    assert advantage[1:].tolist() == [0.0, 0.0]


def test_the_cap_counts_from_the_first_state_and_the_end_is_never_asked_for():
    algorithm = VinePPO(VinePPOConfig(max_boundaries=2))
    assert algorithm.cuts([SimpleNamespace()] * 5) == [(0, 0), (1, 0)]
    assert VinePPO(VinePPOConfig()).cuts([SimpleNamespace()] * 3) == [(0, 0), (1, 0), (2, 0)]


def test_the_turns_of_a_step_share_its_gain():
    rewards = [0, 0, 1]
    values = fill_backwards(np.array(rewards, float), {0: 0.4, 2: 0.9})
    np.testing.assert_allclose(values, [0.4, 0.9, 0.9], atol=1e-12)
    batch = episode(values, rewards)
    np.testing.assert_allclose(credit(batch, whiten="none", boundary_interval=2)[:, 0], [0.5, 0.5, 0.1], atol=1e-6)
    shuffled = batch.take(np.array([2, 0, 1]))
    np.testing.assert_allclose(credit(shuffled, whiten="none", boundary_interval=2)[:, 0], [0.1, 0.5, 0.5], atol=1e-6)


def test_a_state_is_valued_where_a_step_begins():
    algorithm = VinePPO(VinePPOConfig(boundary_interval=3, max_boundaries=2))
    assert algorithm.cuts([SimpleNamespace()] * 9) == [(0, 0), (3, 0)]
    assert algorithm.cuts([SimpleNamespace()] * 3) == [(0, 0)]


def test_whitening_over_turns_and_over_tokens():
    batch = episode([0.4, 0.7, 0.9], [0, 0, 1], length=(1, 1, 2))
    np.testing.assert_allclose(credit(batch, whiten="turn")[:, 0], [1, 0, -1], atol=1e-5)  # mean 0.2, unbiased deviation 0.1
    # Over the tokens .3, .2, .1, .1: mean 0.175, unbiased variance 0.0275 / 3.
    expected = np.array([0.125, 0.025, -0.075]) / np.sqrt(0.0275 / 3 + 1e-8)
    by_token = credit(batch, whiten="token")
    np.testing.assert_allclose(by_token[:, 0], expected, atol=1e-6)
    assert by_token[0, 1] == by_token[1, 1] == 0 and by_token[2, 1] == by_token[2, 0]


@pytest.mark.parametrize("whiten", ["token", "turn"])
def test_equal_advantages_are_exactly_zero_after_whitening(whiten):
    batch = episode([0.9, 0.6, 0.3], [0, 0, 0.6])
    np.testing.assert_allclose(credit(batch, whiten="none")[:2, 0], [-0.3, -0.3])
    batch = episode([0.9, 0.8, 0.7], [0, 0, 0.6])
    assert np.ptp(credit(batch, whiten="none")) < 1e-12
    assert (credit(batch, whiten=whiten) == 0).all()


def sampled() -> TurnBatch:
    batch = sample_turns()
    batch.extras["next_value"] = np.where(batch.terminated, 0.0, np.random.default_rng(3).normal(size=len(batch)))
    return batch


@pytest.mark.parametrize("interval", [1, 3])
@pytest.mark.parametrize("whiten", ["none", "turn", "token"])
def test_contract(whiten, interval):
    check_algorithm(VinePPO, VinePPOConfig(whiten=whiten, boundary_interval=interval), sampled())


def test_missing_values_are_named():
    batch = sampled()
    batch.values = None
    with pytest.raises(DataError, match="vineppo needs the column values"):
        credit(batch)


@pytest.mark.parametrize("option", [{"max_boundaries": 0}, {"boundary_interval": 0}, {"whiten": "batch"}, {"continuations": 0}])
def test_bad_options(option):
    with pytest.raises(UsageError, match=next(iter(option))):
        VinePPOConfig(**option).validate()
