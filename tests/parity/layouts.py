"""Random batches, and how they look to functions that know only rows of tokens with a reward on each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

import threespo_algorithms
from threespo_bench.config.algorithm import Choice, make_algorithms
from threespo_bench.contracts.algorithm import Algorithm
from threespo_bench.host import PluginHost
from threespo_bench.turns import TurnBatch, codes, object_column

WIDTH = 6
SINGLE = ([[1] * 8] * 3 + [[1] * 4], [[1, 1], [1] * 5, [1] * 3], [[1] * 16] * 2)
"""Numbers of turns of the trajectories of each group: responses to one prompt."""
MULTI = ([[3, 1, 4, 2]] * 3, [[5, 2], [1, 1, 1], [2, 6, 3, 3, 1]], [[4] * 8] * 2)
"""The same for episodes of several turns."""
SINGLETON = [[1, 3], [2], [1], [1, 1, 2]]
"""Two groups have one trajectory, one of them of a single turn."""


@lru_cache
def _host() -> PluginHost:
    return PluginHost.from_plugins([threespo_algorithms])


@lru_cache
def algorithm(name: str, *overrides: str, preset: str | None = None) -> Algorithm:
    """A built-in algorithm, with the defaults of its YAML or a preset."""
    return make_algorithms([Choice(name, name, preset)], overrides, _host())[name]


def random_turns(seed: int, shape: Sequence[Sequence[int]], wins: bool = False) -> TurnBatch:
    """Turns in no order. Masks have gaps, but every turn has a token; some actions are invalid.

    Args:
        wins: rewards are 10 or 0 at the end of a trajectory, so that many are equal; otherwise each turn has one of its own.
    """
    rng = np.random.default_rng(seed)
    rows = [(g, t, step, step == turns - 1) for g, trajectories in enumerate(shape) for t, turns in enumerate(trajectories) for step in range(turns)]
    group, trajectory, step, last = (np.array(column) for column in zip(*rows, strict=True))
    number = len(rows)
    length = rng.integers(1, WIDTH + 1, number)[:, None]
    mask = (np.arange(WIDTH) < length) & (rng.random((number, WIDTH)) < 0.8) | (np.arange(WIDTH) == length - 1)
    log_probs = np.where(mask, -rng.exponential(1.0, mask.shape), 0.0)
    reward = np.where(last, rng.choice([0.0, 10.0], number), 0.0) if wins else rng.normal(1.0, 3.0, number)
    turns = TurnBatch(
        group_id=object_column([f"g{g}" for g in group]), traj_id=object_column([f"g{g}/{t}" for g, t in zip(group, trajectory, strict=True)]),
        step_id=step, step_reward=reward, response_mask=mask, action_valid=rng.random(number) < 0.8, terminated=last, truncated=np.zeros(number, bool),
        old_log_probs=log_probs, ref_log_probs=log_probs - np.where(mask, rng.normal(0, 0.2, mask.shape), 0.0),
        values=np.where(mask, rng.normal(2, 3, mask.shape), 0.0), extras={"baseline_return": rng.normal(2, 3, len(shape))[group]},
    )  # fmt: skip
    return turns.take(rng.permutation(number))


@dataclass
class Rows:
    """What the functions of verl read.

    Attributes:
        reward, mask: (R, T) float64 and int64. index: (R,) the group of each row.
        row, column: (N, T) where each token of the batch lies.
    """

    reward: torch.Tensor
    mask: torch.Tensor
    index: np.ndarray
    row: np.ndarray
    column: np.ndarray

    def back(self, per_token: torch.Tensor, turns: TurnBatch) -> np.ndarray:
        """(N, T) what the function answered, in the places of the batch."""
        return np.where(turns.response_mask, per_token.numpy()[self.row, self.column], 0.0)

    def spread(self, per_token: np.ndarray) -> torch.Tensor:
        """(R, T) float64 a column of the batch in the places of the rows; 99 where these have no token."""
        out = np.full(self.mask.shape, 99.0)
        out[self.row, self.column] = per_token
        return torch.from_numpy(out)


def by_turn(turns: TurnBatch, score: np.ndarray) -> Rows:
    """Each turn is a row of its own (the layout of verl-agent) with its score (N,) as the reward of its last token."""
    row, column = np.indices(turns.response_mask.shape)
    return _rows(turns, score, row, column)


def by_trajectory(turns: TurnBatch, reward: np.ndarray) -> Rows:
    """Each trajectory is a row: its turns one after another, the tokens between them under a false mask; the reward (N,) of a turn is on its last token."""
    trajectory, place = codes(turns.traj_id)[:, None], np.arange(WIDTH) + WIDTH * turns.step_id[:, None]
    return _rows(turns, reward, *np.broadcast_arrays(trajectory, place))


def _rows(turns: TurnBatch, reward: np.ndarray, row: np.ndarray, column: np.ndarray) -> Rows:
    shape = (int(row.max()) + 1, int(column.max()) + 1)
    mask, token_reward = np.zeros(shape, np.int64), np.zeros(shape)
    mask[row, column] = turns.response_mask
    at = np.arange(len(turns)), WIDTH - 1 - np.argmax(turns.response_mask[:, ::-1], axis=1)
    token_reward[row[at], column[at]] = reward
    index = np.empty(shape[0], object)
    index[row[:, 0]] = turns.group_id
    return Rows(torch.from_numpy(token_reward), torch.from_numpy(mask), index, row, column)
