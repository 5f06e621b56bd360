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
    """(M,) float32 ``log_probs`` and ``entropy`` of the predicted tokens of a micro-batch.

    ``value_logits`` (R, 2) float32 is the high less the low value token's logit before and after each response, where the micro-batch has ``ends``.
    """

    log_probs: torch.Tensor
    entropy: torch.Tensor
    value_logits: torch.Tensor | None = None


def score_tokens(policy: Policy, model: PreTrainedModel, batch: MicroBatch, entropy_gradient: bool = False) -> Scores:
    """Scores of a micro-batch under ``model``, which has the policy's architecture.

    Args:
        entropy_gradient: let the gradient flow through the entropy too.
    """
    positions = batch.predicting if batch.ends is None else torch.cat([batch.predicting, batch.ends])
    raw = _logits(policy, model, batch, positions)
    distribution = torch.log_softmax(policy.allowed(raw[: len(batch.tokens)]), dim=-1)
    log_probs = distribution.gather(1, batch.tokens[:, None])[:, 0]
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        if policy.value_tokens is not None:  # probability 0 adds nothing to the entropy, but 0 * -inf would be NaN
            distribution = distribution.index_fill(-1, policy.value_tokens, 0.0)
        entropy = token_entropy(distribution)
    return Scores(log_probs, entropy, None if batch.ends is None else _differences(policy, raw[len(batch.tokens) :]))


def score_ends(policy: Policy, model: PreTrainedModel, batch: MicroBatch) -> torch.Tensor:
    """(R, 2) float32 value logits of a micro-batch that has ``ends``, without those of its tokens."""
    assert batch.ends is not None
    return _differences(policy, _logits(policy, model, batch, batch.ends))


def _logits(policy: Policy, model: PreTrainedModel, batch: MicroBatch, positions: torch.Tensor) -> torch.Tensor:
    """(K, V) float32 logits at flattened positions, those of reserved tokens included."""
    attention = None if batch.attention is None else policy.ready_mask(batch.attention)
    with policy.autocast(), policy.forward.only_positions(model, positions):
        return policy.forward.score(model, batch.ids, attention, batch.positions)[0].float()


def _differences(policy: Policy, logits: torch.Tensor) -> torch.Tensor:
    """(R, 2) z_plus - z_minus from (2 R, V) logits, the R before the responses first."""
    assert policy.value_tokens is not None
    high, low = policy.value_tokens
    return (logits[:, high] - logits[:, low]).view(2, -1).T
