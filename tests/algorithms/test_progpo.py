"""ProGPO, a reconstruction, against the worked numbers of the specification."""

from __future__ import annotations

import numpy as np
import pytest

from tests.algorithms.batches import b2, turns
from threespo_algorithms.episode_term import episode_term
from threespo_algorithms.observation_history import time_order
from threespo_algorithms.progpo import ProGPO, ProGPOConfig, success_rates, trajectory_success
from threespo_bench.errors import DataError, UsageError
from threespo_bench.testing import check_algorithm, sample_turns
from threespo_bench.turns import TurnBatch, object_column

PEER = [6.016667, 4.75, 0, -3.008333, 0, 0, -3.008333, -4.75, 0]
PEERS = [True, True, False, True, False, False, True, True, False]
POTENTIAL = [0.333333, 0.384615, 0.833333, 0.333333, 0.25, 0.176471, 0.333333, 0.384615, 0.176471]
TRANSITION = [0.051282, 0.448718, 0.166667, -0.083333, -0.073529, -0.176471, 0.051282, -0.208145, -0.176471]


def batch() -> TurnBatch:
    made = b2()
    made.success = np.arange(9) == 2
    return made


def terms(made: TurnBatch, **options) -> tuple[np.ndarray, ...]:
    algorithm, order = ProGPO(ProGPOConfig(**options)), time_order(made)
    peer, has_peers, _ = algorithm.peer_term(made, order)
    outcome = trajectory_success(made)
    potential = algorithm.potential(made, order, outcome)
    return peer, has_peers, potential, algorithm.transition_term(potential, order, outcome)


def credit(made: TurnBatch, **options) -> np.ndarray:
    return ProGPO(ProGPOConfig(**options)).credit(made).advantages[:, 0]


def test_worked_numbers():
    for order in (np.arange(9), np.random.default_rng(1).permutation(9)):
        peer, has_peers, potential, transition = terms(batch().take(order))
        np.testing.assert_allclose(peer, np.array(PEER)[order], atol=1e-6)
        assert has_peers.tolist() == np.array(PEERS)[order].tolist()
        np.testing.assert_allclose(potential, np.array(POTENTIAL)[order], atol=1e-6)
        np.testing.assert_allclose(transition, np.array(TRANSITION)[order], atol=1e-6)


def test_the_transition_term_telescopes():
    transition = terms(batch())[3].reshape(3, 3).sum(axis=1)
    np.testing.assert_allclose(transition, [0.666667, -0.333333, -0.333333], atol=1e-6)  # outcome less the potential of the root


def test_the_terms_add_up():
    made = batch()
    episode = episode_term(made, ProGPOConfig())[0]
    np.testing.assert_allclose(credit(made), episode + PEER + 10 * np.where(PEERS, 0, TRANSITION), atol=1e-5)
    weighted = credit(made, peer_weight=0.5, transition_weight=2, transition_scale=3, transition_with_peers=0.25)
    np.testing.assert_allclose(weighted, episode + 0.5 * np.array(PEER) + 6 * np.where(PEERS, 0.25, 1) * TRANSITION, atol=1e-5)


def test_equal_outcomes_have_no_transition_term():
    for won in (False, True):
        made = batch()
        made.success = np.isin(np.arange(9), (2, 5, 8)) & won
        assert (terms(made)[3] == 0).all()


def test_a_trajectory_counts_once_in_a_cluster_however_often_it_passes():
    key, trajectory, outcome = np.zeros(4, int), np.array([0, 0, 0, 1]), np.array([1.0, 1, 1, 0])
    mean, inverse = success_rates(key, trajectory, outcome, 0.05, leave_one_out=False)
    assert mean.tolist() == [0.5] * 4
    np.testing.assert_allclose(inverse, 1 / (0.5 / 2))


def test_variance_has_a_floor_and_single_outcomes_a_value_of_their_own():
    mean, inverse = success_rates(np.array([0, 0, 1]), np.arange(3), np.array([1.0, 1, 1]), 0.05, leave_one_out=False)
    np.testing.assert_allclose(mean, 1)
    np.testing.assert_allclose(1 / inverse, [0.025, 0.025, 0.25])


