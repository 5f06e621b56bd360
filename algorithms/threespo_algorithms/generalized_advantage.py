"""Generalised advantage estimation (arXiv:1506.02438) over segments of time steps: the tokens or the turns of trajectories, or single rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from threespo_algorithms.group_statistics import EQUAL_VALUES
from threespo_bench.errors import DataError
from threespo_bench.turns import TurnBatch, codes


@dataclass(frozen=True)
class Segments:
    """Rows of a batch laid out segment after segment, each in the order of time.

    Attributes:
        rows: (M,) row numbers. starts, lengths: (S,) where each segment begins in ``rows``, and how many rows it has (at least one).
    """

    rows: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray

    @property
    def last_rows(self) -> np.ndarray:
        """(S,) the row that ends each segment."""
        return self.rows[self.starts + self.lengths - 1]


def trajectories(turns: TurnBatch) -> Segments:
    """Each trajectory is a segment; padding rows are in none."""
    real = np.flatnonzero(turns.real)
    trajectory = codes(turns.traj_id)[real]
    order = np.lexsort((turns.step_id[real], trajectory))
    owner = trajectory[order]
    starts = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]]) if len(real) else np.zeros(0, np.int64)
    return Segments(real[order], starts, np.diff(np.r_[starts, len(real)]))


def single_rows(turns: TurnBatch) -> Segments:
    """Each row is a segment of its own; padding rows are in none."""
    real = np.flatnonzero(turns.real)
    return Segments(real, np.arange(len(real)), np.ones(len(real), np.int64))


def generalized_advantage(
    reward: np.ndarray, value: np.ndarray, starts: np.ndarray, lengths: np.ndarray, end_value: np.ndarray, gamma: float, lam: float
) -> np.ndarray:
    """(M,) advantages of time steps that lie segment after segment.

        delta_t = r_t + gamma V_{t+1} - V_t          A_t = delta_t + gamma lam A_{t+1}

    Args:
        reward, value: (M,) of the time steps. starts, lengths: (S,) of the segments; a length may be 0.
        end_value: (S,) V beyond the last step of each segment: 0 after a terminal state, the value of the state where an episode was cut. A is 0 there.
        gamma, lam: discount, and weight of later temporal differences.
    """
    advantage, running, next_value = np.zeros(len(reward)), np.zeros(len(starts)), np.array(end_value, float)
    alive = np.arange(len(starts))
    for back in range(int(lengths.max(initial=0))):  # the last step of every segment, then the one before, ...
        alive = alive[lengths[alive] > back]
        at = starts[alive] + lengths[alive] - 1 - back
        delta = reward[at] + gamma * next_value[alive] - value[at]
        running[alive] = delta + gamma * lam * running[alive]
        advantage[at], next_value[alive] = running[alive], value[at]
    return advantage


def turn_advantage(turns: TurnBatch, segments: Segments, value: np.ndarray, end_value: np.ndarray, gamma: float, lam: float) -> np.ndarray:
    """(N,) advantages with one time step a turn; 0 on padding rows.

    Args:
        segments: how turns follow one another.
        value: (N,) of the states that the turns act in. end_value: (N,) of the states after the turns, read at the ends of segments only.
    """
    advantage, rows = np.zeros(len(turns)), segments.rows
    ends = end_value[segments.last_rows]
    advantage[rows] = generalized_advantage(turns.step_reward[rows], value[rows], segments.starts, segments.lengths, ends, gamma, lam)
    return advantage


def token_advantage(turns: TurnBatch, segments: Segments, reward: np.ndarray, end_value: np.ndarray, gamma: float, lam: float) -> tuple[np.ndarray, np.ndarray]:
    """(N, T) advantages and (N, T) returns A + V, with one time step a policy token; 0 elsewhere.

    Tokens under a false mask are no time steps: the next value and the next advantage are carried over them.

    Args:
        segments: how rows follow one another. end_value: (N,) of the states after the turns, read at the ends of segments only.
        reward: (N,) of the turns, given on the last policy token of each (of a turn without any: on the one before it in the segment).
    """
    rows = segments.rows
    mask = turns.response_mask[rows]
    counts = mask.sum(axis=1)
    bounds = np.r_[0, np.cumsum(counts)]  # tokens before each row
    starts, lengths = bounds[segments.starts], bounds[segments.starts + segments.lengths] - bounds[segments.starts]
    last = bounds[1:] - 1
    placed = last >= np.repeat(starts, segments.lengths)
    token_reward = np.bincount(last[placed], weights=reward[rows][placed], minlength=bounds[-1])
    row, token = np.nonzero(mask)
    at = (rows[row], token)
    value = turns.values[at]
    found = generalized_advantage(token_reward, value, starts, lengths, end_value[segments.last_rows], gamma, lam)
    advantage, returns = np.zeros(turns.response_mask.shape), np.zeros(turns.response_mask.shape)
    advantage[at], returns[at] = found, found + value
    return advantage, returns


def turn_values(turns: TurnBatch) -> np.ndarray:
    """(N,) values of the states that the turns act in: ``values``, or of a value a token the one before the first policy token."""
    if turns.values.ndim == 1:
        return turns.values
    first = turns.values[np.arange(len(turns)), np.argmax(turns.response_mask, axis=1)]
    return np.where(turns.response_mask.any(axis=1), first, 0.0)


def cut(turns: TurnBatch) -> np.ndarray:
    """(N,) the episode was cut after this turn and would have gone on: its end is no terminal state, so the value there is not 0."""
    if turns.truncated is None:
        return np.zeros(len(turns), bool)
    return turns.truncated & turns.real & (True if turns.terminated is None else ~turns.terminated)


def end_values(turns: TurnBatch, reader: str) -> np.ndarray:
    """(N,) ``next_value`` where the episode was cut, and 0 elsewhere.

    Raises:
        DataError: an episode was cut, and the batch has no column ``next_value``.
    """
    where = cut(turns)
    if not where.any():
        return np.zeros(len(turns))
    if "next_value" not in turns.extras:
        fix = "next_value is the critic's value of the state after the turn; a turn marked terminated instead of truncated counts nothing after its end"
        raise DataError(f"{reader}, for the value where an episode was cut, needs the column next_value, which this batch does not have", fix=fix)
    return np.where(where, turns.extras["next_value"], 0.0)


def whiten(values: np.ndarray, ddof: int = 1, epsilon: float = 1e-8) -> np.ndarray:
    """``(x - mean) / sqrt(variance + epsilon)``. A value alone stays as it is; values that differ by rounding only give exactly 0.

    Args:
        values: those that count, of any shape. ddof: 1 for the variance of a sample, 0 for that of a population.
    """
    if values.size < 2:
        return values
    mean, std = values.mean(), values.std(ddof=ddof)
    if std <= EQUAL_VALUES * max(1.0, abs(mean)):
        return np.zeros_like(values)
    return (values - mean) / np.sqrt(std**2 + epsilon)


def value_diagnostics(value: np.ndarray, returns: np.ndarray, advantage: np.ndarray) -> dict[str, float]:
    """Means of the values and of their targets, the share of the targets' variance that the values explain, and moments of the raw advantages.

    Args:
        value, returns, advantage: (M,) of the time steps that count.
    """
    if not returns.size:
        return {}
    spread = returns.var()
    explained = {"critic/explained_variance": float(1 - (returns - value).var() / spread)} if spread > EQUAL_VALUES else {}
    return explained | {
        "critic/mean_value": float(value.mean()),
        "critic/mean_return": float(returns.mean()),
        "advantage/raw_mean": float(advantage.mean()),
        "advantage/raw_std": float(advantage.std()),
    }
