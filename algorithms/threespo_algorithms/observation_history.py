"""Which turns share a history of observations: integer keys by depth, built from the key one turn earlier, so that no history is ever spelled out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from threespo_algorithms.group_statistics import rows_in_time
from threespo_bench.turns import TurnBatch, pair_codes


@dataclass(frozen=True)
class TimeOrder:
    """The real rows of a batch, trajectory by trajectory in the order of ``step_id``.

    Attributes:
        rows: (R,) indices into the batch. place: (R,) 0-based place in the trajectory. last: (R,) the trajectory's last turn.
    """

    rows: np.ndarray
    place: np.ndarray
    last: np.ndarray


def time_order(turns: TurnBatch) -> TimeOrder:
    """The rows of ``turns`` in the order of time; padding rows are left out."""
    rows, starts = rows_in_time(turns)
    lengths = np.diff(np.r_[starts, len(rows)])
    last = np.zeros(len(rows), bool)
    last[starts + lengths - 1] = True
    return TimeOrder(rows, np.arange(len(rows)) - np.repeat(starts, lengths), last)


def recent_history_keys(order: TimeOrder, observation: np.ndarray, depth: int) -> np.ndarray:
    """Keys of the last k observations of each turn, the present one included, for k = 1 to ``depth``.

    Args:
        order: of the batch. observation: (N,) integer codes of what the turn acted on, different in different groups.

    Returns:
        (depth, N) int64: turns with equal last k observations have equal keys in row k - 1; -1 where a turn has fewer than k, and on padding.
    """
    keys = np.full((depth, len(observation)), -1, np.int64)
    key = present = observation[order.rows].astype(np.int64, copy=False)
    keys[0, order.rows] = key
    for k in range(2, depth + 1):
        enough = np.flatnonzero(order.place >= k - 1)
        keys_before, key = key, np.full(len(present), -1, np.int64)  # where there is enough, the row before is the turn before
        key[enough] = pair_codes(keys_before[enough - 1], present[enough])  # the last k - 1 observations one turn earlier, and the present one
        keys[k - 1, order.rows] = key
    return keys


def whole_history_keys(order: TimeOrder, observation: np.ndarray, action: np.ndarray | None = None) -> np.ndarray:
    """Keys of all observations of each turn's trajectory up to the turn, and with ``action`` of all actions before it.

    Args:
        order: of the batch. observation, action: (N,) integer codes; those of observations are different in different groups.

    Returns:
        (N,) int64: turns at equal places with equal histories have equal keys; 0 on padding.
    """
    present, key = observation[order.rows].astype(np.int64), np.zeros(len(order.rows), np.int64)
    by_place = np.argsort(order.place, kind="stable")
    used = 0
    for at in np.split(by_place, np.cumsum(np.bincount(order.place))[:-1] if len(by_place) else []):
        pair = present[at]
        if len(at) and order.place[at[0]] > 0:
            before = key[at - 1] if action is None else pair_codes(key[at - 1], action[order.rows[at - 1]])
            pair = pair_codes(before, pair)
        key[at] = used + np.unique(pair, return_inverse=True)[1]
        used = int(key[at].max(initial=used - 1)) + 1
    keys = np.zeros(len(observation), np.int64)
    keys[order.rows] = key
    return keys
