"""The clipped policy-gradient loss (PPO, arXiv:1707.06347) with dual clip, KL and entropy terms.

Per token, with r = pi(token) / pi_old(token) and advantage A:

    l = max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high));   where A < 0:  l = min(l, -dual_clip A)

plus ``kl_coef`` times the KL estimator minus ``entropy_coef`` times the entropy, summed with the weights of :mod:`.aggregation`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from threespo_bench.contracts.objective import PolicyGradient
from threespo_bench.objectives.aggregation import require_boolean, weighted_sum
from threespo_bench.objectives.kl import LOG_RATIO_BOUND, kl_divergence


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
    """

    mask: torch.Tensor
    weights: torch.Tensor
    log_probs: torch.Tensor
    old_log_probs: torch.Tensor
    advantages: torch.Tensor
    entropy: torch.Tensor | None = None
    reference_log_probs: torch.Tensor | None = None


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
    log_ratio = (log_probs - old.to(log_probs.dtype)).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    ratio = log_ratio.exp()

    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - objective.clip_low, 1.0 + objective.clip_high)
    losses = torch.maximum(plain, clipped)
    dual_active = torch.zeros_like(mask[mask])
    if objective.dual_clip is not None:
        ceiling = -objective.dual_clip * advantages
        dual_active = (advantages < 0) & (losses > ceiling)
        losses = torch.where(dual_active, ceiling, losses)
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
        sums["ratio_mean"] = ratio.sum()
        sums["clip_fraction"] = (clipped > plain).sum()
        sums["dual_clip_fraction"] = dual_active.sum()
        sums["approx_kl"] = (ratio - 1.0 - log_ratio).sum()
        if terms.entropy is not None:
            sums["entropy"] = terms.entropy[mask].sum()
        ratio_max = ratio.max().item() if len(ratio) else 0.0
        stacked = torch.stack([value.double() for value in sums.values()]).tolist()  # one transfer from the device
    return loss, LossReport(dict(zip(sums, stacked, strict=True)), ratio_max)


def token_entropy(log_distribution: torch.Tensor) -> torch.Tensor:
    """Entropy in nats of each of (..., V) log-probability vectors."""
    return -(log_distribution.exp() * log_distribution).sum(dim=-1)
