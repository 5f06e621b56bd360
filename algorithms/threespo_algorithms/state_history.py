"""What 3SPO remembers of states: how many finished trajectories passed through each, how many of those succeeded, and the clock."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


class StateHistory:
    """Persistent counts per state key.

    Attributes:
        clock: t >= 1; what it counts is the algorithm's choice (D1).
    """

    def __init__(self) -> None:
        self.clock = 1
        self._counts: dict[str, list[float]] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def total(self, key: str) -> int:
        """N_total: finished trajectories that passed through the state. Reading never grows the table."""
        counts = self._counts.get(key)
        return int(counts[0]) if counts else 0

    def lookup(self, keys: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
        """(N,) N_total and (N,) N_success of the given keys."""
        pairs = np.array([self._counts.get(key, (0, 0)) for key in keys], dtype=float).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def record(self, path: Sequence[str], success: bool, discount: float = 1.0, repeats: bool = False) -> None:
        """Add one finished trajectory: N_total += 1 for every distinct key of ``path``, and N_success += 1 if it succeeded.

        Args:
            path: keys in the order of time.
            discount: a success counts ``discount`` to the power of the turns from the first visit of the state to the end; 1 as published.
            repeats: count a key as often as the path visits it.
        """
        seen: set[str] = set()
        for turn, key in enumerate(path):
            if key in seen and not repeats:
                continue
            seen.add(key)
            counts = self._counts.setdefault(key, [0, 0.0])
            counts[0] += 1
            counts[1] += discount ** (len(path) - 1 - turn) if success else 0.0

    def state_dict(self) -> dict[str, Any]:
        """The clock and the table as plain data."""
        counts = np.array(list(self._counts.values()), dtype=float).reshape(-1, 2)
        return {"clock": self.clock, "keys": list(self._counts), "counts": counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`; the clock is stored, not derived from the counts."""
        self.clock = int(state["clock"])
        self._counts = {key: [int(total), float(won)] for key, (total, won) in zip(state["keys"], state["counts"], strict=True)}


def state_score(total: np.ndarray, won: np.ndarray, clock: float, alpha: float, xi: float, zeta: float, epsilon: float, truncate: bool) -> np.ndarray:
    """(N,) S(s), the difficulty of a state (E1 to E3 of docs/3spo.md).

        SR(s) = N_success / (N_total + eps)          lambda(t) = alpha ln t
        S(s)  = 1                                    if N_total = 0
              = exp(-lambda(t) SR(s)) * keep(s)      otherwise
        keep(s) = N_fail < xi  or  SR(s) > zeta

    With ``truncate`` false the indicator is left out. A kept state's score stays positive: exp underflows where a mastered state meets a
    late clock, and 0 would make it a hopeless one.
    """
    rate = won / (total + epsilon)
    score = np.maximum(np.exp(-alpha * np.log(clock) * rate), np.finfo(float).tiny)
    if truncate:
        score = np.where((total - won < xi) | (rate > zeta), score, 0.0)
    return np.where(total == 0, 1.0, score)


def novelty_weight(total: np.ndarray, omega_k: float, omega_max: float = 0.5) -> np.ndarray:
    """(N,) omega(N) = omega_max exp(-omega_k N) (E5; omega_max is 0.5 as published)."""
    return omega_max * np.exp(-omega_k * total)


def hash_text(text: str) -> int:
    """A 63-bit digest of a key, the same in every process: what is kept of states that are only counted as seen."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
