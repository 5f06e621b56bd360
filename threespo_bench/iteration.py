"""The metrics of one iteration: sums and means over its batches, comparable between one big batch and many small waves."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from threespo_bench.contracts.algorithm import Credit
from threespo_bench.turns import TurnBatch

_MAXIMA = ("logprob_gap_max", "ratio_max", "grad_norm_max")
_SUMS = ("update/optimizer_steps", "update/tokens", "update/rows", "update/pairs")


class IterationMetrics:
    """Collects what an iteration's batches show. ``seconds`` are wall-clock seconds by phase, kept apart because they never repeat."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._sums: dict[str, float] = defaultdict(float)
        self._weights: dict[str, float] = defaultdict(float)
        self._maxima: dict[str, float] = {}
        self._turns = self._leaves = self._successes = self._valid = self._truncated = self._batches = self._tokens = 0

    def add(self, turns: TurnBatch, credit: Credit, update: dict[str, float]) -> None:
        """Add one batch: its outcomes, the diagnostics of its credit and the metrics of its update."""
        real = turns.real
        ended = real & (_or_false(turns.terminated, real) | _or_false(turns.truncated, real))
        self._batches += 1
        self._turns += int(real.sum())
        self._leaves += int(ended.sum())
        self._successes += int((_or_false(turns.success, real) & ended).sum())
        self._truncated += int((_or_false(turns.truncated, real) & real).sum())
        self._valid += int((_or_false(turns.action_valid, real) & real).sum())
        self._tokens += int(turns.response_mask[real].sum())
        weight = float(real.sum())
        for name, value in {**credit.diagnostics, **{f"update/{k}": v for k, v in update.items()}}.items():
            self._merge(name, float(value), weight)

    def summary(self) -> dict[str, float]:
        """One row of metrics; means are weighted by the number of turns; how much was learned from (steps, rows, tokens, pairs) is a sum."""
        row: dict[str, float] = {
            "train/batches": self._batches,
            "train/turns": self._turns,
            "train/episodes": self._leaves,
            "train/success": self._successes / self._leaves if self._leaves else float("nan"),
            "train/truncated": self._truncated / self._leaves if self._leaves else float("nan"),
            "train/valid_actions": self._valid / self._turns if self._turns else float("nan"),
            "train/response_tokens": self._tokens / self._turns if self._turns else float("nan"),
        }
        row |= {name: total / self._weights[name] for name, total in self._sums.items() if self._weights[name]}
        row |= {name: self._sums[name] for name in _SUMS if name in self._sums}
        return row | self._maxima

    def _merge(self, name: str, value: float, weight: float) -> None:
        if name.rsplit("/", 1)[-1] in _MAXIMA:
            self._maxima[name] = max(value, self._maxima.get(name, value))
        elif name in _SUMS:
            self._sums[name] += value
        elif np.isfinite(value):
            self._sums[name] += value * weight
            self._weights[name] += weight


def _or_false(column: np.ndarray | None, like: np.ndarray) -> np.ndarray:
    return np.zeros_like(like) if column is None else column
