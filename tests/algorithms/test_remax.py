"""ReMax against the worked numbers of the specification."""

from __future__ import annotations

import numpy as np
import pytest

from tests.algorithms.batches import b1, turns
from threespo_algorithms.remax import ReMax, ReMaxConfig
from threespo_bench.errors import DataError, UsageError
from threespo_bench.rollout.greedy_baseline import GreedyBaselineSampler
from threespo_bench.testing import check_algorithm, sample_turns
from threespo_bench.turns import TurnBatch


def with_baseline(batch: TurnBatch, baseline) -> TurnBatch:
    batch.extras["baseline_return"] = np.broadcast_to(np.asarray(baseline, float), len(batch)).copy()
    return batch


def credit(batch, **options) -> np.ndarray:
    return ReMax(ReMaxConfig(**options)).credit(batch).advantages


def test_worked_example():
    batch = turns("gh", "ab", [0, 0], ["s"] * 2, [1, 0.5], [1, 1], [3, 2])
    np.testing.assert_allclose(credit(with_baseline(batch, [0.4, 0.6])), [[0.6, 0.6, 0.6], [-0.1, -0.1, 0]], atol=1e-6)


def test_the_whole_return_less_the_baseline_on_every_turn():
    np.testing.assert_allclose(credit(with_baseline(b1(), 4.0))[:, 0], [6] * 3 + [-4, -4.1] + [-4] * 3, atol=1e-9)
    np.testing.assert_allclose(credit(with_baseline(b1(), 4.0), invalid_action_penalty=0)[:, 0], [6] * 3 + [-4] * 5, atol=1e-9)


def test_equal_to_the_baseline_is_exactly_zero():
    batch = turns("ggg", "aaa", [0, 1, 2], ["s"] * 3, [0.1, 0.2, 0.3], [1] * 3, [1] * 3)
    assert (credit(with_baseline(batch, 0.1 + (0.2 + 0.3))) == 0).all()  # another order of summation


def test_one_episode_is_compared_all_the_same():
    assert credit(with_baseline(turns("g", "a", [0], ["s"], [7], [1], [1]), 3.0)).tolist() == [[4.0]]


def test_diagnostics_count_episodes():
    batch = with_baseline(turns("ggh", "aab", [0, 1, 0], ["s"] * 3, [1, 0, 3], [1] * 3, [1] * 3), [1, 1, 2])
    assert ReMax(ReMaxConfig()).credit(batch).diagnostics == {"baseline/mean": 1.5, "baseline/equal_share": 0.5}


def test_values_on_padding_rows_are_not_read():
    batch = with_baseline(b1(), 4.0)
    padded = batch.take(np.r_[np.arange(8), 0])
    padded.padding = np.arange(9) == 8
    padded.extras["baseline_return"][8] = np.nan
    result = ReMax(ReMaxConfig()).credit(padded)
    np.testing.assert_array_equal(result.advantages[:8], credit(batch))
    assert (result.advantages[8] == 0).all() and np.isfinite(list(result.diagnostics.values())).all()


def test_the_column_is_named_where_it_is_missing():
    with pytest.raises(DataError, match="remax needs the column baseline_return"):
        credit(b1())


def test_contract():
    check_algorithm(ReMax, turns=with_baseline(sample_turns(), 2.0))
    sampler = ReMax(ReMaxConfig(rollouts=3)).sampler
    assert isinstance(sampler, GreedyBaselineSampler) and sampler.rollouts == 3


@pytest.mark.parametrize("option", [{"rollouts": 0}, {"invalid_action_penalty": -0.1}])
def test_bad_options(option):
    with pytest.raises(UsageError, match=next(iter(option))):
        ReMaxConfig(**option).validate()
