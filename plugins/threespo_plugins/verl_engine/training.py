"""Optimiser steps in the workers: all of a batch, or none."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
from tensordict import TensorDict
from verl.utils import tensordict_utils

from threespo_bench.contracts.objective import Optimization
from threespo_bench.errors import EngineError
from threespo_plugins.verl_engine.groups import Workers
from threespo_plugins.verl_engine.losses import REPORT

_Batch = TypeVar("_Batch")
Sums = dict[str, float]


class Steps:
    """Steps of one model.

    Args:
        workers: hold it.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def run(
        self, batches: Sequence[_Batch], backward: Callable[[int, _Batch], tuple[Any, TensorDict]], optimization: Optimization
    ) -> tuple[list[Sums], list[float]]:
        """One optimiser step for each mini-batch, all or none.

        Args:
            backward: the loss and the rows of a mini-batch, given its number.

        Returns:
            What the loss reported of each mini-batch, and the gradient norms before clipping.

        Raises:
            EngineError: loss or gradient is not finite; weights and optimiser are as they were.
        """
        workers, several = self._workers, len(batches) > 1
        if several:
            workers.all("keep")
        workers.all("use", optimization)
        reports, norms = [], []
        done = False
        try:
            for number, batch in enumerate(batches):
                loss, rows = backward(number, batch)
                workers.all("set_loss_fn", loss)
                answer = tensordict_utils.get(workers.rows("step", rows), "metrics")
                reports.append(_sums(answer))
                norms.append(_checked(answer))
            done = True
        finally:  # Ctrl-C included: a batch is learned from whole or not at all
            if several:
                workers.all("forget", not done)
        return reports, norms


def added(reports: Iterable[Sums]) -> Sums:
    """The reports of several mini-batches as one."""
    total: Sums = {}
    for report in reports:
        for name, value in report.items():
            total[name] = _both(name, total.get(name, 0.0), value)
    return total


def _checked(answer: dict[str, Any]) -> float:
    loss, norm = float(answer["loss"]), float(answer["grad_norm"])
    if not math.isfinite(loss):
        raise EngineError(f"the loss is {loss}; the weights were left as they were", fix="look at ratio_max and logprob_gap_max of the last updates")
    if not math.isfinite(norm):
        raise EngineError(f"the gradient norm is {norm}; the weights were left as they were", fix="lower the learning rate, or look at the advantages")
    return norm


def _sums(answer: dict[str, Any]) -> Sums:
    """verl gathers what the loss reported as a list for each rank of one number for each micro-batch."""
    found: Sums = {}
    for name, value in answer.items():
        if name.startswith(REPORT):
            numbers = np.concatenate([np.ravel(part) for part in value])
            found[name.removeprefix(REPORT)] = float(numbers.max() if name.endswith("_max") else numbers.sum())
    return found


def _both(name: str, one: float, other: float) -> float:
    return max(one, other) if name.endswith("_max") else one + other
