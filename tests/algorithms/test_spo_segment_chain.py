"""SPO-chain against worked numbers: cut points, segments, mask, whitening."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tests.algorithms.batches import turns
from threespo_algorithms.segments import cut_points, mask_certain, segment_advantages, whiten
from threespo_algorithms.spo_segment_chain import SegmentChain, SegmentChainConfig
from threespo_bench.errors import DataError, UsageError
from threespo_bench.testing import check_algorithm
from threespo_bench.testing.batches import sample_turns
from threespo_bench.turns import TurnBatch

P = np.array([0.95, 0.5, 0.99, 0.8, 0.92, 0.3, 0.97, 0.6, 0.99])
P_FIRST = np.array([0.7, *P[1:]])


def response(probabilities, values: dict[int, float], score: float = 1.0, split: tuple[int, ...] = (9,)) -> TurnBatch:
    """One trajectory of nine tokens, in one turn or in several; ``values`` are those before the given tokens."""
    width, ends = max(split), np.cumsum(split)
    n = len(split)
    batch = turns("g" * n, "a" * n, range(n), ["s"] * n, [0.0] * (n - 1) + [score], [1] * n, split)
    flat = np.full(9, np.nan)
    flat[list(values)] = list(values.values())
    batch.values, batch.old_log_probs = np.full((n, width), np.nan), np.full((n, width), np.nan)
    for row, (end, length) in enumerate(zip(ends, split, strict=True)):
        batch.values[row, :length] = flat[end - length : end]
        batch.old_log_probs[row, :length] = np.log(probabilities[end - length : end])
    return batch


def flat(batch: TurnBatch, per_token: np.ndarray) -> np.ndarray:
    return per_token[batch.response_mask]


def test_cut_points():
    assert cut_points(P, 0.9, 1).tolist() == [1, 3, 5, 7]
    assert (cut_points(P, 0.9, 2) - 1).tolist() == [0, 4]  # the sampling position is the token before
    assert (cut_points(P_FIRST, 0.9, 2) - 1).tolist() == [-1, 2, 6]
    assert cut_points(np.array([0.9, 0.95]), 0.9, 1).tolist() == []


@pytest.mark.parametrize("split", [(9,), (3, 4, 2), (1, 8)])
def test_first_token_certain(split):
    batch = response(P, {1: 0.4, 5: 0.7}, split=split)
    np.testing.assert_allclose(flat(batch, segment_advantages(batch)), [0] + [0.3] * 8, atol=1e-6)
    credit = SegmentChain(SegmentChainConfig(whiten=False)).credit(batch)
    np.testing.assert_allclose(flat(batch, credit.advantages), [0, 0.3, 0, 0.3, 0, 0.3, 0, 0.3, 0], atol=1e-6)
    assert flat(batch, credit.selected_tokens).tolist() == [p < 0.9 for p in P]


@pytest.mark.parametrize("split", [(9,), (3, 4, 2)])
def test_first_token_cut(split):
    batch = response(P_FIRST, {0: 0.25, 3: 0.4, 7: 0.7}, split=split)
    np.testing.assert_allclose(flat(batch, segment_advantages(batch)), [0.15] * 3 + [0.3] * 6, atol=1e-6)
    credit = SegmentChain(SegmentChainConfig(whiten=False)).credit(batch)
    np.testing.assert_allclose(flat(batch, credit.advantages), [0.15, 0.15, 0, 0.3, 0, 0.3, 0, 0.3, 0], atol=1e-6)


def test_a_root_value_gives_the_first_segment_its_gain():
    batch = response(P, {0: 0.1, 1: 0.4, 5: 0.7})
    np.testing.assert_allclose(flat(batch, segment_advantages(batch)), [0.3] * 9, atol=1e-6)


def test_rewards_inside_a_segment_belong_to_it():
    batch = response(P, {0: 1.0, 4: 0.5}, score=2.0, split=(2, 2, 5))
    batch.step_reward[0] = 5.0  # W: 1 before token 0, 5 + 0.5 before token 4, 7 at the end
    np.testing.assert_allclose(flat(batch, segment_advantages(batch)), [4.5] * 4 + [1.5] * 5, atol=1e-12)


def test_segments_do_not_cross_trajectories_and_rows_have_no_order():
    one, other = response(P, {1: 0.4}, split=(3, 6)), response(P, {7: 0.5}, score=0.0, split=(3, 6))
    other.traj_id[:] = "b"
    both = TurnBatch.concatenate([one, other])
    expected = np.concatenate([segment_advantages(one), segment_advantages(other)])
    assert expected[2:][both.response_mask[2:]].tolist() == [0] * 7 + [-0.5] * 2
    for order in ([0, 1, 2, 3], [3, 0, 2, 1], [2, 3, 1, 0]):
        np.testing.assert_allclose(segment_advantages(both.take(np.array(order))), expected[order], atol=1e-12)


def test_probability_of_exactly_the_threshold_is_kept_in_the_advantage_and_left_out_of_the_loss():
    probabilities = np.array([[0.9, 0.89, 0.91]])
    assert cut_points(probabilities[0], 0.9, 1).tolist() == [1]
    advantages, selected = mask_certain(np.ones((1, 3)), probabilities, 0.9)
    assert advantages.tolist() == [[1, 1, 0]] and selected.tolist() == [[False, True, False]]


def test_no_cut_no_advantage():
    certain = np.full(9, 0.99)
    credit = SegmentChain(SegmentChainConfig()).credit(response(certain, {}))
    assert (credit.advantages == 0).all() and not credit.selected_tokens.any() and not credit.selected.any()
    # A root value alone makes the whole trajectory one segment, of which no token is trained.
    credit = SegmentChain(SegmentChainConfig()).credit(response(certain, {0: 0.5}))
    assert (credit.advantages == 0).all() and not credit.selected.any()


def test_whitening_is_over_the_selected_tokens_only():
    batch = response(P_FIRST, {0: 0.25, 3: 0.4, 7: 0.7}, split=(3, 4, 2))
    credit = SegmentChain(SegmentChainConfig()).credit(batch)
    chosen = np.array([0.15, 0.15, 0.3, 0.3, 0.3])  # tokens 0, 1, 3, 5, 7
    expected = (chosen - 0.24) / np.sqrt(chosen.var(ddof=1) + 1e-8)
    np.testing.assert_allclose(credit.advantages[credit.selected_tokens], expected, atol=1e-6)
    assert (credit.advantages[~credit.selected_tokens] == 0).all()
    everything = SegmentChain(SegmentChainConfig(probability_mask=False)).credit(batch)
    assert everything.selected_tokens.sum() == 9
    assert everything.advantages[batch.response_mask].std(ddof=1) == pytest.approx(1, abs=1e-5)


def test_whitening_without_a_selected_token_falls_back_to_all():
    """The only token of the threshold's probability is not zeroed, and not selected either."""
    probabilities = np.array([0.95, 0.99, 0.5, *[0.99] * 6])
    batch = response(probabilities, {0: 0.5})
    log_threshold = batch.old_log_probs[0, 2]
    credit = SegmentChain(SegmentChainConfig(probability_threshold=float(np.exp(log_threshold)))).credit(batch)
    assert not credit.selected_tokens.any()
    gains = np.array([0, 0, 0.5, 0, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(credit.advantages[0], (gains - gains.mean()) / np.sqrt(gains.var(ddof=1) + 1e-8), atol=1e-6)


@pytest.mark.parametrize(("values", "members"), [([0.3] * 7, [True] * 7), ([5.0, 1.0], [True, False]), ([1.0], [False])])
def test_whitening_of_equal_or_lone_values_is_exactly_zero(values, members):
    assert (whiten(np.array(values), np.array(members)) == 0).all()


def played(*responses) -> list[SimpleNamespace]:
    return [SimpleNamespace(generation=SimpleNamespace(log_probs=np.log(np.array(probabilities, np.float32)))) for probabilities in responses]


def test_where_values_are_asked_for():
    episode = played([0.95, 0.5, 0.99], [0.8, 0.92, 0.3, 0.97], [0.6, 0.99])

    def cuts(turns=episode, **options) -> list[tuple[int, int]]:
        return SegmentChain(SegmentChainConfig(**options)).cuts(turns)

    assert cuts(cut_unit="token", cutpoint_interval=2, estimate_root=False) == [(0, 1), (1, 2)]
    assert cuts(cut_unit="token", cutpoint_interval=1, estimate_root=True) == [(0, 0), (0, 1), (1, 0), (1, 2), (2, 0)]
    assert cuts(cut_unit="turn", cutpoint_interval=2) == [(0, 0), (2, 0)]
    certain_first = played([0.95, 0.92], [0.99, 0.5], [0.95], [0.4, 0.99])
    assert cuts(certain_first, cut_unit="turn", cutpoint_interval=1, estimate_root=False) == [(1, 0), (3, 0)]
    assert cuts(certain_first, cut_unit="turn", cutpoint_interval=1) == [(0, 0), (1, 0), (3, 0)]
    assert cuts(played([0.99]), cut_unit="token", estimate_root=False) == []


def test_a_cut_inside_a_response_needs_an_engine_that_goes_on_from_tokens():
    assert SegmentChain(SegmentChainConfig(cut_unit="token")).needs == {"restore", "prefix"}
    assert SegmentChain(SegmentChainConfig(cut_unit="turn")).needs == {"restore"}


def sampled() -> TurnBatch:
    batch = sample_turns()
    rng = np.random.default_rng(1)
    batch.values = np.where(rng.random(batch.response_mask.shape) < 0.3, rng.normal(size=batch.response_mask.shape), np.nan)
    return batch


@pytest.mark.parametrize("options", [{}, {"whiten": False}, {"probability_mask": False}, {"cut_unit": "token"}])
def test_contract(options):
    check_algorithm(SegmentChain, SegmentChainConfig(**options), sampled())


def test_values_a_turn_are_refused():
    with pytest.raises(DataError, match="spo_segment_chain needs values before tokens"):
        SegmentChain(SegmentChainConfig()).credit(sample_turns())


@pytest.mark.parametrize("option", [{"cut_unit": "word"}, {"probability_threshold": 0}, {"probability_threshold": 1.1}, {"cutpoint_interval": 0}])
def test_bad_options(option):
    with pytest.raises(UsageError, match=next(iter(option))):
        SegmentChainConfig(**option).validate()
