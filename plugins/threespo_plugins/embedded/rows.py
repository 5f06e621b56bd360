"""Which rows of a batch an update uses."""

from __future__ import annotations

import numpy as np

from threespo_bench.contracts.algorithm import Credit
from threespo_bench.contracts.objective import PolicyGradient
from threespo_bench.errors import DataError
from threespo_bench.turns import TurnBatch, codes


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


def compute_rows(rows: np.ndarray, credit: Credit, turns: TurnBatch, objective: PolicyGradient) -> np.ndarray:
    """Those of the rows whose gradient can differ from zero.

    A row of zero advantage has no part in the policy term; without KL and entropy terms it is counted (in the denominators) but need
    not be computed.
    """
    if objective.kl_coef > 0 or objective.entropy_coef > 0:
        return rows
    return rows[_has_advantage(turns, credit)[rows]]


def _has_advantage(turns: TurnBatch, credit: Credit) -> np.ndarray:
    return (turns.response_mask & (credit.advantages != 0)).any(axis=1)
