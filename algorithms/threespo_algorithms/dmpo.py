"""DMPO: DPO over trajectories whose later turns weigh less."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from threespo_algorithms.dpo import DPO, DPOConfig
from threespo_bench.errors import UsageError


@dataclass
class DMPOConfig(DPOConfig):
    """Options of DMPO.

    Attributes:
        gamma: how fast the weight of turns falls with time, in (0, 1].
    """

    gamma: float = 0.7

    def validate(self) -> None:
        super().validate()
        if not 0 < self.gamma <= 1:
            raise UsageError(f"algorithm.gamma={self.gamma} is out of range: must be in (0, 1]")


class DMPO(DPO):
    """Direct Multi-turn Preference Optimization, online."""

    Config = DMPOConfig
    title = "Direct Multi-turn Preference Optimization"
    source = "arXiv:2406.14868"
    notes = (
        "h = sum over t of phi(t, n+) d+_t - sum over t of phi(t, n-) d-_t, with d_t the log-ratio of turn t to the reference, n the number of turns of a "
        "trajectory (of the losing one after it is cut) and phi(t, n) = gamma^t (1 - gamma^(n - t)) / (1 - gamma^n), which is (n - t) / n for gamma = 1. "
        "The published method is offline; the pairs here are those of `dpo`."
    )
    name = "dmpo"

    def turn_weights(self, length: int) -> np.ndarray:
        """(n,) phi(t, n)."""
        return turn_weights(length, self.config.gamma)


def turn_weights(length: int, gamma: float) -> np.ndarray:
    """(n,) phi(t, n) = gamma^t (1 - gamma^(n - t)) / (1 - gamma^n) for t = 0 ... n - 1; (n - t) / n for gamma = 1."""
    t = np.arange(length)
    if gamma == 1:
        return (length - t) / length
    return gamma**t * (1 - gamma ** (length - t)) / (1 - gamma**length)
