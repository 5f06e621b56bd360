"""Log-probabilities and entropies of response tokens under a model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from threespo_bench.objectives.policy_gradient import token_entropy
from threespo_plugins.embedded.packing import MicroBatch
from threespo_plugins.embedded.policy import Policy


@dataclass(frozen=True, slots=True)
class Scores:
    """(M,) float32 ``log_probs`` and ``entropy`` of the predicted tokens of a micro-batch."""

    log_probs: torch.Tensor
    entropy: torch.Tensor


def score_tokens(policy: Policy, model: PreTrainedModel, batch: MicroBatch, entropy_gradient: bool = False) -> Scores:
    """Scores of a micro-batch under ``model``, which has the policy's architecture.

    Args:
        entropy_gradient: let the gradient flow through the entropy too.
    """
    attention = None if batch.attention is None else policy.ready_mask(batch.attention)
    with policy.autocast(), policy.forward.only_positions(model, batch.predicting):
        logits = policy.forward.score(model, batch.ids, attention, batch.positions)[0].float()
    distribution = torch.log_softmax(logits, dim=-1)
    log_probs = distribution.gather(1, batch.tokens[:, None])[:, 0]
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = token_entropy(distribution)
    return Scores(log_probs, entropy)
