"""The learner: scores turns and moves the weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from transformers import PreTrainedModel

from threespo_bench.contracts.algorithm import Credit
from threespo_bench.contracts.engine import Learner
from threespo_bench.contracts.objective import Critic, Objective, Optimization, PolicyGradient, Preference
from threespo_bench.errors import UsageError
from threespo_bench.objectives.policy_gradient import LossReport
from threespo_bench.seeding import Streams
from threespo_bench.turns import TurnBatch
from threespo_plugins.embedded import checkpoint, checks, gradient, preference, value_tokens
from threespo_plugins.embedded.critic import ValueFunction
from threespo_plugins.embedded.embeddings import Embedder
from threespo_plugins.embedded.optimizer import Optimizer
from threespo_plugins.embedded.packing import make_packs, micro_batch, split
from threespo_plugins.embedded.policy import Policy
from threespo_plugins.embedded.reference import Reference
from threespo_plugins.embedded.rows import SPOT_CHECK, mini_batches, nothing_moves, selected_rows, selected_tokens
from threespo_plugins.embedded.scoring import score_tokens

_Batch = TypeVar("_Batch")


class EmbeddedLearner(Learner):
    """Trains the policy's weights in place with AdamW.

    The model stays in evaluation mode: dropout would make its log-probabilities differ from the sampler's.

    Args:
        policy: shared with the rollout engine.
        seed: the run's seed; the order of mini-batches comes from it and the number of the update.
    """

    def __init__(self, policy: Policy, seed: int) -> None:
        self._policy = policy
        self._streams = Streams(seed)
        self._optimizer = Optimizer(policy.model)
        self._reference = Reference(policy)
        self._embedder = Embedder(policy)
        self._critic: ValueFunction | None = None
        self._updates = 0
        self._verified = False
        self._hand_over: Callable[[], None] | None = None

    def score(self, turns: TurnBatch, policy: str = "actor") -> np.ndarray:
        """See :meth:`Learner.score`; float64. ``reference`` is the model as the run found it, or as it was when last refreshed."""
        if policy not in ("actor", "reference"):
            raise UsageError(f"policy {policy!r} is unknown", fix="actor or reference")
        turns.require(("response_ids", "prompt_ids"), "the embedded engine")
        model = self._policy.model if policy == "actor" else self._reference.model()
        return self._score(model, turns, np.flatnonzero(turns.real))

    def update(self, turns: TurnBatch, credit: Credit, objective: Objective, optimization: Optimization) -> dict[str, float]:
        """See :meth:`Learner.update`. A batch with some mini-batches already stepped is taken back whole if a later one fails."""
        turns.require(("response_ids", "prompt_ids", "old_log_probs"), "the embedded engine")
        checks.check_versions(turns, self._policy.version, self._policy.config.max_staleness)
        turns = selected_tokens(turns, credit)
        if isinstance(objective, Preference):
            return self._update_by_preferences(turns, credit, objective, optimization)
        return self._update_by_advantages(turns, credit, objective, optimization)

    def verify(self, turns: TurnBatch) -> None:
        """See :meth:`Learner.verify`."""
        if self._hand_over is not None:
            checks.check_versions(turns, self._policy.version, self._policy.config.max_staleness)
            self._compare(turns, np.flatnonzero(turns.real))

    def refresh_reference(self) -> None:
        """See :meth:`Learner.refresh_reference`."""
        self._reference.refresh()

    def serve(self, hand_over: Callable[[], None]) -> None:
        """The sampler has weights of its own: call this after loading a checkpoint, and compare some log-probabilities before every update."""
        self._hand_over = hand_over

    def add_critic(self) -> None:
        """Make a value function from the starting weights."""
        self._critic = ValueFunction(self._policy, self._streams)

    @property
    def critic(self) -> ValueFunction:
        """The value function. Raises UsageError if there is none."""
        if self._critic is None:
            raise UsageError("there is no critic", fix="call engine.prepare(frozenset({'critic'})) first, or let the algorithm name it in needs")
        return self._critic

    def values(self, turns: TurnBatch) -> np.ndarray:
        """See :meth:`Learner.values`."""
        return self.critic.values(turns)

    def prompt_values(self, prompts: Sequence[np.ndarray]) -> np.ndarray:
        """See :meth:`Learner.prompt_values`."""
        return self.critic.prompt_values(prompts)

    def update_critic(self, turns: TurnBatch, credit: Credit, critic: Critic) -> dict[str, float]:
        """See :meth:`Learner.update_critic`."""
        return self.critic.update(turns, credit, critic)

    def value_logits(self, turns: TurnBatch) -> np.ndarray:
        """See :meth:`Learner.value_logits`."""
        return value_tokens.value_logits(self._policy, turns)

    def prompt_value_logits(self, prompts: Sequence[np.ndarray]) -> np.ndarray:
        """See :meth:`Learner.prompt_value_logits`."""
        return value_tokens.prompt_value_logits(self._policy, prompts)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """See :meth:`Learner.embed`."""
        return self._embedder.embed(texts)

    def embed_prompts(self, prompts: Sequence[np.ndarray]) -> np.ndarray:
        """See :meth:`Learner.embed_prompts`."""
        return self._embedder.embed_prompts(prompts)

    def save(self, folder: Path) -> None:
        """See :meth:`Learner.save`."""
        state = {"version": self._policy.version, "unpublished": self._policy.unpublished, "updates": self._updates}
        checkpoint.save(folder, self._policy.model, self._optimizer, state)
        if self._reference.refreshed:
            self._reference.save(folder)
        if self._critic is not None:
            self._critic.save(folder)

    def load(self, folder: Path) -> None:
        """See :meth:`Learner.load`."""
        state = checkpoint.load(folder, self._policy.model, self._optimizer)
        self._reference.load(folder)
        if self._critic is not None:
            self._critic.load(folder)
        self._policy.version, self._policy.unpublished = int(state["version"]), bool(state["unpublished"])
        self._updates = int(state["updates"])
        if self._hand_over is not None:
            self._hand_over()

    def export(self, folder: Path) -> None:
        """See :meth:`Learner.export`."""
        checkpoint.export(folder, self._policy.model, self._policy.tokenizer)

    def _update_by_advantages(self, turns: TurnBatch, credit: Credit, objective: PolicyGradient, optimization: Optimization) -> dict[str, float]:
        rows = selected_rows(turns, credit, objective)
        metrics = {"rows": float(len(rows)), "tokens": float(turns.response_mask[rows].sum()), "optimizer_steps": 0.0}
        if not len(rows):
            return metrics
        checks.check_finite("advantages", credit.advantages, turns.response_mask, rows)
        checks.check_finite("old_log_probs", turns.old_log_probs, turns.response_mask, rows)
        if objective.rollout_ratio_cap is not None:
            turns.require(("rollout_log_probs",), "objective.rollout_ratio_cap")
            checks.check_finite("rollout_log_probs", turns.rollout_log_probs, turns.response_mask, rows)
        reference = self._reference_log_probs(turns, rows) if objective.kl_coef > 0 else None
        self._verify(turns, rows)
        if nothing_moves(rows, credit, turns, objective):
            return metrics

        report, gap = LossReport(), checks.LogProbGap()

        def backward(number: int, batch: np.ndarray) -> float:
            part = gradient.accumulate(self._policy, turns, credit, objective, batch, reference, gap if number == 0 else None)
            report.add(part)
            return part.sums.get("loss", 0.0)

        norms = self._steps(list(mini_batches(rows, optimization, self._streams, self._updates)), backward, optimization)
        metrics["optimizer_steps"] = float(len(norms))
        return metrics | self._metrics(report, norms, objective) | gap.metrics()

    def _update_by_preferences(self, turns: TurnBatch, credit: Credit, objective: Preference, optimization: Optimization) -> dict[str, float]:
        comparisons = preference.comparisons(credit.preferences, objective, turns)
        rows = preference.used_rows(comparisons)
        tokens = float(turns.response_mask[rows].sum())
        metrics = {"rows": float(len(rows)), "tokens": tokens, "pairs": float(len(comparisons)), "optimizer_steps": 0.0}
        if not comparisons:
            return metrics
        checks.check_finite("old_log_probs", turns.old_log_probs, turns.response_mask, rows)
        reference = self._reference_log_probs(turns, rows)
        self._verify(turns, rows)

        report, gap = preference.Report(objective.beta), checks.LogProbGap()

        def backward(number: int, batch: list[preference.Comparison]) -> float:
            used = preference.used_rows(batch)
            own = self._score(self._policy.model, turns, used)
            if number == 0:
                mask = turns.response_mask[used]
                gap.add(own[used][mask], turns.old_log_probs[used][mask])
            slopes = preference.slopes(objective, batch, own - reference, turns.response_mask, credit.scale)
            preference.accumulate(self._policy, turns, slopes.rows)
            report.add(slopes)
            return slopes.loss

        norms = self._steps(list(preference.mini_batches(comparisons, optimization, self._streams, self._updates)), backward, optimization)
        metrics["optimizer_steps"] = float(len(norms))
        return metrics | report.metrics() | {"grad_norm": float(np.mean(norms))} | gap.metrics()

    def _steps(self, batches: Sequence[_Batch], backward: Callable[[int, _Batch], float], optimization: Optimization) -> list[float]:
        """One optimiser step for each mini-batch, all or none; returns the gradient norms. ``backward`` adds the gradient and returns the loss."""
        snapshot = self._optimizer.snapshot() if len(batches) > 1 else None
        norms = []
        try:
            for number, batch in enumerate(batches):
                self._optimizer.clear()
                norms.append(self._optimizer.step(backward(number, batch), optimization))
        except BaseException:  # Ctrl-C included: a batch is learned from whole or not at all
            if snapshot is not None:
                self._optimizer.restore(snapshot)
            raise
        self._updates += 1
        self._policy.unpublished = True
        return norms

    def _verify(self, turns: TurnBatch, rows: np.ndarray) -> None:
        """On the first update, require that the learner's log-probabilities are those that the sampler reported.

        A sampler with weights of its own is checked again on some rows of every update: it may have forgotten one and still report its version.
        """
        if (not self._verified or self._hand_over is not None) and turns.policy_version is not None:
            fresh = rows[turns.policy_version[rows] == self._policy.version]
            fresh = fresh[:SPOT_CHECK] if self._verified else fresh
            self._compare(turns, fresh)
            self._verified = self._verified or len(fresh) > 0

    def _compare(self, turns: TurnBatch, rows: np.ndarray) -> None:
        """Raises EngineError if the sampler's log-probabilities are not the learner's."""
        own = self._score(self._policy.model, turns, rows)
        checks.check_log_probs(own, turns, rows, self._policy.config.log_prob_tolerance, agreed=self._verified)

    @torch.no_grad()
    def _score(self, model: PreTrainedModel, turns: TurnBatch, rows: np.ndarray) -> np.ndarray:
        out = np.zeros(turns.response_mask.shape)
        packs = make_packs(turns, rows, self._policy.forward.takes_masks)
        for part in split(packs, self._policy.config.micro_batch_tokens):
            batch = micro_batch(turns, part, self._policy.device)
            out[batch.row, batch.column] = score_tokens(self._policy, model, batch).log_probs.double().cpu().numpy()
        return out

    def _reference_log_probs(self, turns: TurnBatch, rows: np.ndarray) -> np.ndarray:
        reference = turns.ref_log_probs if turns.ref_log_probs is not None else self._score(self._reference.model(), turns, rows)
        checks.check_finite("ref_log_probs", reference, turns.response_mask, rows)
        return reference

    def _metrics(self, report: LossReport, norms: list[float], objective: PolicyGradient) -> dict[str, float]:
        """Losses per optimiser step, the rest per token."""
        names = ("loss", "policy_loss", "kl") if objective.kl_coef > 0 else ("loss", "policy_loss")
        names += tuple(name for name in value_tokens.LOSSES if name in report.sums)
        losses = {name: report.sums.get(name, 0.0) / len(norms) for name in names}
        return losses | report.means() | {"grad_norm": float(np.mean(norms))}
