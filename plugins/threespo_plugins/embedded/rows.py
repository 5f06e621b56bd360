"""Which rows and tokens of a batch an update uses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from threespo_bench.contracts.algorithm import Credit
from threespo_bench.contracts.objective import Optimization, PolicyGradient, ValueTokens
from threespo_bench.errors import DataError
from threespo_bench.seeding import Streams
from threespo_bench.turns import TurnBatch, codes

SPOT_CHECK = 8
"""Rows of an update whose log-probabilities are compared again with those of a sampler that has weights of its own."""


def mini_batches(rows: np.ndarray, optimization: Optimization, streams: Streams, update: int) -> Iterator[np.ndarray]:
    """The rows of each optimiser step, in an order that the run's seed and the number of the update decide."""
    size = optimization.mini_batch_turns or len(rows)
    for epoch in range(optimization.epochs):
        order = streams.generator("learner.order", update, epoch).permutation(len(rows))
        for start in range(0, len(rows), size):
            yield rows[order[start : start + size]]


def selected_tokens(turns: TurnBatch, credit: Credit) -> TurnBatch:
    """The batch with ``credit.selected_tokens`` as its response mask, so that every loss and denominator has the selected tokens only."""
    tokens = credit.selected_tokens
    if tokens is None:
        return turns
    if tokens.dtype != bool or tokens.shape != turns.response_mask.shape:
        raise DataError(f"credit.selected_tokens must be boolean, of shape {turns.response_mask.shape}")
    return replace(turns, response_mask=turns.response_mask & tokens)


def selected_rows(turns: TurnBatch, credit: Credit, objective: PolicyGradient) -> np.ndarray:
    """Indices of the rows in the loss and in its denominators: selected, not padding, with at least one token under the mask.

    With ``mask_zero_variance_groups`` the groups whose advantages are all zero are left out of every term. Whether a group is one is
    read from its own advantages, so it does not matter by which spread (the group's or the batch's) the algorithm scaled them.
    """
    if credit.advantages.shape != turns.response_mask.shape:
        raise DataError(f"advantages have shape {credit.advantages.shape}, but the batch has {turns.response_mask.shape}")
    if credit.selected is not None and (credit.selected.dtype != bool or credit.selected.shape != (len(turns),)):
        raise DataError(f"credit.selected must be a boolean column of {len(turns)} rows")
    chosen = turns.real & turns.response_mask.any(axis=1)
    if credit.selected is not None:
        chosen &= credit.selected
    if objective.mask_zero_variance_groups and chosen.any():
        group = codes(turns.group_id)
        moving = np.zeros(group.max() + 1, bool)
        moving[group[chosen & _has_advantage(turns, credit)]] = True
        chosen &= moving[group]
    return np.flatnonzero(chosen)


def nothing_moves(rows: np.ndarray, credit: Credit, turns: TurnBatch, objective: PolicyGradient) -> bool:
    """The rows have no gradient: their advantages are all zero, and no term of the objective goes without advantages."""
    return not _moves_all(objective) and not _has_advantage(turns, credit)[rows].any()


def compute_rows(rows: np.ndarray, credit: Credit, turns: TurnBatch, objective: PolicyGradient) -> np.ndarray:
    """Those of the rows whose gradient can differ from zero.

    A row of zero advantage has no part in the policy term; without another term it is counted (in the denominators) but need not be
    computed. ``kl_cov`` holds tokens whose advantage is above the mean, which can be zero.
    """
    if _moves_all(objective) or objective.loss == "kl_cov":
        return rows
    return rows[_has_advantage(turns, credit)[rows]]


def _moves_all(objective: PolicyGradient) -> bool:
    """Every row can have a gradient, whatever its advantage."""
    values = isinstance(objective, ValueTokens) and (objective.value_coef > 0 or objective.action_value_coef > 0)
    return objective.kl_coef > 0 or objective.entropy_coef > 0 or values


def _has_advantage(turns: TurnBatch, credit: Credit) -> np.ndarray:
    return (turns.response_mask & (credit.advantages != 0)).any(axis=1)
