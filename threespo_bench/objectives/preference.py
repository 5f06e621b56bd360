"""Losses on preferences: DPO (arXiv:2305.18290), IPO (arXiv:2310.12036) and KTO (arXiv:2402.01306), on the log-ratios of items.

The log-ratio of an item is the weighted sum of its tokens' log-probabilities less the same under the reference policy. A long sum is only
a number here: what computes it may be divided in any way.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from threespo_bench.contracts.objective import PREFERENCE_LOSSES, Preference
from threespo_bench.errors import UsageError


@dataclass(frozen=True)
class PreferenceLosses:
    """(U,) ``losses`` with gradient and (U,) ``margins`` without: of each pair; in ``kto`` of each item, the chosen ones first.

    A margin is positive where the policy prefers what it shall prefer: h of a pair, and r - z0 or z0 - r of an item in ``kto``.
    """

    losses: torch.Tensor
    margins: torch.Tensor


def preference_losses(objective: Preference, chosen: torch.Tensor, rejected: torch.Tensor) -> PreferenceLosses:
    """The losses of the (P,) log-ratios ``chosen`` and the (Q,) log-ratios ``rejected``; P = Q, pair by pair, except in ``kto``."""
    if objective.loss == "kto":
        return kto_losses(objective, chosen, rejected, kto_reference_point(chosen, rejected))
    h = chosen - rejected
    if objective.loss == "dpo":
        # -(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h)
        right, wrong = torch.nn.functional.logsigmoid(objective.beta * h), torch.nn.functional.logsigmoid(-objective.beta * h)
        losses = -(1.0 - objective.label_smoothing) * right - objective.label_smoothing * wrong
    elif objective.loss == "ipo":
        losses = (h - 1.0 / (2.0 * objective.beta)).square()  # (h - 1 / (2 beta))^2
    else:
        raise UsageError(f"loss={objective.loss} is unknown", fix="one of " + ", ".join(PREFERENCE_LOSSES))
    return PreferenceLosses(losses, h.detach())


def kto_losses(objective: Preference, desirable: torch.Tensor, undesirable: torch.Tensor, z0: torch.Tensor) -> PreferenceLosses:
    """w_D (1 - sigmoid(beta (r - z0))) of the desirable items, w_U (1 - sigmoid(beta (z0 - r))) of the others; ``z0`` has no gradient."""
    good, bad = desirable - z0, z0 - undesirable
    losses = torch.cat(
        [
            objective.desirable_weight * (1.0 - torch.sigmoid(objective.beta * good)),
            objective.undesirable_weight * (1.0 - torch.sigmoid(objective.beta * bad)),
        ]
    )
    return PreferenceLosses(losses, torch.cat([good, bad]).detach())


def kto_reference_point(desirable: torch.Tensor, undesirable: torch.Tensor) -> torch.Tensor:
    """z0 = max(0, mean of all log-ratios of the batch): an estimate of the KL divergence from the reference, taken as a constant."""
    ratios = torch.cat([desirable, undesirable]).detach()
    return ratios.mean().clamp(min=0.0)