def test_leave_one_out():
    potential = terms(batch(), leave_one_out=True)[2]
    # A at s0: B and C failed. B at s0: A won and C failed, one cluster of two.
    assert potential[0] == 0 and potential[3] == pytest.approx(0.5)
    # A at s2: B at depth 1 alone. C in its last state: A and B at depth 1, nobody at depths 2 and 3.
    assert potential[2] == 0 and potential[8] == pytest.approx(0.5)
    # A state that no other trajectory saw: the other trajectories of the task.
    alone = turns("ggg", "abc", [0] * 3, ["x", "y", "z"], [1, 1, 0], [1] * 3, [1] * 3)
    alone.success = np.array([True, True, False])
    np.testing.assert_allclose(terms(alone, leave_one_out=True)[2], [0.5, 0.5, 1])


@pytest.mark.parametrize("leave_one_out", [False, True])
def test_alone_in_the_group_there_is_no_transition_term(leave_one_out):
    made = batch().take(np.arange(3))
    assert (terms(made, leave_one_out=leave_one_out)[3] == 0).all()


def test_a_cut_trajectory_failed():
    made = batch()
    assert trajectory_success(made).tolist() == [1, 1, 1, 0, 0, 0, 0, 0, 0]


def test_prefix_with_actions():
    made = batch()
    made.extras["command"] = np.array(list("abcabxabc"), object)
    assert terms(made)[1].tolist() == PEERS
    assert terms(made, prefix_with_actions=True)[1].tolist() == PEERS  # A and C did the same after s0
    made.extras["command"][6] = "other"
    assert terms(made, prefix_with_actions=True)[1].tolist() == [True, False, False, True, False, False, True, False, False]


def test_expansion_by_embeddings_pools_similar_states():
    made = batch()
    made.anchor_obs = object_column([f"{name}" if i < 6 else f"{name} again" for i, name in enumerate(made.anchor_obs)])
    directions = {"s0": [1.0, 0, 0], "s1": [0, 1.0, 0], "s2": [0, 0, 1.0]}
    made.extras["embedding"] = object_column([np.array(directions[name[:2]]) * 3 + 1e-3 * ("again" in name) for name in made.anchor_obs])
    assert terms(made)[2][6] == 0  # exactly, C is alone
    np.testing.assert_allclose(terms(made, expansion="embedding")[2], POTENTIAL, atol=1e-6)
    np.testing.assert_allclose(terms(made, expansion="embedding", expansion_threshold=1.0)[2], terms(made)[2], atol=1e-12)


def test_what_it_needs_depends_on_the_options():
    assert ProGPO(ProGPOConfig()).needs == frozenset()
    assert ProGPO(ProGPOConfig(expansion="embedding")).needs == {"embeddings"}
    with pytest.raises(DataError, match="progpo needs the column embedding"):
        credit(batch(), expansion="embedding")
    with pytest.raises(DataError, match="progpo needs the column command"):
        credit(batch(), prefix_with_actions=True)


def test_contract():
    check_algorithm(ProGPO)
    made = sample_turns()
    rng = np.random.default_rng(0)
    vectors = {name: rng.normal(size=4) for name in sorted(set(made.anchor_obs))}
    made.extras["embedding"] = object_column([vectors[name] for name in made.anchor_obs])
    made.extras["command"] = object_column(rng.choice(["go", "take"], len(made)).tolist())
    options = {"expansion": "embedding", "leave_one_out": True, "prefix_with_actions": True, "normalise_by_std": True, "penalty_stage": "before_norm"}
    check_algorithm(ProGPO, ProGPOConfig(**options), made)


@pytest.mark.parametrize(
    "option",
    [{"gamma": 2}, {"potential_gamma": -1}, {"history_length": -1}, {"variance_floor": 0}, {"expansion": "all"}, {"expansion_threshold": 0},
     {"transition_with_peers": 2}, {"peer_weight": -1}],
)  # fmt: skip
def test_bad_options(option):
    with pytest.raises(UsageError, match=next(iter(option))):
        ProGPOConfig(**option).validate()
