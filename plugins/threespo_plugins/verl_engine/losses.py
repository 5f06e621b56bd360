"""Our losses as verl calls a loss: once a micro-batch, in the workers, with the whole model output. All mathematics is in :mod:`threespo_bench.objectives`.

A worker's gradient is averaged over the ranks, so each loss is multiplied by their number: the weights are those of the whole mini-batch already.
What is reported is sums, which are added up over micro-batches and ranks; names that end in ``_max`` are maxima.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from verl.workers.utils.padding import no_padding_2_padding

from threespo_bench.contracts.objective import PolicyGradient
from threespo_bench.objectives.policy_gradient import TokenTerms, policy_gradient_loss
from threespo_bench.objectives.value_regression import value_losses

REPORT = "report/"
Answer = tuple[torch.Tensor, dict[str, float]]


@dataclass(frozen=True)
class PolicyGradientLoss:
    """The loss of :func:`~threespo_bench.objectives.policy_gradient.policy_gradient_loss`; with ``gap``, the difference from the sampler is measured too."""

    objective: PolicyGradient
    gap: bool

    def __call__(self, model_output: dict[str, torch.Tensor], data: TensorDict, dp_group: Any = None) -> Answer:
        mask, log_probs = data["mask"], no_padding_2_padding(model_output["log_probs"], data)
        terms = TokenTerms(
            mask=mask,
            weights=data["weights"],
            log_probs=log_probs,
            old_log_probs=data["old_log_probs"],
            advantages=data["advantages"],
            entropy=no_padding_2_padding(model_output["entropy"], data),
            reference_log_probs=data.get("reference", None),
            rollout_log_probs=data.get("rollout", None),
            large_covariance=data.get("large_covariance", None),
        )
        loss, report = policy_gradient_loss(self.objective, terms)
        sums = report.sums | {"ratio_max": report.ratio_max}
        if self.gap:
            gap = (log_probs.detach()[mask].double() - data["old_log_probs"][mask]).abs()
            sums |= {"gap_sum": float(gap.sum()), "gap_max": float(gap.max()) if len(gap) else 0.0, "gap_tokens": float(len(gap))}
        return _ready(loss, data), _report(sums)


@dataclass(frozen=True)
class SlopeLoss:
    """The sum of each row's ``slope`` times its log-probabilities: the second pass of a loss on preferences."""

    def __call__(self, model_output: dict[str, torch.Tensor], data: TensorDict, dp_group: Any = None) -> Answer:
        mask, log_probs = data["mask"], no_padding_2_padding(model_output["log_probs"], data)
        loss = (data["weights"][mask].to(log_probs.dtype) * log_probs[mask]).sum()
        return _ready(loss, data), {}


@dataclass(frozen=True)
class ValueLoss:
    """The mean over the mini-batch's targets of :func:`~threespo_bench.objectives.value_regression.value_losses`."""

    clip: float | None

    def __call__(self, model_output: dict[str, torch.Tensor], data: TensorDict, dp_group: Any = None) -> Answer:
        mask, values = data["mask"], no_padding_2_padding(model_output["values"], data).float()
        old, targets = (data[name][mask].to(values.dtype) for name in ("old_values", "returns"))
        losses, clipped = value_losses(values[mask], old, targets, self.clip)
        loss = (losses * data["weights"][mask].to(values.dtype)).sum()
        return _ready(loss, data), _report({"loss": loss.item(), "clipped": float(clipped.sum())})


def _report(sums: dict[str, float]) -> dict[str, float]:
    """Under names that verl does not use itself."""
    return {REPORT + name: value for name, value in sums.items()}


def _ready(loss: torch.Tensor, data: TensorDict) -> torch.Tensor:
    """As verl takes it. A loss that is not finite may have a finite gradient; NaN makes sure that no step is made."""
    loss = loss * data["dp_size"]
    return loss if bool(torch.isfinite(loss)) else loss * torch.nan
