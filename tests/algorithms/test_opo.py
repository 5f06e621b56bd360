"""OPO against the worked numbers of the specification."""

from __future__ import annotations

import numpy as np
import pytest

from tests.algorithms.batches import b1, b3, turns
from threespo_algorithms.opo import OPO, OPOConfig
from threespo_bench.errors import UsageError
from threespo_bench.testing import check_algorithm

REFERENCE = {"statistics_unit": "row", "singleton": "raw", "penalty_stage": "before_norm"}


def credit(batch, **options) -> list[float]:
    return OPO(OPOConfig(**options)).credit(batch).advantages[:, 0].tolist()


@pytest.mark.parametrize("options", [{}, REFERENCE])
def test_single_turn_group(options):
    np.testing.assert_allclose(credit(b3(), **options), [0.7, -0.3, -0.3, 0.7], atol=1e-6)


def test_the_length_of_a_trajectory_is_that_of_all_its_turns():
    # Lengths 6, 4 and 6, returns 10, 0 and 0: b = 60 / 16.
    np.testing.assert_allclose(credit(b1()), [6.25] * 3 + [-3.75, -3.85] + [-3.75] * 3, atol=1e-9)
    # Returns 10, -0.1 and 0: b = 59.6 / 16.
    np.testing.assert_allclose(credit(b1(), penalty_mode="trajectory_sum"), [6.275] * 3 + [-3.825] * 2 + [-3.725] * 3, atol=1e-9)


def test_rows_weigh_by_their_own_length():
    # Row scores 10 (lengths 2, 3, 1), -0.1 (length 2) and 0 (lengths 2, 1, 2, 3): b = 59.8 / 16.
    np.testing.assert_allclose(credit(b1(), **REFERENCE), [6.2625] * 3 + [-3.7375, -3.8375] + [-3.7375] * 3, atol=1e-9)


def test_groups_have_their_own_baselines():
    batch = turns("ghgh", "abcd", [0] * 4, ["s"] * 4, [1, 4, 0, 0], [1] * 4, [3, 1, 1, 3])
    np.testing.assert_allclose(credit(batch), [0.25, 3, -0.75, -1], atol=1e-12)


def test_a_group_without_tokens_has_no_baseline_and_no_advantage():
    batch = turns("gghh", "abcd", [0] * 4, ["s"] * 4, [1, 0, 1, 0], [1] * 4, [0, 0, 1, 1])
    np.testing.assert_allclose(credit(batch), [0, 0, 0.5, -0.5], atol=1e-12)


@pytest.mark.parametrize(("value", "copies"), [(9.025, 8), (9.9, 8), (7.737809, 7), (0.1, 8)])
@pytest.mark.parametrize("unit", ["row", "trajectory"])
def test_equal_rewards_give_exactly_zero(value, copies, unit):
    lengths = [1, 5, 2, 3, 1, 4, 7, 2][:copies]
    batch = turns("g" * copies, "abcdefgh"[:copies], [0] * copies, ["s"] * copies, [np.float32(value)] * copies, [1] * copies, lengths)
    assert credit(batch, statistics_unit=unit) == [0.0] * copies


@pytest.mark.parametrize(("singleton", "expected"), [("raw", 7.0), ("zero", 0.0)])
def test_group_of_one(singleton, expected):
    batch = turns("g", "a", [0], ["s"], [7], [1], [1])
    assert credit(batch, singleton=singleton) == [expected]


@pytest.mark.parametrize("options", [{}, REFERENCE])
def test_contract(options):
    check_algorithm(OPO, OPOConfig(**options))


def test_bad_options():
    with pytest.raises(UsageError, match="penalty_stage"):
        OPOConfig(penalty_stage="never").validate()
