"""Segments of responses: where a policy was uncertain, what a segment gains, and the statistics over the tokens that are learned from."""

from __future__ import annotations

import numpy as np

from threespo_algorithms.group_statistics import EQUAL_VALUES
from threespo_bench.turns import TurnBatch, codes

_WHITEN_EPSILON = 1e-8


def cut_points(probabilities: np.ndarray, threshold: float, interval: int) -> np.ndarray:
    """Indices of every ``interval``-th place, from the first, whose probability is below ``threshold``; values are estimated before these places.

    Args:
        probabilities: (L,) of the tokens of one trajectory (or of its turns) in time order.
    """
    return np.flatnonzero(probabilities < threshold)[::interval]


def token_probabilities(turns: TurnBatch) -> np.ndarray:
    """(N, T) probabilities of the response tokens under the policy about to be updated; 1 at all other places, so that no threshold selects them."""
    read = turns.response_mask & turns.real[:, None]
    return np.exp(np.where(read, turns.old_log_probs, 0.0))


def mask_certain(advantages: np.ndarray, probabilities: np.ndarray, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    """The probability mask (SPO, arXiv:2505.23564).

    Args:
        advantages, probabilities: (N, T).

    Returns:
        (N, T) advantages, 0 where p > threshold, and (N, T) bool, the tokens with p < threshold, over which the loss is averaged.
    """
    return np.where(probabilities > threshold, 0.0, advantages), probabilities < threshold


def whiten(values: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Values with mean 0 and variance 1: ``(x - mean) / sqrt(var + 1e-8)`` with the unbiased variance; exactly 0 outside ``members``.

    Fewer than two members, or equal ones, give 0.

    Args:
        values: float, of any shape. members: bool, the values that are normalised and by which.
    """
    inside, out = values[members], np.zeros(values.shape)
    if len(inside) < 2:
        return out
    deviation = inside - inside.mean()
    variance = float((deviation**2).sum() / (len(inside) - 1))
    if np.sqrt(variance) > EQUAL_VALUES * max(1.0, abs(float(inside.mean()))):
        out[members] = deviation / np.sqrt(variance + _WHITEN_EPSILON)
    return out


def segment_advantages(turns: TurnBatch) -> np.ndarray:
    """(N, T) what each token's segment gains in value (SPO-chain, arXiv:2505.23564); 0 outside the responses.

    A segment begins before a token whose ``turns.values`` (N, T) is finite and reaches to the next such token of its trajectory, or to the trajectory's
    end, over all turns between. With W(b) = (rewards before b) + V(b) and W(end) = the return, a segment's advantage is W(its end) - W(its beginning).
    Tokens before the first value of their trajectory have no segment and get 0.
    """
    out = np.zeros(turns.response_mask.shape)
    rows, trajectory = _in_time_order(turns)
    if not len(rows):
        return out
    rewards = turns.step_reward[rows]
    earned = np.cumsum(rewards) - rewards
    before = earned - earned[np.r_[True, trajectory[1:] != trajectory[:-1]]][trajectory]  # rewards of the trajectory before each turn
    total = np.bincount(trajectory, weights=rewards)

    place, column = np.nonzero(turns.response_mask[rows])  # all response tokens, in time order
    value, owner = turns.values[rows[place], column], trajectory[place]
    begins = np.isfinite(value)
    cut = np.flatnonzero(begins)
    worth = before[place[cut]] + value[cut]  # W where each segment begins
    end_worth = total[owner[cut]]
    end_worth[:-1] = np.where(owner[cut[1:]] == owner[cut[:-1]], worth[1:], end_worth[:-1])
    gain = end_worth - worth  # W(end) - W(beginning)

    segment = np.cumsum(begins) - 1  # the last beginning at or before each token ...
    inside = segment >= 0
    inside[inside] = owner[cut[segment[inside]]] == owner[inside]  # ... if it lies in the same trajectory
    out[rows[place[inside]], column[inside]] = gain[segment[inside]]
    return out


def _in_time_order(turns: TurnBatch) -> tuple[np.ndarray, np.ndarray]:
    """(R,) the rows that are not padding, trajectory by trajectory in the order of ``step_id``, and (R,) the number of each one's trajectory."""
    real = np.flatnonzero(turns.real)
    owner = codes(turns.traj_id[real])
    order = np.lexsort((turns.step_id[real], owner))
    return real[order], owner[order]
