"""The rules by which pairs are made, and who gets the credit for them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.algorithms.batches import b1, b2, turns
from threespo_algorithms.preference_credit import implied_weights, preference_credit, refresh_is_due
from threespo_algorithms.preference_pairs import TrajectoryPairsConfig, response_codes, trajectory_preferences
from threespo_bench.contracts.algorithm import Item, Preferences
from threespo_bench.contracts.objective import Preference
from threespo_bench.errors import UsageError
from threespo_bench.objectives.preference import preference_losses
from threespo_bench.turns import TurnBatch


def pairs(batch: TurnBatch, **options) -> list[tuple[list[int], list[int]]]:
    """Rows of both sides of each pair."""
    found = trajectory_preferences(batch, TrajectoryPairsConfig(**options))
    assert found.paired and all((item.weights == 1).all() for item in [*found.chosen, *found.rejected])
    return [(better.rows.tolist(), worse.rows.tolist()) for better, worse in zip(found.chosen, found.rejected, strict=True)]


def named(batch: TurnBatch, **options) -> list[str]:
    """The pairs as ``better>worse``."""
    return [f"{batch.traj_id[better[0]]}>{batch.traj_id[worse[0]]}" for better, worse in pairs(batch, **options)]


def one_turn(rewards, groups=None, **columns) -> TurnBatch:
    """One trajectory of one turn for each reward, A, B, ..."""
    n = len(rewards)
    batch = turns(groups or "g" * n, "ABCDEFGHIJ"[:n], [0] * n, ["s"] * n, rewards, [1] * n, [1] * n)
    return replace(batch, success=np.array(rewards) > 5, **columns)


def test_best_against_worst():
    assert pairs(b1()) == [([0, 1, 2], [5, 6, 7])]  # B and C failed; C took longer
    assert pairs(b2()) == [([0, 1, 2], [6, 7, 8])]
    assert named(one_turn([0, 3, 10, 5])) == ["C>A"]


def test_of_equal_returns_the_shorter_is_better():
    batch = turns("gggggg", "AABBBC", [0, 1, 0, 1, 2, 0], ["s"] * 6, [0, 10, 0, 0, 10, 0], [1] * 6, [1] * 6)
    assert named(batch) == ["A>C"]
    assert named(batch, pairing="adjacent") == ["B>C"]  # A and B are a tie, whatever their lengths


def test_adjacent():
    assert named(one_turn([0, 3, 10, 5]), pairing="adjacent") == ["B>A", "C>D", "D>B"]
    assert named(one_turn([0, 3, 10, 5]), pairing="adjacent", min_gap=3) == ["B>A", "C>D"]


def test_every_success_with_every_failure():
    batch = one_turn([10, 0, 10, 2])
    assert named(batch, pairing="all_mixed") == ["A>B", "A>D", "C>B", "C>D"]
    assert named(one_turn([10, 9, 0]), pairing="all_mixed") == ["A>C", "B>C"]  # both are successes


def test_a_crowded_group_is_drawn_from_whatever_the_order_of_the_rows():
    batch = one_turn([10] * 5 + [0] * 5)
    drawn = named(batch, pairing="all_mixed")
    assert len(set(drawn)) == 4
    assert set(drawn) < {f"{better}>{worse}" for better in "ABCDE" for worse in "FGHIJ"}
    for seed in range(5):
        assert named(batch.take(np.random.default_rng(seed).permutation(10)), pairing="all_mixed") == drawn
    assert len(named(batch, pairing="all_mixed", max_pairs_per_group=25)) == 25
    others = one_turn([10] * 5 + [0] * 5)
    others.traj_id = np.array([f"1/{name}" for name in others.traj_id], object)
    assert [pair.replace("1/", "") for pair in named(others, pairing="all_mixed")] != drawn


def test_each_group_has_its_own_pairs():
    assert named(one_turn([10, 0, 0, 10], groups="ghgh")) == ["A>C", "D>B"]
    assert named(one_turn([10] * 4 + [0] * 4, groups="gghh" * 2), pairing="all_mixed", max_pairs_per_group=4) == [
        "A>E", "A>F", "B>E", "B>F", "C>G", "C>H", "D>G", "D>H",
    ]  # fmt: skip


@pytest.mark.parametrize("pairing", ["best_worst", "all_mixed", "adjacent"])
@pytest.mark.parametrize("rewards", [[0.5, 0.5], [10, 10, 10], [7], [0.1 + 0.2, 0.3]])
def test_ties_and_lone_trajectories_make_no_pair(pairing, rewards):
    assert named(one_turn(rewards), pairing=pairing, min_gap=0) == []


def test_a_gap_must_be_large_enough():
    assert named(one_turn([6, 5.5])) == []
    assert named(one_turn([6, 5.5]), min_gap=0.5) == ["A>B"]
    assert named(one_turn([0.3, 0.2]), min_gap=0.1) == ["A>B"]  # in floating point the difference is a little less


# ---- what is left out


def responses(batch: TurnBatch, *texts) -> TurnBatch:
    batch.response_ids = np.array(texts, np.int32).reshape(batch.response_mask.shape)
    return batch


def test_trajectories_that_say_the_same_are_no_pair():
    assert named(responses(one_turn([10, 0]), 4, 4)) == []
    assert named(responses(one_turn([10, 0]), 4, 5)) == ["A>B"]
    assert named(responses(one_turn([10, 1, 0]), 4, 5, 4)) == ["A>B"]  # the worst that is different
    assert named(responses(one_turn([10, 1, 0]), 4, 4, 5), pairing="adjacent") == ["B>C"]
    assert named(responses(one_turn([10, 0, 0]), 4, 4, 5), pairing="all_mixed", max_pairs_per_group=1) == ["A>C"]


def test_responses_are_compared_by_their_tokens():
    batch = turns("gggg", "ABCD", [0] * 4, ["s"] * 4, [0] * 4, [1] * 4, [2] * 4, width=4)
    batch.response_mask[1] = [True, False, True, False]
    batch.response_mask[3, 1] = False
    responses(batch, [7, 8, 1, 1], [7, 1, 8, 2], [7, 7, 0, 0], [7, 0, 0, 0])
    found = response_codes(batch)
    assert found[0] == found[1] and len(set(found.tolist())) == 3


def test_empty_responses_are_no_part_of_a_pair():
    batch = b1()
    batch.response_mask[[0, 6]] = False
    assert pairs(batch) == [([1, 2], [5, 7])]
    batch.response_mask[[5, 7]] = False
    assert pairs(batch) == [([1, 2], [3, 4])]  # C says nothing at all
    batch.response_mask[[1, 2]] = False
    assert pairs(batch) == []


def test_invalid_actions_are_on_the_losing_side_only():
    batch = b1()
    batch.action_valid[[1, 6]] = False
    assert pairs(batch) == [([0, 2], [5, 6, 7])]
    batch.action_valid[[0, 2]] = False
    assert pairs(batch) == []  # nothing of A is left, and B and C are equal


def test_padding_is_in_no_pair():
    batch = one_turn([10, 0, 50, -50])
    batch.padding = np.array([False, False, True, True])
    assert named(batch) == ["A>B"]


def long_loser() -> TurnBatch:
    """A wins in one turn, B loses in nine."""
    return turns("g" * 10, "A" + "B" * 9, [0, *range(9)], ["s"] * 10, [10] + [0] * 9, [1] * 10, [1] * 10)


@pytest.mark.parametrize(("extra", "kept"), [(5, 6), (0, 1), (8, 9), (20, 9), (None, 9)])
def test_the_loser_is_cut(extra, kept):
    order = np.random.default_rng(0).permutation(10)
    batch = long_loser().take(order)
    (_, lost), = pairs(batch, loser_extra_turns=extra)  # fmt: skip
    assert batch.step_id[lost].tolist() == list(range(kept))


def test_a_loser_that_is_cut_to_what_the_winner_said_is_no_pair():
    batch = responses(long_loser(), *([3] * 10))
    assert pairs(batch, loser_extra_turns=0) == []
    assert len(pairs(batch, loser_extra_turns=1)) == 1


@pytest.mark.parametrize(
    "option", [{"pairing": "some"}, {"max_pairs_per_group": 0}, {"min_gap": -1}, {"loser_extra_turns": -1}, {"reference_update_iterations": -1}]
)
def test_bad_options(option):
    with pytest.raises(UsageError, match=next(iter(option))):
        TrajectoryPairsConfig(**option).validate()


# ---- credit


@pytest.mark.parametrize(
    "objective",
    [Preference(), Preference(beta=0.5, label_smoothing=0.1), Preference(loss="ipo"), Preference(loss="kto", desirable_weight=2.0, undesirable_weight=0.5)],
)
def test_implied_weights_are_the_slopes_of_the_loss(objective):
    chosen, rejected = (torch.tensor(values, dtype=torch.float64, requires_grad=True) for values in ([-1.0, 4.0, 0.3], [0.5, -6.0, 2.0]))
    preference_losses(objective, chosen, rejected).losses.sum().backward()
    liked, disliked = implied_weights(objective, chosen.detach().numpy(), rejected.detach().numpy())
    np.testing.assert_allclose(liked, -chosen.grad.numpy(), atol=1e-12)
    np.testing.assert_allclose(disliked, rejected.grad.numpy(), atol=1e-12)


def scored(batch: TurnBatch, difference) -> TurnBatch:
    """With log-probabilities whose difference to the reference is spread over the tokens of each turn; NaN where the mask is false."""
    lengths = batch.response_mask.sum(axis=1)
    batch.old_log_probs = np.where(batch.response_mask, -3.0, np.nan)
    batch.ref_log_probs = np.where(batch.response_mask, -3.0 - (np.array(difference) / lengths)[:, None], np.nan)
    return batch


def test_worked_weight_of_a_pair():
    batch = scored(turns("gg", "AB", [0, 0], ["s"] * 2, [10, 0], [1, 1], [3, 2]), [1.0, -0.5])  # -10 + 11 and -12 + 11.5: h = 1.5
    credit = preference_credit(batch, trajectory_preferences(batch, TrajectoryPairsConfig()), Preference())
    np.testing.assert_allclose(credit.advantages, [[0.0462570] * 3, [-0.0462570] * 2 + [0]], atol=1e-7)


def test_weights_of_turns_and_items_add_up():
    batch = scored(b2(), np.zeros(9))
    item = [
        Item(np.array([0, 1]), np.array([1.0, 0.5])),
        Item(np.array([1]), np.ones(1)),
        Item(np.array([3]), np.array([0.2])),
        Item(np.array([8]), np.ones(1)),
    ]
    credit = preference_credit(batch, Preferences(item[:2], item[2:]), Preference(beta=0.2))
    np.testing.assert_allclose(credit.advantages[:, 0], [0.1, 0.05 + 0.1, 0, -0.02, 0, 0, 0, 0, -0.1], atol=1e-12)
    assert np.flatnonzero(credit.selected).tolist() == [0, 1, 3, 8]


def test_averages_are_over_the_tokens_of_an_item():
    batch = scored(turns("gg", "AB", [0, 0], ["s"] * 2, [10, 0], [1, 1], [3, 2]), [3.0, 1.0])
    credit = preference_credit(batch, trajectory_preferences(batch, TrajectoryPairsConfig()), Preference(average_log_prob=True))
    slope = 0.1 / (1 + np.exp(0.1 * (1.0 - 0.5)))
    np.testing.assert_allclose(credit.advantages[:, 0], [slope / 3, -slope / 2], atol=1e-12)


@pytest.mark.parametrize("lacking", ["old_log_probs", "ref_log_probs"])
def test_without_a_reference_the_policy_is_the_reference(lacking):
    batch = scored(b2(), np.arange(9))
    setattr(batch, lacking, None)
    credit = preference_credit(batch, trajectory_preferences(batch, TrajectoryPairsConfig()), Preference())
    assert credit.advantages[:, 0].tolist() == [0.05] * 3 + [0] * 3 + [-0.05] * 3


def test_no_pairs_no_credit():
    batch = scored(one_turn([1, 1]), [0, 0])
    credit = preference_credit(batch, trajectory_preferences(batch, TrajectoryPairsConfig()), Preference())
    assert (credit.advantages == 0).all() and not credit.selected.any() and credit.preferences.chosen == []


def test_when_the_reference_moves():
    assert [refresh_is_due(0, i) for i in range(1, 7)] == [False] * 6
    assert [refresh_is_due(1, i) for i in range(1, 4)] == [True] * 3
    assert [refresh_is_due(3, i) for i in range(1, 7)] == [False, False, True] * 2
