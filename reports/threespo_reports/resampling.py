"""The bootstrap over seeds: percentile intervals from draws with replacement that are made once per number of seeds, in float64 and seeded."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

SEED = 20_240_613  # of every resampling, so that equal inputs give equal bytes
RESAMPLES = 9_999  # of a number
CURVE_RESAMPLES = 2_000  # of each point of a curve
CONFIDENCE = 0.95

Floats = NDArray[np.float64]


@lru_cache(maxsize=64)
def draws(seeds: int, resamples: int = RESAMPLES, stream: int = 0) -> NDArray[np.int64]:
    """(resamples, seeds) places of seeds, drawn with replacement. Other streams are independent: for a second sample that is drawn by itself."""
    drawn = np.random.default_rng([SEED, stream]).integers(0, seeds, (resamples, seeds))
    drawn.flags.writeable = False
    return drawn


@lru_cache(maxsize=64)
def weights(seeds: int, resamples: int = CURVE_RESAMPLES, stream: int = 0) -> Floats:
    """(resamples, seeds) share of each seed in each draw: ``weights @ rows`` are the means of the resampled rows."""
    drawn = draws(seeds, resamples, stream)
    places = drawn + seeds * np.arange(resamples)[:, None]
    shares = np.bincount(places.ravel(), minlength=resamples * seeds).reshape(resamples, seeds) / seeds
    shares.flags.writeable = False
    return shares


def ends(resampled: Floats) -> tuple[Floats, Floats]:
    """Both ends of the percentile interval along the first axis."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail], axis=0)
    return low, high


def mean_band(rows: Floats, stream: int = 0) -> tuple[Floats, Floats]:
    """Ends of the interval of the mean of ``rows`` (seeds x points) at every point; one draw of seeds serves all points. NaN for fewer than two seeds."""
    if len(rows) < 2:
        blank = np.full(rows.shape[1], np.nan)
        return blank, blank
    return ends(weights(len(rows), stream=stream) @ rows)


def stratified_mean_band(strata: list[Floats]) -> tuple[Floats, Floats]:
    """The same for the mean over strata of their means, seeds drawn within each stratum. NaN if any stratum has fewer than two seeds."""
    if any(len(rows) < 2 for rows in strata):
        blank = np.full(strata[0].shape[1], np.nan)
        return blank, blank
    total = sum(weights(len(rows), stream=stream) @ rows for stream, rows in enumerate(strata))
    return ends(np.asarray(total) / len(strata))
