"""The gradient of a policy-gradient loss over one mini-batch, accumulated over micro-batches."""

from __future__ import annotations

import numpy as np
import torch

from threespo_bench.contracts.algorithm import Credit
from threespo_bench.contracts.objective import PolicyGradient
from threespo_bench.objectives.aggregation import token_weights
from threespo_bench.objectives.covariance import large_covariance
from threespo_bench.objectives.policy_gradient import LossReport, TokenTerms, policy_gradient_loss
from threespo_bench.turns import TurnBatch, codes
from threespo_plugins.embedded.checks import LogProbGap
from threespo_plugins.embedded.packing import make_packs, micro_batch, split, with_ends
from threespo_plugins.embedded.policy import Policy
from threespo_plugins.embedded.rows import compute_rows
from threespo_plugins.embedded.scoring import score_tokens
from threespo_plugins.embedded.value_tokens import ValueTargets


def accumulate(
    policy: Policy, turns: TurnBatch, credit: Credit, objective: PolicyGradient, rows: np.ndarray, reference: np.ndarray | None, gap: LogProbGap | None
) -> LossReport:
    """Add the gradient of one mini-batch to the parameters'; the loss is the same however it is divided into micro-batches.

    Args:
        turns: its response mask has the selected tokens only. rows: the mini-batch.
        reference: (N, T) log-probabilities under the reference policy, where the objective needs them.
        gap: filled with the differences from the sampler's log-probabilities, if given.
    """
    device = policy.device
    weights = mini_batch_weights(turns, credit, objective, rows)
    large = mini_batch_large_covariance(turns, credit, objective, rows) if objective.loss in ("clip_cov", "kl_cov") else None
    values = ValueTargets.of(objective, policy, turns, credit, rows)
    report = LossReport()
    packs = make_packs(turns, compute_rows(rows, credit, turns, objective), policy.forward.takes_masks)
    if values is not None:
        packs = with_ends(packs)
    for part in split(packs, policy.config.micro_batch_tokens):
        batch = micro_batch(turns, part, device)
        scores = score_tokens(policy, policy.model, batch, entropy_gradient=objective.entropy_coef > 0)
        place = (batch.row, batch.column)
        terms = TokenTerms(
            mask=torch.ones(len(batch.row), dtype=torch.bool, device=device),
            weights=_tensor(weights[place], device),
            log_probs=scores.log_probs,
            old_log_probs=_tensor(turns.old_log_probs[place], device),
            advantages=_tensor(credit.advantages[place], device),
            entropy=scores.entropy,
            reference_log_probs=None if reference is None else _tensor(reference[place], device),
            rollout_log_probs=None if objective.rollout_ratio_cap is None else _tensor(turns.rollout_log_probs[place], device),
            response=_tensor(batch.row, device),
            large_covariance=None if large is None else _tensor(large[place], device),
        )
        loss, micro_report = policy_gradient_loss(objective, terms)
        if values is not None:
            value_loss, sums = values.loss(scores.value_logits, batch.ends_row)
            loss = loss + value_loss
            micro_report.add(LossReport(sums))
        loss.backward()
        report.add(micro_report)
        if gap is not None:
            gap.add(scores.log_probs.detach().cpu().numpy(), turns.old_log_probs[place])
    return report


def mini_batch_weights(turns: TurnBatch, credit: Credit, objective: PolicyGradient, rows: np.ndarray) -> np.ndarray:
    """(N, T) weight of each token in the loss of the mini-batch."""
    trajectories = torch.from_numpy(codes(turns.traj_id[rows])) if objective.unit == "trajectory" else None
    mask = torch.from_numpy(turns.response_mask[rows])
    weights = np.zeros(turns.response_mask.shape)
    weights[rows] = credit.scale * token_weights(mask, objective.aggregation, objective.loss_scale_tokens, objective.unit, trajectories).numpy()
    return weights


def mini_batch_large_covariance(turns: TurnBatch, credit: Credit, objective: PolicyGradient, rows: np.ndarray) -> np.ndarray:
    """(N, T) the tokens of large covariance in the mini-batch; of equal ones, the first in the order of the batch."""
    ordered = np.sort(rows)
    columns = (torch.from_numpy(column[ordered]) for column in (credit.advantages, turns.old_log_probs, turns.response_mask))
    large = np.zeros(turns.response_mask.shape, bool)
    large[ordered] = large_covariance(objective, *columns).numpy()
    return large


def _tensor(values: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)
