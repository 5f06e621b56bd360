"""Statistics against numbers worked out by hand."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from threespo_reports import statistics

REWARDS = [0.1, 0.2, 0.3, 0.3, 0.4, 0.5, 0.5, 0.6, 0.7, 0.8]


def test_spo_metrics_of_the_worked_example() -> None:
    assert statistics.area(REWARDS) == pytest.approx(0.438889, abs=1e-6)
    assert statistics.end_reward(REWARDS) == pytest.approx(0.62)
    assert statistics.composite10(REWARDS) == pytest.approx(0.529444, abs=1e-6)
    assert statistics.area([0.3]) == 0.3
    assert math.isnan(statistics.composite10(REWARDS[:9]))


def test_paired_difference_of_the_worked_example() -> None:
    result = statistics.paired({0: 0.75, 1: 0.60, 2: 0.72}, {0: 0.50, 1: 0.50, 2: 0.50})
    assert result is not None
    assert (100 * result.mean, 100 * result.std) == pytest.approx((19.00, 7.94), abs=0.005)
    assert (result.low, result.high) == pytest.approx((0.10, 0.25))  # with three seeds the interval spans them
    half = 4.302653 * 0.0793725 / math.sqrt(3)  # t with two degrees of freedom
    assert (result.t_low, result.t_high) == pytest.approx((0.19 - half, 0.19 + half), abs=1e-5)
    assert (result.p, result.smallest_p, result.too_few) == (0.25, 0.25, True)


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([0.2], 1.0),
        ([0.0, 0.0, 0.0], 1.0),
        ([0.1, 0.2], 0.5),
        ([0.25, 0.10, -0.22], 0.75),  # sums: 0.57 0.37 0.13 0.07 and their negatives; six of eight are at least as far from 0 as 0.13
        ([0.1] * 5, 0.0625),
        ([0.1] * 6, 0.03125),
    ],
)
def test_sign_flip_p_is_exact(differences: list[float], p: float) -> None:
    assert statistics.sign_flip_p(differences) == pytest.approx(p)


def test_five_seeds_are_too_few_and_six_are_enough() -> None:
    five, six = ({seed: 0.6 + seed / 100 for seed in range(n)} for n in (5, 6))
    low = dict.fromkeys(range(6), 0.5)
    assert statistics.paired(five, low).too_few
    assert not statistics.paired(six, low).too_few


def test_pairs_are_the_common_seeds() -> None:
    result = statistics.paired({0: 0.5, 1: 0.6, 7: 0.9}, {1: 0.5, 0: 0.5, 3: 0.1})
    assert result is not None
    assert result.seeds == (0, 1)
    assert statistics.paired({0: 0.5}, {1: 0.5}) is None


def test_interval_spans_seeds_however_many_episodes_each_had() -> None:
    """Public report R11: episodes on the replication axis gave five very different seeds a zero-width interval."""
    rng = np.random.default_rng(0)
    levels = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
    episodes = rng.random((5, 200)) < levels[:, None]
    ends = statistics.interval(episodes.mean(axis=1))
    assert ends.high - ends.low > 0.3
    assert ends == statistics.interval(episodes.mean(axis=1))  # repeats
    with pytest.raises(ValueError, match="one number per seed"):
        statistics.interval(episodes)
    with pytest.raises(ValueError, match="one number per seed"):
        statistics.iqm(episodes)


def test_one_seed_and_constant_results_are_no_special_trouble() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert math.isnan(statistics.interval([0.4]).low)
        same = statistics.interval([0.4, 0.4, 0.4])
        assert math.isnan(statistics.iqm([]))
        alone = statistics.band([([0, 10], [0.2, 0.4])], points=3)
    assert (same.low, same.high) == pytest.approx((0.4, 0.4))
    assert alone.mean.tolist() == pytest.approx([0.2, 0.3, 0.4])
    assert np.isnan(alone.low).all()
    assert alone.seeds == 1


def test_iqm_is_the_mean_of_the_middle_half() -> None:
    assert statistics.iqm([0.0, 0.4, 0.5, 1.0]) == pytest.approx(0.45)
    assert statistics.iqm([0.1, 0.2, 0.9]) == pytest.approx(0.4)
    assert statistics.interval([0.0, 0.4, 0.5, 1.0], statistics.trimmed).low >= 0.0


def test_interpolation_is_linear_and_never_extrapolates() -> None:
    values = statistics.interpolate([0, 10, 30], [0.0, 0.5, 0.7], [-1, 5, 20, 31])
    assert values[1:3].tolist() == pytest.approx([0.25, 0.6])
    assert np.isnan(values[[0, 3]]).all()


def test_band_covers_the_range_that_all_seeds_have() -> None:
    result = statistics.band([([0, 10, 20], [0.0, 0.5, 1.0]), ([0, 16], [0.2, 0.2])], points=5)
    assert result.x.tolist() == [0, 4, 8, 12, 16]
    assert result.mean.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert (result.low <= result.mean).all()
    assert (result.mean <= result.high).all()
    assert result.seeds == 2


def test_normalised_area_is_exact_on_uneven_steps() -> None:
    assert statistics.normalised_area([0, 10, 40], [0.0, 1.0, 1.0], 0, 40) == pytest.approx(35 / 40)
    assert statistics.normalised_area([0, 10, 40], [0.0, 1.0, 1.0], 0, 5) == pytest.approx(0.25)
    assert math.isnan(statistics.normalised_area([0, 10], [0.0, 1.0], 0, 40))
    assert math.isnan(statistics.normalised_area([0], [0.5], 0, 0))
