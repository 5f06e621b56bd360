"""The critic: a value function in workers of its own, learned by regression as that of the embedded engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tensordict import TensorDict

from threespo_bench.contracts.algorithm import Credit
from threespo_bench.contracts.objective import Critic, Optimization
from threespo_bench.seeding import Streams
from threespo_bench.turns import TurnBatch
from threespo_plugins.embedded.critic import explained_variance, mini_batches, regression
from threespo_plugins.embedded.packing import prompts_as_turns, response_lengths
from threespo_plugins.verl_engine import checkpoint
from threespo_plugins.verl_engine.groups import Workers
from threespo_plugins.verl_engine.losses import ValueLoss
from threespo_plugins.verl_engine.policy import RemotePolicy
from threespo_plugins.verl_engine.rows import deal, read, tensors
from threespo_plugins.verl_engine.training import Steps, added


class ValueFunction:
    """Values of token positions. It starts as a copy of the starting model's body.

    Args:
        workers: hold it.
    """

    def __init__(self, policy: RemotePolicy, workers: Workers, seed: int) -> None:
        self._policy, self._workers, self._steps = policy, workers, Steps(workers)
        self._streams = Streams(seed)
        self._updates = 0

    def values(self, turns: TurnBatch) -> np.ndarray:
        """See :meth:`Learner.values`: each value is read at the position that predicts the token."""
        turns.require(("response_ids", "prompt_ids"), "the critic")
        rows = np.flatnonzero(turns.real & turns.response_mask.any(axis=1))
        if not len(rows):
            return np.zeros(turns.response_mask.shape)
        dealt = deal(_lengths(turns, rows), rows, self._workers.ranks)
        batch = tensors(turns, dealt, {}, self._policy.config.micro_batch_tokens, compute_loss=False)
        return read(self._workers.rows("infer", batch)["values"], turns, dealt)

    def prompt_values(self, prompts: Sequence[np.ndarray]) -> np.ndarray:
        """See :meth:`Learner.prompt_values`."""
        return self.values(prompts_as_turns(prompts))[:, 0]

    def update(self, turns: TurnBatch, credit: Credit, settings: Critic) -> dict[str, float]:
        """See :meth:`Learner.update_critic`; metrics and errors are those of the embedded engine's critic."""
        found = regression(turns, credit)
        if not len(found.rows):
            return {}
        masked = replace(turns, response_mask=found.mask)  # only what has a target is computed
        optimization = Optimization(learning_rate=settings.learning_rate, weight_decay=settings.weight_decay, gradient_clip=settings.gradient_clip)
        targets = 0

        def backward(_: int, rows: np.ndarray) -> tuple[Any, TensorDict]:
            nonlocal targets
            count = int(found.mask[rows].sum())
            targets += count
            columns = {"old_values": found.old, "returns": found.targets, "weights": np.where(found.mask, 1.0 / count, 0.0)}
            dealt = deal(_lengths(masked, rows), rows, self._workers.ranks)
            return ValueLoss(settings.value_clip), tensors(masked, dealt, columns, self._policy.config.micro_batch_tokens)

        reports, norms = self._steps.run(mini_batches(found.rows, settings, self._streams, self._updates), backward, optimization)
        self._updates += 1
        sums = added(reports)
        return {
            "value_loss": sums["loss"] / len(norms),
            "value_clip_fraction": sums["clipped"] / targets,
            "explained_variance": explained_variance(found.old[found.mask], found.targets[found.mask]),
            "critic_grad_norm": float(np.mean(norms)),
        }

    def save(self, folder: Path) -> None:
        """Write weights, optimiser and counters beside those of the policy."""
        checkpoint.save(folder, checkpoint.CRITIC, self._workers, self._policy, {"updates": self._updates})

    def load(self, folder: Path) -> None:
        """Continue from :meth:`save`. Raises StorageError if there is no such critic."""
        self._updates = int(checkpoint.load(folder, checkpoint.CRITIC, self._workers)["updates"])


def _lengths(turns: TurnBatch, rows: np.ndarray) -> np.ndarray:
    return np.array([len(turns.prompt_ids[row]) for row in rows]) + response_lengths(turns.response_mask[rows])
