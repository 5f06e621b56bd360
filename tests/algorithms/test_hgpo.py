"""HGPO against the worked numbers of the specification, and its history keys."""

from __future__ import annotations

import numpy as np
import pytest

from tests.algorithms.batches import b1, b2, turns
from threespo_algorithms.hgpo import HGPO, HGPOConfig
from threespo_algorithms.observation_history import recent_history_keys, time_order, whole_history_keys
from threespo_bench.errors import UsageError
from threespo_bench.testing import check_algorithm
from threespo_bench.turns import codes

REFERENCE = {"statistics_unit": "row", "singleton": "raw", "penalty_stage": "before_norm"}
MEAN = {**REFERENCE, "normalise_by_std": False}
GOLDEN = [  # batch, options, advantages
    (b1, MEAN, [6.768747, 6.366665, 0, -2.256249, -3.233333, -2.256249, -2.256249, -3.133333]),
    (b1, REFERENCE, [1.732049, 1.414155, 0, -0.577350, -0.718183, -0.577350, -0.577350, -0.695971]),
    (b1, {**MEAN, "base_group": True}, [6.599998, 6.349304, 6.262494, -2.749999, -3.334027, -2.749999, -2.749999, -3.234027]),
    (b1, {**REFERENCE, "base_group": True}, [1.557229, 1.379727, 1.207588, -0.625132, -0.721816, -0.625132, -0.625132, -0.700092]),
    (b2, MEAN, [6.016664, 5.699999, 4.999998, -3.008332, -4.999998, -2.374999, -3.008332, -3.799999, -2.374999]),
    (b2, REFERENCE, [1.414213, 1.292820, 0.999999, -0.707106, -0.999999, -0.577350, -0.707106, -0.830940, -0.577350]),
]


def credit(batch, **options) -> np.ndarray:
    return HGPO(HGPOConfig(**options)).credit(batch).advantages[:, 0]


@pytest.mark.parametrize(("batch", "options", "expected"), GOLDEN)
def test_worked_numbers(batch, options, expected):
    np.testing.assert_allclose(credit(batch(), **options), expected, atol=1e-6)


@pytest.mark.parametrize(("batch", "options", "expected"), GOLDEN)
def test_row_order_carries_no_meaning(batch, options, expected):
    order = np.random.default_rng(3).permutation(len(expected))
    np.testing.assert_allclose(credit(batch().take(order), **options), np.array(expected)[order], atol=1e-6)


def test_contract():
    check_algorithm(HGPO)
    check_algorithm(HGPO, HGPOConfig(base_group=True, history_length=0, **REFERENCE))


def test_penalty_after_normalisation_is_taken_off_the_turn():
    free = credit(b1(), invalid_action_penalty=0)
    np.testing.assert_allclose(credit(b1()) - free, [0, 0, 0, 0, -0.1, 0, 0, 0], atol=1e-12)


def test_uniform_weights():
    # A1 of B2: the comparisons by one and by two observations are 7.125 and 4.75.
    assert credit(b2(), normalise_by_std=False, weight_alpha=0)[1] == pytest.approx((7.125 + 4.75) / 2, abs=1e-5)


def test_no_history_is_the_comparison_by_the_present_observation():
    assert credit(b2(), normalise_by_std=False, history_length=0)[1] == pytest.approx(7.125, abs=1e-5)


def test_a_turn_without_peers_gets_nothing():
    batch = turns("gg", "ab", [0, 0], ["s", "other"], [1, 0], [1, 1], [1, 1])
    assert credit(batch).tolist() == [0, 0]
    assert HGPO(HGPOConfig()).credit(batch).diagnostics["hgpo/uncompared_share"] == 1


def test_a_turn_on_the_mean_up_to_rounding_has_no_weight_there():
    # In floating point the mean of 0.1, 0.2 and 0.3 is not exactly 0.2.
    batch = turns("ggg", "abc", [0, 0, 0], ["s"] * 3, [0.1, 0.2, 0.3], [1] * 3, [1] * 3)
    assert credit(batch).tolist()[1] == 0


def test_equal_states_of_different_tasks_are_not_compared():
    batch = turns("gghh", "abcd", [0] * 4, ["s"] * 4, [1, 1, 0, 0], [1] * 4, [1] * 4)
    assert credit(batch).tolist() == [0] * 4


def test_history_keys_against_spelled_out_histories():
    rng = np.random.default_rng(0)
    length = rng.integers(1, 8, 60)
    trajectory = np.repeat(np.arange(60), length)
    step = np.concatenate([np.arange(n) for n in length])
    state, action = rng.integers(0, 2, len(step)), rng.integers(0, 2, len(step))
    order = rng.permutation(len(step))
    trajectory, step, state, action = trajectory[order], step[order], state[order], action[order]
    group = trajectory % 3
    batch = turns(group.astype(str), trajectory.astype(str), step, state.astype(str), np.zeros(len(step)), np.ones(len(step)), np.ones(len(step), int))
    at = {(t, s): (int(x), int(a)) for t, s, x, a in zip(trajectory, step, state, action, strict=True)}
    observation = codes(np.array([f"{g} {x}" for g, x in zip(group, state, strict=True)], object))
    timed = time_order(batch)

    def same_partition(keys, spelled):
        assert len(set(keys)) == len(set(spelled)) == len(set(zip(keys, spelled, strict=True)))

    for depth, keys in enumerate(recent_history_keys(timed, observation, 4), start=1):
        enough = step >= depth - 1
        assert (keys[~enough] == -1).all() and (keys[enough] >= 0).all()
        spelled = [(group[i], *(at[trajectory[i], step[i] - back][0] for back in range(depth))) for i in np.flatnonzero(enough)]
        same_partition(keys[enough].tolist(), spelled)
    seen = [(group[i], *(at[trajectory[i], s][0] for s in range(step[i] + 1))) for i in range(len(step))]
    same_partition(whole_history_keys(timed, observation).tolist(), seen)
    done = [(*seen[i], "did", *(at[trajectory[i], s][1] for s in range(step[i]))) for i in range(len(step))]
    same_partition(whole_history_keys(timed, observation, action).tolist(), done)


@pytest.mark.parametrize("option", [{"history_length": -1}, {"weight_alpha": -1}, {"gamma": 1.5}, {"penalty_mode": "trajectory_sum"}])
def test_bad_options(option):
    with pytest.raises(UsageError, match=next(iter(option))):
        HGPOConfig(**option).validate()
