"""The policy-gradient loss: a policy term of :mod:`.policy_losses`, plus KL, minus entropy.

Each token's policy term (times its ratio of the old policy to the sampler's, where that is asked for), plus ``kl_coef`` times the KL estimator,
minus ``entropy_coef`` times the entropy, summed with the weights of :mod:`.aggregation`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from threespo_bench.contracts.objective import PolicyGradient
from threespo_bench.objectives.aggregation import require_boolean, weighted_sum
from threespo_bench.objectives.kl import LOG_RATIO_BOUND, kl_divergence
from threespo_bench.objectives.policy_losses import PolicyTokens, policy_losses


@dataclass(frozen=True)
class TokenTerms:
    """What the loss reads, all of one shape: (R, T), or (M,) with the tokens already selected.

    Attributes:
        mask: bool, the tokens that count; what the others hold, NaN included, changes neither loss nor gradient.
        weights: float64 of :func:`token_weights` over the whole mini-batch.
        log_probs: of the policy being trained; carries the gradient.
        old_log_probs: under the policy that the ratio refers to.
        advantages: of each token.
        entropy: of the policy's distribution at each token; carries the gradient where the objective has an entropy term.
        reference_log_probs: under the reference policy, where the objective has a KL term.
        rollout_log_probs: as the sampler reported them, where the objective has a ``rollout_ratio_cap``.
        response: int64, which response each token belongs to; None where the terms are (R, T), a row a response. A response must be whole.
        large_covariance: bool, of :func:`~threespo_bench.objectives.covariance.large_covariance` over the whole mini-batch, where the loss is one of those.
    """

    mask: torch.Tensor
    weights: torch.Tensor
    log_probs: torch.Tensor
    old_log_probs: torch.Tensor
    advantages: torch.Tensor
    entropy: torch.Tensor | None = None
    reference_log_probs: torch.Tensor | None = None
    rollout_log_probs: torch.Tensor | None = None
    response: torch.Tensor | None = None
    large_covariance: torch.Tensor | None = None


@dataclass
class LossReport:
    """What one mini-batch did, summed over micro-batches by :meth:`add`; weighted sums are parts of the loss, the others count tokens."""

    sums: dict[str, float] = field(default_factory=dict)
    ratio_max: float = 0.0

    def add(self, other: LossReport) -> None:
        """Include another part of the same or of a later mini-batch."""
        for name, value in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.ratio_max = max(self.ratio_max, other.ratio_max)

    def means(self) -> dict[str, float]:
        """Metrics per token: ratio, share of clipped tokens, distance from the old policy, entropy; all 0 if no token counted."""
        tokens = max(self.sums.get("tokens", 0.0), 1.0)
        names = ("ratio_mean", "clip_fraction", "dual_clip_fraction", "approx_kl", "entropy")
        return {name: self.sums.get(name, 0.0) / tokens for name in names} | {"ratio_max": self.ratio_max}


def policy_gradient_loss(objective: PolicyGradient, terms: TokenTerms) -> tuple[torch.Tensor, LossReport]:
    """The loss of one micro-batch (a scalar with gradient) and its report. An empty mask gives loss 0 with a zero gradient."""
    require_boolean(terms.mask)
    mask = terms.mask
    log_probs, old, advantages = terms.log_probs[mask], terms.old_log_probs[mask], terms.advantages[mask].to(terms.log_probs.dtype)
    weights = terms.weights[mask].to(log_probs.dtype)
    large = None if terms.large_covariance is None else terms.large_covariance[mask]
    tokens = PolicyTokens.make(log_probs, old.to(log_probs.dtype), advantages, _responses(terms), large)
    policy = policy_losses(objective, tokens)
    losses = policy.losses
    if objective.rollout_ratio_cap is not None:
        losses = losses * _rollout_weights(terms, objective.rollout_ratio_cap).to(losses.dtype)
    policy_loss = (losses * weights).sum()
    loss = policy_loss
    sums = {"policy_loss": policy_loss.detach()}

    if objective.kl_coef > 0:
        if terms.reference_log_probs is None:
            raise ValueError("kl_coef > 0 needs reference_log_probs")
        reference = terms.reference_log_probs[mask].to(log_probs.dtype)
        kl = (kl_divergence(log_probs, reference, objective.kl_estimator) * weights).sum()
        loss = loss + objective.kl_coef * kl
        sums["kl"] = kl.detach()
    if objective.entropy_coef > 0:
        if terms.entropy is None:
            raise ValueError("entropy_coef > 0 needs entropy")
        loss = loss - objective.entropy_coef * weighted_sum(terms.entropy, terms.weights, mask)
    sums["loss"] = loss.detach()

    with torch.no_grad():
        sums["tokens"] = mask.sum()
        sums["ratio_mean"] = tokens.ratio.sum()
        sums["clip_fraction"] = policy.clipped.sum()
        sums["dual_clip_fraction"] = policy.dual_clipped.sum()
        sums["approx_kl"] = (tokens.ratio - 1.0 - tokens.log_ratio).sum()
        if terms.entropy is not None:
            sums["entropy"] = terms.entropy[mask].sum()
        ratio_max = tokens.ratio.max().item() if len(tokens.ratio) else 0.0
        stacked = torch.stack([value.double() for value in sums.values()]).tolist()  # one transfer from the device
    return loss, LossReport(dict(zip(sums, stacked, strict=True)), ratio_max)


def _responses(terms: TokenTerms) -> torch.Tensor | None:
    """(M,) the response of each token; None where the terms do not tell."""
    if terms.response is not None:
        return terms.response[terms.mask]
    return terms.mask.nonzero()[:, 0] if terms.mask.ndim == 2 else None


def _rollout_weights(terms: TokenTerms, cap: float) -> torch.Tensor:
    """(M,) min(pi_old(token) / pi_rollout(token), cap), float64 constants: the correction of a sampler that is not quite the old policy."""
    if terms.rollout_log_probs is None:
        raise ValueError("rollout_ratio_cap needs rollout_log_probs")
    log_ratio = terms.old_log_probs[terms.mask].double() - terms.rollout_log_probs[terms.mask].double()
    return log_ratio.clamp(max=LOG_RATIO_BOUND).exp().clamp(max=cap).detach()


def token_entropy(log_distribution: torch.Tensor) -> torch.Tensor:
    """Entropy in nats of each of (..., V) log-probability vectors."""
    return -(log_distribution.exp() * log_distribution).sum(dim=-1)
