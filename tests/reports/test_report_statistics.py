"""Statistics against numbers worked out by hand."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from scipy import stats

from threespo_reports import statistics
from threespo_reports.curves import aggregate_band, band, difference_band, smoothed
from threespo_reports.improvement import probability_of_improvement
from threespo_reports.learning_metrics import area, composite10, end_reward, matched_difference
from threespo_reports.resampling import draws, ends, mean_band, weights
from threespo_reports.results import first_reached, median_reached
from threespo_reports.sections.profiles import LEVELS, profile

REWARDS = [0.1, 0.2, 0.3, 0.3, 0.4, 0.5, 0.5, 0.6, 0.7, 0.8]


def test_spo_metrics_of_the_worked_example() -> None:
    assert area(REWARDS) == pytest.approx(0.438889, abs=1e-6)
    assert np.mean(REWARDS) == pytest.approx(0.44)
    assert end_reward(REWARDS) == pytest.approx(0.62)
    assert composite10(REWARDS) == pytest.approx(0.529444, abs=1e-6)
    assert area([0.3]) == 0.3
    assert math.isnan(composite10(REWARDS[:9]))
    assert math.isnan(area([])) and math.isnan(end_reward([]))


def test_matched_difference_of_the_worked_example() -> None:
    """Both runs of a replicate are cut to their common points; the difference is +19.00 with a sample standard deviation of 7.94 points."""
    base = {seed: [0.4, 0.5] for seed in range(3)}
    method = {seed: [0.4 + d, 0.5 + d, 0.0, 0.0] for seed, d in enumerate((0.25, 0.10, 0.22))}
    found = matched_difference(method, base, area)
    assert found is not None
    assert (100 * found.mean, 100 * found.std, found.seeds) == (pytest.approx(19.0), pytest.approx(7.94, abs=0.005), (0, 1, 2))


def test_replicates_that_are_not_finite_or_have_no_common_point_are_dropped() -> None:
    method = {0: [0.5], 1: [0.7, math.nan], 2: [0.9]}
    found = matched_difference(method, {0: [0.4], 1: [0.1, 0.2], 2: []}, area)
    assert found is not None
    assert (found.mean, found.seeds) == (pytest.approx(0.1), (0,))
    assert math.isnan(found.std)
    assert matched_difference(method, {7: [0.1]}, area) is None


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
        alone = band([([0, 10], [0.2, 0.4])], points=3)
    assert (same.low, same.high) == pytest.approx((0.4, 0.4))
    assert alone.mean.tolist() == pytest.approx([0.2, 0.3, 0.4])
    assert np.isnan(alone.low).all()
    assert alone.seeds.tolist() == [1, 1, 1]


def test_iqm_is_the_mean_of_the_middle_half() -> None:
    assert statistics.iqm([0.0, 0.4, 0.5, 1.0]) == pytest.approx(0.45)
    assert statistics.iqm([0.1, 0.2, 0.9]) == pytest.approx(0.4)
    assert statistics.interval([0.0, 0.4, 0.5, 1.0], statistics.trimmed).low >= 0.0


def test_interpolation_is_linear_and_never_extrapolates() -> None:
    values = statistics.interpolate([0, 10, 30], [0.0, 0.5, 0.7], [-1, 5, 20, 31])
    assert values[1:3].tolist() == pytest.approx([0.25, 0.6])
    assert np.isnan(values[[0, 3]]).all()


def test_band_covers_the_common_range_and_goes_on_with_the_seeds_that_are_left() -> None:
    result = band([([0, 10, 20], [0.0, 0.5, 1.0]), ([0, 16], [0.2, 0.2])], points=5)
    assert result.x.tolist() == [0, 4, 8, 12, 16, 20]
    assert result.mean.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 1.0])
    assert (result.low <= result.mean)[:5].all()
    assert (result.mean <= result.high)[:5].all()
    assert np.isnan(result.low[5])
    assert result.seeds.tolist() == [2, 2, 2, 2, 2, 1]


def test_seeds_that_end_almost_together_end_together() -> None:
    assert band([([0, 100], [0.0, 1.0]), ([0, 104], [0.0, 1.0])], points=3).x.tolist() == [0, 50, 100]


def test_difference_band_is_paired_by_seed() -> None:
    """The seeds differ much, their differences do not: the band is narrow."""
    treatment = {seed: (np.array([0.0, 10.0]), np.array([0.1 + seed / 10, 0.3 + seed / 10])) for seed in range(3)}
    baseline = {seed: (np.array([0.0, 8.0]), np.array([0.1 + seed / 10, 0.1 + seed / 10])) for seed in (0, 1, 2, 9)}
    found = difference_band(treatment, baseline)
    assert found is not None
    assert (found.x[0], found.x[-1], found.seeds[0]) == (0, 8, 3)
    assert found.mean[-1] == pytest.approx(0.16)
    assert (found.high - found.low).max() < 1e-12
    assert difference_band(treatment, {9: baseline[9]}) is None


def test_aggregate_band_weighs_environments_alike() -> None:
    easy = [(np.array([0.0, 10.0]), np.array([0.8, 1.0]))] * 4
    hard = [(np.array([0.0, 50.0]), np.array([0.0, 0.2]))] * 2
    found = aggregate_band([easy, hard], [10, 50])
    assert found is not None
    assert (found.x[-1], found.mean[0], found.mean[-1]) == pytest.approx((1.0, 0.4, 0.6))
    assert found.seeds[0] == 2


def test_smoothing_is_a_trailing_mean() -> None:
    values = np.array([0.0, 1.0, 2.0, 3.0])
    assert smoothed(values, 1) is values
    assert smoothed(values, 3).tolist() == pytest.approx([0.0, 0.5, 1.0, 2.0])


def test_bootstrap_agrees_with_scipy() -> None:
    rng = np.random.default_rng(3)
    for statistic, values in ((np.mean, rng.random(7)), (statistics.trimmed, rng.random(10))):
        theirs = stats.bootstrap((values,), statistic, n_resamples=9_999, method="percentile", rng=np.random.default_rng(1)).confidence_interval
        ours = statistics.interval(values, statistic)
        assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.015)


def test_bands_are_the_means_of_the_drawn_seeds() -> None:
    rows = np.random.default_rng(0).random((4, 3))
    resampled = rows[draws(4, 2_000)].mean(axis=1)
    assert np.allclose(weights(4) @ rows, resampled)
    assert np.allclose(mean_band(rows), ends(resampled))
    assert not np.array_equal(draws(4, 2_000), draws(4, 2_000, stream=1))


def test_probability_of_improvement_by_hand() -> None:
    """Pairs: 0.5 > 0.4, 0.5 = 0.5 (one half), 0.9 > 0.4, 0.9 > 0.5: 3.5 of 4; in the other environment 0 of 1."""
    first, second = [np.array([0.5, 0.9])], [np.array([0.4, 0.5])]
    value, low, high = probability_of_improvement(first, second)
    assert value == pytest.approx(0.875)
    assert 0.5 <= low <= value <= high == pytest.approx(1.0)
    both = probability_of_improvement([*first, np.array([0.1])], [*second, np.array([0.2])])
    assert both[0] == pytest.approx(0.4375)
    assert math.isnan(both[1])


def test_profile_is_the_share_strictly_above() -> None:
    share, low, high = profile([np.array([0.2, 0.6]), np.array([0.6, 0.6])])
    at = {round(level, 2): value for level, value in zip(LEVELS, share, strict=True)}
    assert (at[0.0], at[0.2], at[0.59], at[0.6]) == (1.0, 0.75, 0.75, 0.0)
    assert (low <= share + 1e-12).all()
    assert (share <= high + 1e-12).all()


def test_where_a_level_is_first_reached() -> None:
    x, y = np.array([0.0, 10.0, 20.0, 30.0]), np.array([0.2, 0.4, 0.8, 0.1])
    assert [first_reached(x, y, level) for level in (0.1, 0.4, 0.6)] == pytest.approx([0.0, 10.0, 15.0])
    assert first_reached(x, y, 0.9) == math.inf
    assert (median_reached([3, 1, math.inf]), median_reached([1, 5])) == (3, 3)
    assert math.isnan(median_reached([1, math.inf]))
    assert math.isnan(median_reached([]))


def test_normalised_area_is_exact_on_uneven_steps() -> None:
    assert statistics.normalised_area([0, 10, 40], [0.0, 1.0, 1.0], 0, 40) == pytest.approx(35 / 40)
    assert statistics.normalised_area([0, 10, 40], [0.0, 1.0, 1.0], 0, 5) == pytest.approx(0.25)
    assert math.isnan(statistics.normalised_area([0, 10], [0.0, 1.0], 0, 40))
    assert math.isnan(statistics.normalised_area([0], [0.5], 0, 0))
