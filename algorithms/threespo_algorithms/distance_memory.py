"""What T2SPO remembers of successful trajectories: their states, each with the turns that were left; and how states become features."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import eigh


class DistanceMemory:
    """The newest states of successful trajectories, first in, first out.

    Attributes:
        states: (M, D + 2) float64, embedding of the observation, turn index and collection round.
        turns_left: (M,) float64; 1 is the state that the last turn acted in.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.states, self.turns_left = np.zeros((0, 0)), np.zeros(0)

    def __len__(self) -> int:
        return len(self.turns_left)

    def add(self, states: np.ndarray, turns_left: np.ndarray) -> None:
        """Append states, oldest first, and forget what exceeds the capacity; states that are not finite are left out."""
        good = np.isfinite(states).all(axis=1)
        if not good.any():
            return
        kept = self.states if len(self) else np.zeros((0, states.shape[1]))
        self.states = np.concatenate([kept, states[good]])[-self.capacity :]
        self.turns_left = np.concatenate([self.turns_left, turns_left[good]])[-self.capacity :]

    def state_dict(self) -> dict[str, Any]:
        """The content as arrays."""
        return {"states": self.states, "turns_left": self.turns_left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self.states, self.turns_left = np.asarray(state["states"], float), np.asarray(state["turns_left"], float)


class Reduction:
    """Standardisation and truncated singular value decomposition, both fitted to the support states alone.

    Args:
        support: (M, D) states. components: greatest number of dimensions that are kept.
    """

    def __init__(self, support: np.ndarray, components: int) -> None:
        self._mean, scale = support.mean(axis=0), support.std(axis=0)
        self._scale = np.where(scale > 1e-12 * np.maximum(1.0, np.abs(self._mean)), scale, np.inf)  # a column that never varies says nothing
        standard = self._standardise(support)
        # The right singular vectors of the standardised support are the eigenvectors of its correlation matrix.
        width = support.shape[1]
        values, vectors = eigh(standard.T @ standard, subset_by_index=(max(width - components, 0), width - 1))
        vectors = vectors[:, values > 1e-10 * max(values[-1], 1e-300)][:, ::-1]
        largest = np.abs(vectors).argmax(axis=0)
        self._vectors = vectors * np.sign(vectors[largest, np.arange(vectors.shape[1])])  # signs are arbitrary: make them repeatable

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """(N, C) features of (N, D) states, C at most the number of components; not finite where the state is not."""
        with np.errstate(invalid="ignore"):
            return self._standardise(states) @ self._vectors

    def _standardise(self, states: np.ndarray) -> np.ndarray:
        return (states - self._mean) / self._scale
