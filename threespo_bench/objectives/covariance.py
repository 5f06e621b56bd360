"""Which tokens have a large covariance of advantage and log-probability (arXiv:2505.22617): those that make the entropy fall fastest."""

from __future__ import annotations

import torch

from threespo_bench.contracts.objective import PolicyGradient
from threespo_bench.objectives.aggregation import require_boolean


def large_covariance(objective: PolicyGradient, advantages: torch.Tensor, old_log_probs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The tokens that ``clip_cov`` leaves out, or that ``kl_cov`` holds.

    With means over all tokens of the mini-batch, the covariance of a token is (A - mean A) (old - mean old). Old log-probabilities are
    known before the first pass, so the choice does not depend on how the mini-batch is computed. ``clip_cov`` chooses among the tokens
    between ``covariance_low`` and ``covariance_high``, ``kl_cov`` among those above 0: in both the largest first, and of equal ones the
    first in order of row and column, ``covariance_share`` of all tokens but at least one.

    Args:
        advantages, old_log_probs: (R, T) of the whole mini-batch. mask: (R, T) bool, the tokens that count.

    Returns:
        (R, T) bool.
    """
    require_boolean(mask)
    chosen = torch.zeros_like(mask)
    count = int(mask.sum())
    if not count:
        return chosen
    advantage, log_prob = advantages[mask].double(), old_log_probs[mask].double()
    covariance = (advantage - advantage.mean()) * (log_prob - log_prob.mean())
    if objective.loss == "clip_cov":
        candidates = (covariance > objective.covariance_low) & (covariance < objective.covariance_high)
    else:
        candidates = covariance > 0
    limit = max(1, int(objective.covariance_share * count))
    order = torch.argsort(covariance, descending=True, stable=True)
    largest = order[candidates[order]][:limit]
    among = torch.zeros_like(candidates)
    among[largest] = True
    chosen[mask] = among
    return chosen
