"""DPO, IPO, cDPO and DPO from a file."""

from __future__ import annotations

import numpy as np
import pytest

from tests.algorithms.batches import b1
from tests.algorithms.test_preference_pairs import one_turn, scored
from threespo_algorithms.cdpo import CDPO, CDPOConfig
from threespo_algorithms.dpo import DPO, DPOConfig
from threespo_algorithms.dpo_offline import DPOOffline, DPOOfflineConfig, labelled_pairs
from threespo_algorithms.ipo import IPO, IPOConfig
from threespo_bench.errors import DataError, UsageError
from threespo_bench.testing import check_algorithm, sample_turns
from threespo_bench.turns import TurnBatch


def credit(kind, **options):
    batch = scored(b1(), [0.5, 0.25, 0.25, 0, 0, 0, -0.25, -0.25])  # h = 1.5 for A against C
    return kind(kind.Config(**options)).credit(batch).advantages[:, 0]


def test_worked_weights():
    """Minus the slopes of the three losses at h = 1.5."""
    shape = np.array([1, 1, 1, 0, 0, -1, -1, -1])
    np.testing.assert_allclose(credit(DPO), 0.1 * 0.462570 * shape, atol=1e-7)
    np.testing.assert_allclose(credit(CDPO), 0.1 * (0.9 * 0.462570 - 0.1 * 0.537430) * shape, atol=1e-7)
    np.testing.assert_allclose(credit(IPO), 2 * (5 - 1.5) * shape, atol=1e-12)


def test_the_learner_gets_the_pairs():
    preferences = DPO(DPOConfig()).credit(b1()).preferences
    assert preferences.paired
    assert [item.rows.tolist() for item in (*preferences.chosen, *preferences.rejected)] == [[0, 1, 2], [5, 6, 7]]


def test_success_is_needed_for_mixed_pairs_only():
    DPO(DPOConfig()).credit(b1())
    with pytest.raises(DataError, match="dpo needs the column success"):
        DPO(DPOConfig(pairing="all_mixed")).credit(b1())


@pytest.mark.parametrize("kind", [DPO, IPO, CDPO])
@pytest.mark.parametrize("pairing", ["best_worst", "all_mixed", "adjacent"])
def test_contract(kind, pairing):
    check_algorithm(kind, kind.Config(pairing=pairing))


def test_losses_of_the_subclasses():
    assert (IPOConfig().objective.loss, CDPOConfig().objective.label_smoothing) == ("ipo", 0.1)


@pytest.mark.parametrize("option", [{"group_size": 1}, {"min_gap": -1}])
def test_bad_options(option):
    with pytest.raises(UsageError, match=next(iter(option))):
        DPOConfig(**option).validate()


# ---- from a file


def fed() -> TurnBatch:
    """Three pairs; of the second, nothing is left on one side."""
    batch = one_turn([0] * 7)
    batch.traj_id[[3, 4]] = "D"
    batch.step_id[4] = 1
    batch.extras |= {"pair": np.array([0, 0, 1, 2, 2, 1, 2]), "preferred": np.array([1, 0, 1, 1, 1, 0, 0], bool)}
    batch.response_mask[5] = False
    return batch


def test_pairs_are_as_they_were_fed():
    found = labelled_pairs(fed())
    assert [item.rows.tolist() for item in found.chosen] == [[0], [3, 4]]
    assert [item.rows.tolist() for item in found.rejected] == [[1], [6]]
    credit = DPOOffline(DPOOfflineConfig()).credit(fed())
    assert credit.advantages[:, 0].tolist() == [0.05, -0.05, 0, 0.05, 0.05, 0, -0.05]


def test_contract_of_the_offline_one():
    batch = sample_turns()
    trajectory = np.unique(batch.traj_id.astype(str), return_inverse=True)[1]
    batch.extras |= {"pair": trajectory // 2, "preferred": trajectory % 2 == 0}
    check_algorithm(DPOOffline, turns=batch)


@pytest.mark.parametrize("option", [{"pairs_per_iteration": 0}, {"pairing": "none"}])
def test_bad_options_of_the_offline_one(option):
    with pytest.raises(UsageError, match=next(iter(option))):
        DPOOfflineConfig(**option).validate()
