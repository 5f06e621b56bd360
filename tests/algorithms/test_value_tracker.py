"""Trackers, outcomes and whitening of single-stream methods against the worked numbers of the specification."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.algorithms.batches import b1
from tests.algorithms.streaming import stream_turns
from threespo_algorithms.value_tracker import BetaTracker, EventTimeTracker, StreamConfig, Trajectories, outcomes, whiten
from threespo_bench.errors import DataError, UsageError

STARTS = [(3, 3.111111, 4.888889, 0.388889), (8, 7.555556, 0.444444, 0.944444), (0, 0.055556 * 8, 7.555556, 0.055556)]  # successes of 8, a, b, v


@pytest.mark.parametrize(("successes", "a", "b", "value"), STARTS)
@pytest.mark.parametrize("tracker", [BetaTracker(1 / (1 - 0.875)), EventTimeTracker(0.875)])
def test_a_value_starts_from_eight_rollouts(tracker, successes, a, b, value):
    tracker.initialise("t", successes, 8)
    assert tracker.counts("t") == pytest.approx((a, b), abs=4e-6)
    assert tracker.values(["t"])[0] == pytest.approx(value, abs=1e-6)


def test_without_rollouts_a_task_has_jeffreys_half_counts():
    tracker = BetaTracker(8.0)
    tracker.initialise("t", 0, 0)
    assert tracker.counts("t") == (0.5, 0.5)
    assert tracker.values(["t", "never seen"]).tolist() == [0.5, 0.5] and len(tracker) == 1


def test_weights():
    tracker = BetaTracker(8.0)
    for key, successes in (("a", 3), ("b", 8), ("c", 0)):
        tracker.initialise(key, successes, 8)
    weights = tracker.weights(["a", "b", "c"], 0.05)
    np.testing.assert_allclose(weights, [0.537498, 0.279061, 0.279061], atol=1e-6)
    np.testing.assert_allclose(weights / weights.sum(), [0.490588, 0.254706, 0.254706], atol=1e-6)
    np.testing.assert_allclose(tracker.weights(["never seen"], 0.05), [0.55])


def test_update():
    tracker = BetaTracker(8.0)
    tracker.initialise("t", 3, 8)
    tracker.update("t", 1.0, 0.9)
    assert tracker.counts("t") == pytest.approx((3.8, 4.4), abs=1e-12)
    assert tracker.values(["t"])[0] == pytest.approx(0.463415, abs=1e-6)


# ---- evidence by policy version


def events(order: list[tuple[float, int]]) -> EventTimeTracker:
    tracker = EventTimeTracker(0.875)
    tracker.begin("t", 3, 8, version=0)
    for reward, version in order:
        tracker.record("t", reward, version)
    return tracker


@pytest.mark.parametrize("order", [[(0.0, 1), (1.0, 2)], [(1.0, 2), (0.0, 1)]])
def test_evidence_by_version_whatever_the_order_of_receipt(order):
    tracker = events(order)
    assert tracker.counts_at("t", 4) == pytest.approx((2.589301, 3.535699), abs=1e-6)
    assert tracker.values(["t"])[0] == pytest.approx(0.422743, abs=1e-6)


def test_the_recursion_of_spo_depends_on_the_order_of_receipt():
    values = []
    for order in ((0.0, 1.0), (1.0, 0.0)):
        tracker = BetaTracker(8.0)
        tracker.initialise("t", 3, 8)
        for reward in order:
            tracker.update("t", reward, 0.875)
        values.append(float(tracker.values(["t"])[0]))
    assert values == pytest.approx([0.422743, 0.407118], abs=1e-6)


def test_all_orders_of_receipt_agree():
    outcomes_by_version = [(1.0, 2), (0.0, 2), (1.0, 9), (0.25, 4), (1.0, 1), (0.0, 7)]
    expected_a = 0.875**12 * 8 * 3.5 / 9 + sum(0.875 ** (12 - version) * reward for reward, version in outcomes_by_version)
    for order in itertools.permutations(outcomes_by_version):
        a, b = events(list(order)).counts_at("t", 12)
        assert a == pytest.approx(expected_a, rel=1e-12)
        assert a / (a + b) == pytest.approx(events(outcomes_by_version).values(["t"])[0], abs=1e-12)


def test_the_value_outlives_any_number_of_versions():
    tracker = events([(1.0, 2)])
    before = tracker.values(["t"])[0]
    tracker.record("other", 1.0, 10**6)
    assert tracker.values(["t"])[0] == before
    tracker.record("t", 0.0, 10**6)
    assert tracker.values(["t"])[0] == 0.0, "evidence that old weighs nothing"


@pytest.mark.parametrize("kind", ["beta", "event time"])
def test_state(kind):
    make = (lambda: EventTimeTracker(0.875)) if kind == "event time" else (lambda: BetaTracker(8.0))
    first, second = make(), make()
    for key, version in (("b", 3), ("a", 1)):
        first.begin(key, 1, 3, version) if kind == "event time" else first.initialise(key, 1, 3)
    second.load_state_dict(first.state_dict())
    for tracker in (first, second):
        tracker.record("a", 1.0, 9) if kind == "event time" else tracker.update("a", 1.0, 0.9)
    assert first.counts("a") == second.counts("a") and list(second.values(["a", "b"])) == list(first.values(["a", "b"]))


# ---- trajectories and outcomes


def test_trajectories_follow_the_step_index():
    batch = b1().take(np.array([2, 7, 0, 4, 1, 3, 6, 5]))
    trajectories = Trajectories.of(batch)
    assert [batch.traj_id[row] for row in trajectories.first] == ["A", "C", "B"]
    assert batch.step_id[trajectories.first].tolist() == [0, 0, 0] and batch.step_id[trajectories.last].tolist() == [2, 2, 1]
    assert trajectories.tokens.tolist() == [6, 6, 4]
    assert trajectories.over_turns(np.array([1.0, 2, 3]), 8).tolist() == [1, 2, 1, 3, 1, 3, 2, 2]


def test_success_counts_and_not_the_reward():
    batch = stream_turns([1, 0], [[1, 1], [1]])
    batch.step_reward[:] = 77.0
    assert outcomes(batch, Trajectories.of(batch), 1.0).tolist() == [1.0, 0.0]


def test_success_is_read_on_the_last_turn():
    batch = stream_turns([0], [[1, 1]])
    batch.success[0] = True
    assert outcomes(batch, Trajectories.of(batch), 1.0).tolist() == [0.0]


def test_returns_where_success_is_not_recorded():
    batch = stream_turns([1, 0.25, 0], [[1, 1], [1], [2]])
    batch.success = None
    np.testing.assert_allclose(outcomes(batch, Trajectories.of(batch), 10.0), [1, 0.25, 0])


@pytest.mark.parametrize("bad", [10.5, -0.1, float("nan")])
def test_a_return_outside_the_scale_is_refused_with_the_fix(bad):
    batch = stream_turns([1, 0], [[1], [1]])
    batch.success = None
    batch.step_reward[1] = bad
    with pytest.raises(DataError, match=r"trajectory 0/1/0 .* outside \[0, 1\]") as caught:
        outcomes(batch, Trajectories.of(batch), 10.0)
    assert "algorithm.reward_scale" in caught.value.fix


# ---- whitening

ADVANTAGE, TOKENS = np.array([0.611111, -0.4, 0.2]), np.array([2.0, 6.0, 4.0])


def test_whitening_over_tokens_and_over_trajectories():
    np.testing.assert_allclose(whiten(ADVANTAGE, TOKENS), [1.564796, -0.897390, 0.563687], atol=2e-6)
    np.testing.assert_allclose(whiten(ADVANTAGE, np.ones(3)), [0.932322, -1.056146, 0.123824], atol=2e-6)


def test_the_mean_over_tokens_is_zero_or_the_covariance_with_length():
    by_token, by_trajectory = whiten(ADVANTAGE, TOKENS), whiten(ADVANTAGE, np.ones(3))
    token_mean = (TOKENS * by_trajectory).sum() / TOKENS.sum()
    assert token_mean == pytest.approx(-0.331411, abs=1e-6)
    assert token_mean == pytest.approx(np.cov(TOKENS, by_trajectory, ddof=0)[0, 1] / TOKENS.mean(), abs=1e-12)
    assert (TOKENS * by_token).sum() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_the_identity_of_the_measures_on_random_batches(seed):
    rng = np.random.default_rng(seed)
    advantage, tokens = rng.normal(size=40), rng.integers(1, 200, 40).astype(float)
    by_trajectory = whiten(advantage, np.ones(40))
    assert (tokens * by_trajectory).mean() / tokens.mean() == pytest.approx(np.cov(tokens, by_trajectory, ddof=0)[0, 1] / tokens.mean(), abs=1e-12)
    assert (tokens * whiten(advantage, tokens)).sum() / tokens.sum() == pytest.approx(0, abs=1e-12)


def test_whitening_under_the_token_measure_is_whitening_of_the_tokens():
    copies = np.repeat(ADVANTAGE, TOKENS.astype(int))
    expected = (copies - copies.mean()) / (copies.std(ddof=1) + 1e-8)
    np.testing.assert_allclose(np.repeat(whiten(ADVANTAGE, TOKENS), TOKENS.astype(int)), expected, atol=1e-12)


@pytest.mark.parametrize(("weight", "expected"), [([1.0], 0.7), ([0.0], 0.7), ([5.0], 0.0)])
def test_one_trajectory(weight, expected):
    assert whiten(np.array([0.7]), np.array(weight)).tolist() == [expected]


@pytest.mark.parametrize("value", [0.1, 1 / 3, 0.9])
def test_equal_advantages_give_exactly_zero(value):
    assert whiten(np.full(7, value), np.arange(1.0, 8.0)).tolist() == [0.0] * 7
    assert whiten(np.full(7, value), np.ones(7)).tolist() == [0.0] * 7


def test_members_of_weight_zero_enter_nothing():
    whitened = whiten(np.r_[ADVANTAGE, 50.0], np.r_[TOKENS, 0.0])
    np.testing.assert_array_equal(whitened[:3], whiten(ADVANTAGE, TOKENS))


BAD = [{"collection": "all"}, {"unfinished": "keep"}, {"in_flight": 0}, {"offline_rollouts": -1}, {"exploration": 0}, {"reward_scale": 0}]


@pytest.mark.parametrize("option", [*BAD, {"batch_episodes": 65, "collection": "first_completed"}])
def test_bad_options(option):
    with pytest.raises(UsageError, match=next(iter(option))):
        StreamConfig(**option).validate()
