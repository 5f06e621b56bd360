"""The critic: a value function of its own, with an optimiser of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from threespo_bench.contracts.algorithm import Credit
from threespo_bench.contracts.objective import Critic, Optimization
from threespo_bench.errors import DataError, UsageError
from threespo_bench.objectives.value_regression import value_losses
from threespo_bench.seeding import Streams
from threespo_bench.turns import TurnBatch
from threespo_plugins.embedded import checkpoint, checks
from threespo_plugins.embedded.forward import body_of
from threespo_plugins.embedded.loading import load_model
from threespo_plugins.embedded.optimizer import Optimizer
from threespo_plugins.embedded.packing import MicroBatch, make_packs, micro_batch, prompts_as_turns, split
from threespo_plugins.embedded.policy import Policy

_FOLDER = "critic"


class ValueModel(torch.nn.Module):
    """A transformer body with a linear head that says one value at each position; it starts at zero, so that the first values are 0."""

    def __init__(self, body: PreTrainedModel, size: int) -> None:
        super().__init__()
        self.body = body
        self.head = torch.nn.utils.skip_init(torch.nn.Linear, size, 1, device=body.device)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)


@dataclass
class _Fit:
    """Sums over the targets of an update."""

    loss: float = 0.0
    clipped: float = 0.0
    targets: int = 0


class ValueFunction:
    """Values of token positions, learned by regression. It starts as a copy of the starting model's body.

    Args:
        policy: tells the folder of the starting weights, the device, and how the architecture is called.
        streams: of the run; the order of mini-batches comes from them.
    """

    def __init__(self, policy: Policy, streams: Streams) -> None:
        self._policy, self._streams = policy, streams
        size = policy.model.get_output_embeddings().weight.shape[1]
        self.model = ValueModel(body_of(load_model(policy.folder, policy.device)), size)
        self._optimizer = Optimizer(self.model)
        self._updates = 0

    @torch.no_grad()
    def values(self, turns: TurnBatch) -> np.ndarray:
        """See :meth:`Learner.values`: each value is read at the position that predicts the token."""
        turns.require(("response_ids", "prompt_ids"), "the critic")
        out = np.zeros(turns.response_mask.shape)
        packs = make_packs(turns, np.flatnonzero(turns.real), self._policy.forward.takes_masks)
        for part in split(packs, self._policy.config.micro_batch_tokens):
            batch = micro_batch(turns, part, self._policy.device)
            out[batch.row, batch.column] = self._read(batch).double().cpu().numpy()
        return out

    def prompt_values(self, prompts: Sequence[np.ndarray]) -> np.ndarray:
        """See :meth:`Learner.prompt_values`."""
        return self.values(prompts_as_turns(prompts))[:, 0]

    def update(self, turns: TurnBatch, credit: Credit, settings: Critic) -> dict[str, float]:
        """See :meth:`Learner.update_critic`. A batch with some mini-batches already stepped is taken back whole if a later one fails.

        Returns:
            ``value_loss`` (mean over optimiser steps), ``value_clip_fraction`` (share of targets), ``explained_variance`` of the values at the time
            of the rollout, ``critic_grad_norm``; nothing if there is no target.

        Raises:
            UsageError: the credit has no returns.
            DataError: returns or values have a shape that does not fit.
            EngineError: a target or a value is not finite, or loss or gradient (the weights are left as they were).
        """
        found = regression(turns, credit)
        mask, rows, targets, old = found.mask, found.rows, found.targets, found.old
        if not len(rows):
            return {}
        masked = replace(turns, response_mask=mask)  # only what has a target is computed

        fit, norms = _Fit(), []
        batches = mini_batches(rows, settings, self._streams, self._updates)
        snapshot = self._optimizer.snapshot() if len(batches) > 1 else None
        optimization = Optimization(learning_rate=settings.learning_rate, weight_decay=settings.weight_decay, gradient_clip=settings.gradient_clip)
        try:
            for batch in batches:
                self._optimizer.clear()
                loss = self._backward(masked, batch, targets, old, settings.value_clip, fit)
                norms.append(self._optimizer.step(loss, optimization))
        except BaseException:  # Ctrl-C included: a batch is learned from whole or not at all
            if snapshot is not None:
                self._optimizer.restore(snapshot)
            raise
        self._updates += 1
        return {
            "value_loss": fit.loss / len(norms),
            "value_clip_fraction": fit.clipped / fit.targets,
            "explained_variance": explained_variance(old[mask], targets[mask]),
            "critic_grad_norm": float(np.mean(norms)),
        }

    def save(self, folder: Path) -> None:
        """Write weights, optimiser and counters into a folder of their own in ``folder``."""
        checkpoint.save(folder / _FOLDER, self.model, self._optimizer, {"updates": self._updates})

    def load(self, folder: Path) -> None:
        """Continue from :meth:`save`. Raises StorageError if there is no such critic."""
        self._updates = int(checkpoint.load(folder / _FOLDER, self.model, self._optimizer)["updates"])

    def _backward(self, turns: TurnBatch, rows: np.ndarray, targets: np.ndarray, old: np.ndarray, clip: float | None, fit: _Fit) -> float:
        """Accumulate the gradient of one mini-batch; the loss is the same however it is divided into micro-batches."""
        device, count, total = self._policy.device, int(turns.response_mask[rows].sum()), 0.0
        packs = make_packs(turns, rows, self._policy.forward.takes_masks)
        for part in split(packs, self._policy.config.micro_batch_tokens):
            batch = micro_batch(turns, part, device)
            place = (batch.row, batch.column)
            told, target = (torch.from_numpy(values[place]).to(device, torch.float32) for values in (old, targets))
            losses, clipped = value_losses(self._read(batch), told, target, clip)
            loss = losses.sum() / count
            loss.backward()
            total += loss.item()
            fit.clipped += clipped.sum().item()
        fit.loss += total
        fit.targets += count
        return total

    def _read(self, batch: MicroBatch) -> torch.Tensor:
        """(M,) float32 values at the positions that predict."""
        policy = self._policy
        attention = None if batch.attention is None else policy.ready_mask(batch.attention)
        with policy.autocast(), policy.forward.only_positions_of_body(self.model.body, batch.predicting):
            hidden = policy.forward.hidden(self.model.body, batch.ids, attention, batch.positions)
        return self.model.head(hidden.flatten(0, 1)[batch.predicting].float())[:, 0]


@dataclass(frozen=True)
class Regression:
    """What an update regresses on: (R,) ``rows`` that have a target, the (N, T) ``mask`` of the targets, and (N, T) ``targets`` and ``old`` values."""

    rows: np.ndarray
    mask: np.ndarray
    targets: np.ndarray
    old: np.ndarray


def regression(turns: TurnBatch, credit: Credit) -> Regression:
    """The targets of a batch, checked. Raises as :meth:`ValueFunction.update`."""
    if credit.returns is None:
        raise UsageError("the critic has nothing to learn from: the algorithm's credit has no returns", fix="the algorithm must fill credit.returns")
    turns.require(("response_ids", "prompt_ids", "values"), "the critic")
    mask = _counted(turns, credit)
    rows = np.flatnonzero(mask.any(axis=1))
    targets, old = _token_columns("returns", credit.returns, turns), _token_columns("values", turns.values, turns)
    if turns.values.ndim < credit.returns.ndim:
        raise DataError("returns have one number a token, but values have one a turn")
    checks.check_finite("returns", targets, mask, rows)
    checks.check_finite("values", old, mask, rows)
    return Regression(rows, mask, targets, old)


def mini_batches(rows: np.ndarray, settings: Critic, streams: Streams, update: int) -> list[np.ndarray]:
    """The rows in seeded order, ``mini_batch_turns`` of them a step, for each epoch."""
    size, batches = settings.mini_batch_turns or len(rows), []
    for epoch in range(settings.epochs):
        order = streams.generator("critic.order", update, epoch).permutation(len(rows))
        batches += [rows[order[start : start + size]] for start in range(0, len(rows), size)]
    return batches


def explained_variance(values: np.ndarray, targets: np.ndarray) -> float:
    """1 - Var(targets - values) / Var(targets) of (M,) values: 1 is perfect, 0 is no better than a constant; 0 if the targets do not vary."""
    spread = targets.var()
    return float(1.0 - (targets - values).var() / spread) if spread > 0 else 0.0


def _counted(turns: TurnBatch, credit: Credit) -> np.ndarray:
    """(N, T) the tokens that have a target: those under the mask of the selected rows, or of such a row the first, if a turn has one target."""
    mask = turns.response_mask & turns.real[:, None]
    if credit.selected is not None:
        if credit.selected.dtype != bool or credit.selected.shape != (len(turns),):
            raise DataError(f"credit.selected must be a boolean column of {len(turns)} rows")
        mask = mask & credit.selected[:, None]
    return mask & (np.arange(mask.shape[1]) == 0) if np.ndim(credit.returns) == 1 else mask


def _token_columns(name: str, column: np.ndarray, turns: TurnBatch) -> np.ndarray:
    """(N, T) float64; one number a turn stands in column 0."""
    shape = turns.response_mask.shape
    if column.shape not in (shape, shape[:1]):
        raise DataError(f"{name} have shape {column.shape}, expected {shape} or {shape[:1]}")
    out = np.zeros(shape)
    if column.ndim == 1:
        out[:, :1] = column[:, None]
    else:
        out[:] = column
    return out
