"""Learning from preferences, exactly and in two passes.

An item is many turns, and its loss is no sum over tokens: the slope of the loss depends on the log-probabilities of both items as wholes.
The first pass scores the turns without a gradient and finds the slope at each item's log-ratio; the second adds up the gradient of

    sum over items, turns and tokens of   dLoss/dItem * weight of the turn * log pi(token)

which is that of the loss, and is the same however the turns are divided into micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from threespo_bench.contracts.algorithm import Item, Preferences
from threespo_bench.contracts.objective import Optimization, Preference
from threespo_bench.errors import DataError, EngineError
from threespo_bench.objectives.preference import preference_losses
from threespo_bench.seeding import Streams
from threespo_bench.turns import TurnBatch
from threespo_plugins.embedded.packing import make_packs, micro_batch, split
from threespo_plugins.embedded.policy import Policy
from threespo_plugins.embedded.scoring import score_tokens


@dataclass(frozen=True)
class Comparison:
    """What stays together in a mini-batch: a pair, or a single item, ``chosen`` or ``rejected``, of two independent lists."""

    chosen: Item | None
    rejected: Item | None

    @property
    def items(self) -> list[Item]:
        """The items there are."""
        return [item for item in (self.chosen, self.rejected) if item is not None]

    @property
    def turns(self) -> int:
        """The number of turns in them."""
        return sum(len(item.rows) for item in self.items)


def comparisons(preferences: Preferences | None, objective: Preference, turns: TurnBatch) -> list[Comparison]:
    """The preferences as comparisons, checked against the batch.

    Raises:
        DataError: there are none to be had, or they do not fit the loss or the batch.
        EngineError: an item has no tokens.
    """
    if preferences is None:
        raise DataError("the objective is a loss on preferences, but the credit has none", fix="the algorithm must fill credit.preferences")
    if preferences.paired and len(preferences.chosen) != len(preferences.rejected):
        raise DataError(f"credit.preferences has {len(preferences.chosen)} chosen and {len(preferences.rejected)} rejected items, which are no pairs")
    if not preferences.paired and objective.loss != "kto":
        raise DataError(f"objective.loss={objective.loss} needs pairs, but credit.preferences has two independent lists", fix="kto takes such lists")
    for side, items in (("chosen", preferences.chosen), ("rejected", preferences.rejected)):
        for number, item in enumerate(items):
            _check(item, f"{side} item {number}", turns)
    if preferences.paired:
        return [Comparison(chosen, rejected) for chosen, rejected in zip(preferences.chosen, preferences.rejected, strict=True)]
    return [Comparison(item, None) for item in preferences.chosen] + [Comparison(None, item) for item in preferences.rejected]


def used_rows(batch: Sequence[Comparison]) -> np.ndarray:
    """(R,) the rows of all items, each once, in order."""
    return np.unique(np.concatenate([np.zeros(0, np.int64), *(item.rows for comparison in batch for item in comparison.items)]))


def mini_batches(every: Sequence[Comparison], optimization: Optimization, streams: Streams, update: int) -> Iterator[list[Comparison]]:
    """Whole comparisons in seeded order, as many as have ``mini_batch_turns`` turns together, but at least one."""
    for epoch in range(optimization.epochs):
        part: list[Comparison] = []
        size = 0
        for number in streams.generator("learner.order", update, epoch).permutation(len(every)):
            turns = every[number].turns
            if part and optimization.mini_batch_turns is not None and size + turns > optimization.mini_batch_turns:
                yield part
                part, size = [], 0
            part.append(every[number])
            size += turns
        yield part


@dataclass(frozen=True)
class Slopes:
    """What the first pass found of a mini-batch.

    Attributes:
        loss: its value. margins: (U,) of its comparisons. rows: (N,) float64, the slope of the loss at the sum of each row's log-probabilities.
    """

    loss: float
    margins: np.ndarray
    rows: np.ndarray


class Report:
    """Metrics of the mini-batches of an update: the loss per optimiser step, the rest per comparison, before the step that it led to."""

    def __init__(self, beta: float) -> None:
        self._beta = beta
        self._losses: list[float] = []
        self._margins: list[np.ndarray] = []

    def add(self, slopes: Slopes) -> None:
        """Include a mini-batch."""
        self._losses.append(slopes.loss)
        self._margins.append(slopes.margins)

    def metrics(self) -> dict[str, float]:
        """``loss``; ``margin_mean``, the mean of beta times the margins; ``accuracy``, the share of positive ones."""
        margins = np.concatenate(self._margins)
        return {"loss": float(np.mean(self._losses)), "margin_mean": float(self._beta * margins.mean()), "accuracy": float((margins > 0).mean())}


def slopes(objective: Preference, batch: Sequence[Comparison], log_ratios: np.ndarray, mask: np.ndarray, scale: float) -> Slopes:
    """The loss of a mini-batch, and its derivatives.

    Args:
        log_ratios: (N, T) log-probabilities of the policy less those of the reference. mask: (N, T) bool, the tokens that count.
        scale: factor on the loss.
    """
    sums, lengths = np.where(mask, log_ratios, 0.0).sum(axis=1), mask.sum(axis=1)
    chosen = [comparison.chosen for comparison in batch if comparison.chosen is not None]
    items = chosen + [comparison.rejected for comparison in batch if comparison.rejected is not None]
    rows, weights = np.concatenate([item.rows for item in items]), np.concatenate([item.weights for item in items])
    index = np.repeat(np.arange(len(items)), [len(item.rows) for item in items])
    if objective.average_log_prob:
        weights = weights / np.bincount(index, weights=lengths[rows])[index]
    ratios = torch.from_numpy(np.bincount(index, weights=weights * sums[rows])).requires_grad_()  # l(item) = sum of weight * log-ratio
    answer = preference_losses(objective, ratios[: len(chosen)], ratios[len(chosen) :])
    loss = scale * answer.losses.mean()
    (slope,) = torch.autograd.grad(loss, ratios)
    return Slopes(loss.item(), answer.margins.numpy(), np.bincount(rows, weights=slope.numpy()[index] * weights, minlength=len(mask)))


def accumulate(policy: Policy, turns: TurnBatch, row_slopes: np.ndarray) -> None:
    """The second pass: add the gradient of the sum of ``row_slopes`` (N,) times the rows' log-probabilities to the parameters'."""
    packs = make_packs(turns, np.flatnonzero(row_slopes), policy.forward.takes_masks)
    for part in split(packs, policy.config.micro_batch_tokens):
        batch = micro_batch(turns, part, policy.device)
        log_probs = score_tokens(policy, policy.model, batch).log_probs
        slope = torch.from_numpy(row_slopes[batch.row]).to(policy.device, log_probs.dtype)
        (slope * log_probs).sum().backward()


def _check(item: Item, name: str, turns: TurnBatch) -> None:
    rows, weights = np.asarray(item.rows), np.asarray(item.weights)
    if not rows.size:
        raise EngineError(f"{name} of credit.preferences has no turns", fix="the algorithm must leave out empty items")
    if rows.dtype.kind != "i" or rows.shape != weights.shape or rows.ndim != 1 or not np.isfinite(weights).all():
        raise DataError(f"{name} of credit.preferences needs integer rows, with one finite weight each")
    if rows.min() < 0 or rows.max() >= len(turns) or not turns.real[rows].all():
        raise DataError(f"{name} of credit.preferences has rows {rows.tolist()}, not all of which are turns of the batch")
    if not turns.response_mask[rows].any():
        raise EngineError(f"{name} of credit.preferences has no tokens (rows {rows.tolist()})", fix="the algorithm must leave out items of empty responses")
