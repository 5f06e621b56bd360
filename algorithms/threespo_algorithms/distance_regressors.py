"""Regressors that T2SPO predicts distances with. None of them is trained: each reads the support set when it is asked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import numpy as np

from threespo_bench.errors import UsageError

_CHUNK = 512
_FALL_BACK = "choose t2spo_knn, which predicts by nearest neighbours"


class DistanceRegressor(Protocol):
    """Predicts a number for each query from labelled examples."""

    def predict(self, support: np.ndarray, labels: np.ndarray, queries: np.ndarray) -> np.ndarray:
        """(Q,) float64 predictions; not finite where there is none.

        Args:
            support: (M, C) features. labels: (M,). queries: (Q, C) features, which may be not finite.
        """


class NearestNeighbours:
    """The mean label of the nearest support states by Euclidean distance; those as near as the last one count too, so that ties need no order.

    Args:
        neighbours: k.
    """

    def __init__(self, neighbours: int) -> None:
        self.neighbours = neighbours

    def predict(self, support: np.ndarray, labels: np.ndarray, queries: np.ndarray) -> np.ndarray:
        """(Q,) means; NaN for queries that are not finite."""
        k = min(self.neighbours, len(labels))
        predictions = np.full(len(queries), np.nan)
        squared = (support**2).sum(axis=1)
        usable = np.flatnonzero(np.isfinite(queries).all(axis=1))
        for start in range(0, len(usable), _CHUNK):
            rows = usable[start : start + _CHUNK]
            here = queries[rows]
            distance = (here**2).sum(axis=1)[:, None] + squared - 2 * here @ support.T
            furthest = np.partition(distance, k - 1, axis=1)[:, k - 1]
            near = distance <= (furthest + 1e-9 * (1.0 + np.abs(furthest)))[:, None]
            predictions[rows] = near @ labels / near.sum(axis=1)
        return predictions


class TabPFN:
    """The in-context tabular regressor TabPFN (arXiv:2207.01848, arXiv:2501.02549), frozen, with weights from a local file.

    Args:
        weights: path of the regressor's checkpoint. device: torch device it runs on.

    Raises:
        UsageError: the package or its weights are not there. Nothing is downloaded, and no other regressor takes its place.
    """

    def __init__(self, weights: str, device: str) -> None:
        os.environ.setdefault("TABPFN_DISABLE_TELEMETRY", "1")  # some versions report their use
        try:
            from tabpfn import TabPFNRegressor
        except ImportError as error:
            raise UsageError(
                f"t2spo predicts distances with TabPFN, which cannot be imported: {error}", fix=f"pip install 'threespo-bench[tabpfn]', or {_FALL_BACK}"
            ) from error
        if not weights:
            raise UsageError(
                "t2spo predicts distances with TabPFN, which needs its weights in a local file",
                fix=f"set algorithm.tabpfn_weights=FILE, a checkpoint of TabPFN's regressor, or {_FALL_BACK}",
            )
        if not Path(weights).is_file():
            raise UsageError(f"algorithm.tabpfn_weights={weights}: there is no such file", fix=f"give a checkpoint of TabPFN's regressor, or {_FALL_BACK}")
        self._create = lambda: TabPFNRegressor(model_path=weights, device=device, ignore_pretraining_limits=True, random_state=0)

    def predict(self, support: np.ndarray, labels: np.ndarray, queries: np.ndarray) -> np.ndarray:
        """(Q,) means of the predictive distributions; NaN for queries that are not finite."""
        predictions = np.full(len(queries), np.nan)
        usable = np.isfinite(queries).all(axis=1)
        if usable.any():
            predictions[usable] = np.asarray(self._create().fit(support, labels).predict(queries[usable]), float)
        return predictions
