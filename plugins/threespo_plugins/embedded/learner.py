"""The learner: scores turns and moves the weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from threespo_bench.contracts.algorithm import Credit
from threespo_bench.contracts.engine import Learner
from threespo_bench.contracts.objective import Optimization, PolicyGradient
from threespo_bench.errors import UsageError
from threespo_bench.objectives.aggregation import token_weights
from threespo_bench.objectives.policy_gradient import LossReport, TokenTerms, policy_gradient_loss
from threespo_bench.seeding import Streams
from threespo_bench.turns import TurnBatch
from threespo_plugins.embedded import checkpoint, checks
from threespo_plugins.embedded.loading import load_model
from threespo_plugins.embedded.optimizer import Optimizer
from threespo_plugins.embedded.packing import make_packs, micro_batch, split
from threespo_plugins.embedded.policy import Policy
from threespo_plugins.embedded.rows import compute_rows, selected_rows
from threespo_plugins.embedded.scoring import score_tokens


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
        self._reference: PreTrainedModel | None = None
        self._updates = 0
        self._verified = False

    def score(self, turns: TurnBatch, policy: str = "actor") -> np.ndarray:
        """See :meth:`Learner.score`; float64. ``reference`` is the model as the run found it."""
        if policy not in ("actor", "reference"):
            raise UsageError(f"policy {policy!r} is unknown", fix="actor or reference")
        turns.require(("response_ids", "prompt_ids"), "the embedded engine")
        model = self._policy.model if policy == "actor" else self._reference_model()
        return self._score(model, turns, np.flatnonzero(turns.real))

    def update(self, turns: TurnBatch, credit: Credit, objective: PolicyGradient, optimization: Optimization) -> dict[str, float]:
        """See :meth:`Learner.update`. A batch with some mini-batches already stepped is taken back whole if a later one fails."""
        turns.require(("response_ids", "prompt_ids", "old_log_probs"), "the embedded engine")
        checks.check_versions(turns, self._policy.version, self._policy.config.max_staleness)
        rows = selected_rows(turns, credit, objective)
        metrics = {"rows": float(len(rows)), "tokens": float(turns.response_mask[rows].sum()), "optimizer_steps": 0.0}
        if not len(rows):
            return metrics
        checks.check_finite("advantages", credit.advantages, turns.response_mask, rows)
        checks.check_finite("old_log_probs", turns.old_log_probs, turns.response_mask, rows)
        reference = self._reference_log_probs(turns, rows) if objective.kl_coef > 0 else None
        self._verify(turns, rows)

        mini_batches = list(self._mini_batches(rows, optimization))
        snapshot = self._optimizer.snapshot() if len(mini_batches) > 1 else None
        report, norms, gap = LossReport(), [], checks.LogProbGap()
        try:
            for number, batch in enumerate(mini_batches):
                part = self._backward(turns, credit, objective, batch, reference, gap if number == 0 else None)
                norms.append(self._optimizer.step(part.sums.get("loss", 0.0), optimization))
                report.add(part)
        except BaseException:  # Ctrl-C included: a batch is learned from whole or not at all
            if snapshot is not None:
                self._optimizer.restore(snapshot)
            raise
        self._updates += 1
        self._policy.unpublished = True
        metrics["optimizer_steps"] = float(len(mini_batches))
        return metrics | self._metrics(report, norms, objective) | gap.metrics()

    def save(self, folder: Path) -> None:
        """See :meth:`Learner.save`."""
        state = {"version": self._policy.version, "unpublished": self._policy.unpublished, "updates": self._updates}
        checkpoint.save(folder, self._policy.model, self._optimizer, state)

    def load(self, folder: Path) -> None:
        """See :meth:`Learner.load`."""
        state = checkpoint.load(folder, self._policy.model, self._optimizer)
        self._policy.version, self._policy.unpublished = int(state["version"]), bool(state["unpublished"])
        self._updates = int(state["updates"])

    def export(self, folder: Path) -> None:
        """See :meth:`Learner.export`."""
        checkpoint.export(folder, self._policy.model, self._policy.tokenizer)

    def _backward(
        self, turns: TurnBatch, credit: Credit, objective: PolicyGradient, rows: np.ndarray, reference: np.ndarray | None, gap: checks.LogProbGap | None
    ) -> LossReport:
        """Accumulate the gradient of one mini-batch; the loss is the same however it is divided into micro-batches."""
        device = self._policy.device
        mask = turns.response_mask[rows]
        weights = np.zeros(turns.response_mask.shape)
        weights[rows] = credit.scale * token_weights(torch.from_numpy(mask), objective.aggregation, objective.loss_scale_tokens).numpy()
        self._optimizer.clear()
        report = LossReport()
        packs = make_packs(turns, compute_rows(rows, credit, turns, objective), self._policy.forward.takes_masks)
        for part in split(packs, self._policy.config.micro_batch_tokens):
            batch = micro_batch(turns, part, device)
            scores = score_tokens(self._policy, self._policy.model, batch, entropy_gradient=objective.entropy_coef > 0)
            place = (batch.row, batch.column)
            terms = TokenTerms(
                mask=torch.ones(len(batch.row), dtype=torch.bool, device=device),
                weights=_tensor(weights[place], device),
                log_probs=scores.log_probs,
                old_log_probs=_tensor(turns.old_log_probs[place], device),
                advantages=_tensor(credit.advantages[place], device),
                entropy=scores.entropy,
                reference_log_probs=None if reference is None else _tensor(reference[place], device),
            )
            loss, micro_report = policy_gradient_loss(objective, terms)
            loss.backward()
            report.add(micro_report)
            if gap is not None:
                gap.add(scores.log_probs.detach().cpu().numpy(), turns.old_log_probs[place])
        return report

    def _verify(self, turns: TurnBatch, rows: np.ndarray) -> None:
        """On the first update, require that the learner's log-probabilities are those that the sampler reported."""
        if not self._verified and turns.policy_version is not None:
            fresh = rows[turns.policy_version[rows] == self._policy.version]
            own = self._score(self._policy.model, turns, fresh)
            checks.check_log_probs(own, turns, fresh, self._policy.config.log_prob_tolerance)
            self._verified = len(fresh) > 0

    def _mini_batches(self, rows: np.ndarray, optimization: Optimization) -> Iterator[np.ndarray]:
        size = optimization.mini_batch_turns or len(rows)
        for epoch in range(optimization.epochs):
            order = self._streams.generator("learner.order", self._updates, epoch).permutation(len(rows))
            for start in range(0, len(rows), size):
                yield rows[order[start : start + size]]

    @torch.no_grad()
    def _score(self, model: PreTrainedModel, turns: TurnBatch, rows: np.ndarray) -> np.ndarray:
        out = np.zeros(turns.response_mask.shape)
        packs = make_packs(turns, rows, self._policy.forward.takes_masks)
        for part in split(packs, self._policy.config.micro_batch_tokens):
            batch = micro_batch(turns, part, self._policy.device)
            out[batch.row, batch.column] = score_tokens(self._policy, model, batch).log_probs.double().cpu().numpy()
        return out

    def _reference_log_probs(self, turns: TurnBatch, rows: np.ndarray) -> np.ndarray:
        reference = turns.ref_log_probs if turns.ref_log_probs is not None else self._score(self._reference_model(), turns, rows)
        checks.check_finite("ref_log_probs", reference, turns.response_mask, rows)
        return reference

    def _reference_model(self) -> PreTrainedModel:
        """The frozen starting weights, read from the model folder on first use: most algorithms never need the memory."""
        if self._reference is None:
            self._reference = load_model(self._policy.folder, self._policy.device).requires_grad_(False)
        return self._reference

    def _metrics(self, report: LossReport, norms: list[float], objective: PolicyGradient) -> dict[str, float]:
        """Losses per optimiser step, the rest per token."""
        names = ("loss", "policy_loss", "kl") if objective.kl_coef > 0 else ("loss", "policy_loss")
        losses = {name: report.sums.get(name, 0.0) / len(norms) for name in names}
        return losses | report.means() | {"grad_norm": float(np.mean(norms))}


def _tensor(values: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)
