"""TurnBatch: the one data structure that flows from samplers through algorithms to engines, and to disk.

One **turn** is one model call and one environment step. A batch is a struct of columns over N turns; token columns are padded on the
right to T tokens. Three rules hold everywhere:

* ids are made from (iteration, task, branch), never random: two equal runs give equal batches;
* masks are boolean, and a value under a false mask may be anything, NaN included, and changes nothing (select, never multiply);
* row order carries no meaning: time inside a trajectory is ``step_id``; padding rows carry ``padding`` and enter no statistic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from threespo_bench.errors import DataError
from threespo_bench.turn_codes import codes, combined, group_codes, pair_codes, remembered

__all__ = ["TurnBatch", "codes", "group_codes", "object_column", "pad_tokens", "pair_codes"]

_DTYPES: dict[str, type] = {
    "step_id": np.int64, "policy_version": np.int64, "step_reward": np.float64, "action_valid": bool, "terminated": bool, "truncated": bool,
    "success": bool, "padding": bool, "response_mask": bool, "response_ids": np.int32, "old_log_probs": np.float64,
    "rollout_log_probs": np.float64, "ref_log_probs": np.float64, "values": np.float64,
}  # fmt: skip
_ABSENT: Any = None
"""Typed as a column, because an algorithm's ``requires`` has made sure of it before it reads one."""
_TOKEN_COLUMNS = ("response_ids", "response_mask", "old_log_probs", "rollout_log_probs", "ref_log_probs")


@dataclass
class TurnBatch:
    """Columns over N turns. Shapes: (N,) unless said otherwise. From ``task_key`` on they are optional: ``None`` where a batch does not have one.

    Attributes:
        group_id: rollouts that are compared with one another share it (the task instance; in a tree, the expanded state).
        traj_id: unique per trajectory; in a tree, the id of the edge, since edges are shared by many trajectories.
        step_id: 0-based turn index inside the trajectory.
        task_key: repeatable identity of the task.
        anchor_obs, next_anchor_obs: key of the state the turn acted in and of the state it led to, without the task.
        step_reward: environment reward of the turn, undiscounted.
        action_valid: the response was well-formed and, where that is known, admissible.
        terminated, truncated, success: the task ended; the step limit or the sampler cut the episode; it ended well.
        policy_version: published weights that generated the turn.
        response_mask: (N, T) true on tokens the policy generated.
        response_ids: (N, T) their ids.
        old_log_probs: (N, T) log-probabilities under the policy about to be updated.
        rollout_log_probs: (N, T) as the sampler reported them.
        ref_log_probs: (N, T) under the reference policy.
        values: (N, T) or (N,) of a critic.
        prompt_ids: (N,) object array of int32 vectors.
        padding: true on rows that only fill a batch.
        extras: further columns a sampler and its algorithm share, each of length N.
    """

    group_id: np.ndarray
    traj_id: np.ndarray
    step_id: np.ndarray
    step_reward: np.ndarray
    response_mask: np.ndarray
    task_key: np.ndarray = _ABSENT
    anchor_obs: np.ndarray = _ABSENT
    next_anchor_obs: np.ndarray = _ABSENT
    action_valid: np.ndarray = _ABSENT
    terminated: np.ndarray = _ABSENT
    truncated: np.ndarray = _ABSENT
    success: np.ndarray = _ABSENT
    policy_version: np.ndarray = _ABSENT
    response_ids: np.ndarray = _ABSENT
    old_log_probs: np.ndarray = _ABSENT
    rollout_log_probs: np.ndarray = _ABSENT
    ref_log_probs: np.ndarray = _ABSENT
    values: np.ndarray = _ABSENT
    prompt_ids: np.ndarray = _ABSENT
    padding: np.ndarray = _ABSENT
    extras: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = len(self.group_id)
        for name, column in self._columns():
            if not isinstance(column, np.ndarray):
                column = np.asarray(column) if name in _TOKEN_COLUMNS else _as_column(column)
            if name in ("response_mask", "padding", "action_valid", "terminated", "truncated", "success"):
                column = _boolean(name, column)
            elif name in _DTYPES:
                column = column.astype(_DTYPES[name], copy=False)
            if len(column) != n:
                raise DataError(f"column {name} has {len(column)} rows, but the batch has {n}")
            self._put(name, column)
        if self.response_mask.ndim != 2:
            raise DataError(f"column response_mask has shape {self.response_mask.shape}, expected (turns, tokens)")
        for name in _TOKEN_COLUMNS:
            column = getattr(self, name)
            if column is not None and column.shape != self.response_mask.shape:
                raise DataError(f"column {name} has shape {column.shape}, but response_mask has {self.response_mask.shape}")

    def __len__(self) -> int:
        return len(self.group_id)

    @property
    def real(self) -> np.ndarray:
        """(N,) true on rows that are not padding."""
        return np.ones(len(self), bool) if self.padding is None else ~self.padding

    def require(self, names: Sequence[str], reader: str) -> None:
        """Raises DataError naming the first missing column and ``reader``, the algorithm that needs it."""
        for name in names:
            if getattr(self, name, None) is None and name not in self.extras:
                raise DataError(f"{reader} needs the column {name}, which this batch does not have")

    def codes(self, *names: str) -> np.ndarray:
        """(N,) the :func:`group_codes` of id columns, read-only. They are computed once for as long as the columns keep their values."""
        known: dict[tuple[str, ...], tuple[Any, np.ndarray]] = self.__dict__.setdefault("_codes", {})
        if len(names) == 1:
            column = self._get(names[0])
            if names not in known or not known[names][0].holds(column):
                known[names] = remembered(column)
        else:
            parts = [self.codes(name) for name in names]
            if names not in known or any(one is not other for one, other in zip(parts, known[names][0], strict=True)):
                known[names] = (parts, combined(parts))
        found = known[names][1]
        found.flags.writeable = False
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_codes"}

    def episode_return(self) -> np.ndarray:
        """(N,) the sum of the step rewards of the trajectory each row belongs to; padding rows get 0."""
        index = self.codes("traj_id")
        if self.padding is None:
            return np.bincount(index, weights=self.step_reward)[index]
        real = self.real
        totals = np.bincount(index[real], weights=self.step_reward[real], minlength=index.max(initial=-1) + 1)
        return np.where(real, totals[index], 0.0)

    def take(self, rows: np.ndarray) -> TurnBatch:
        """The batch of the given rows (indices or a boolean mask), in that order."""
        return TurnBatch(
            **{name: column[rows] for name, column in self._columns() if name not in self.extras},
            extras={name: column[rows] for name, column in self.extras.items()},
        )

    @staticmethod
    def concatenate(batches: Sequence[TurnBatch]) -> TurnBatch:
        """One batch of the rows of all; token columns are padded to the longest. All batches must have the same columns."""
        first, width = batches[0], max(batch.response_mask.shape[1] for batch in batches)
        merged: dict[str, np.ndarray] = {}
        for name, _ in first._columns():
            parts = [batch._get(name) for batch in batches]
            if name in _TOKEN_COLUMNS or (name == "values" and parts[0].ndim == 2):
                parts = [np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in parts]
            merged[name] = np.concatenate(parts)
        return TurnBatch(
            **{name: column for name, column in merged.items() if name not in first.extras},
            extras={name: merged[name] for name in first.extras},
        )

    def save(self, path: Path) -> None:
        """Write Parquet: one row a turn, token columns as lists without the padding."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        lengths = self.response_mask.shape[1] - np.argmax(self.response_mask[:, ::-1], axis=1)
        lengths[~self.response_mask.any(axis=1)] = 0
        table = {}
        for name, column in self._columns():
            if column.ndim == 2:
                table[name] = [row[:length].tolist() for row, length in zip(column, lengths, strict=True)]
            else:
                table[name] = [list(value) if isinstance(value, (tuple, np.ndarray)) else value for value in column.tolist()]
        extras = {b"threespo.extras": ",".join(self.extras).encode()}
        pq.write_table(pa.table(table).replace_schema_metadata(extras), path)

    @staticmethod
    def load(path: Path) -> TurnBatch:
        """Read what :meth:`save` wrote. Raises DataError if the file is not a batch of turns."""
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(path)
        except (OSError, ValueError) as error:
            raise DataError(f"{path} is not a readable Parquet file: {error}") from error
        extras = (table.schema.metadata or {}).get(b"threespo.extras", b"").decode()
        extra_names = [name for name in extras.split(",") if name]
        known = {f.name for f in fields(TurnBatch)} - {"extras"}
        columns = {name: table[name].to_pylist() for name in table.column_names if name in known}
        missing = [name for name in ("group_id", "traj_id", "step_id", "step_reward", "response_mask") if name not in columns]
        if missing:
            raise DataError(f"{path} is not a batch of turns: it has no column {missing[0]}")
        width = max((len(row) for row in columns["response_mask"]), default=0)
        arrays = {}
        for name, values in columns.items():
            if name in _TOKEN_COLUMNS or (name == "values" and values and isinstance(values[0], list)):
                arrays[name] = pad_tokens(values, width, _DTYPES[name])
            elif name == "prompt_ids":
                arrays[name] = object_column([np.asarray(value, np.int32) for value in values])
            else:
                arrays[name] = _as_column(values)
        return TurnBatch(**arrays, extras={name: _as_column(table[name].to_pylist()) for name in extra_names})

    def _columns(self) -> list[tuple[str, np.ndarray]]:
        own = [(f.name, getattr(self, f.name)) for f in fields(self) if f.name != "extras" and getattr(self, f.name) is not None]
        return own + list(self.extras.items())

    def _get(self, name: str) -> np.ndarray:
        return self.extras[name] if name in self.extras else getattr(self, name)

    def _put(self, name: str, column: np.ndarray) -> None:
        if name in self.extras:
            self.extras[name] = column
        else:
            setattr(self, name, column)


def pad_tokens(rows: Sequence[np.ndarray | list[Any]], width: int, dtype: type) -> np.ndarray:
    """(N, width) array of the given vectors, padded on the right with zeros."""
    out: np.ndarray = np.zeros((len(rows), width), dtype)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out


def _boolean(name: str, column: np.ndarray) -> np.ndarray:
    if column.dtype == bool:
        return column
    if column.dtype == object or not np.isin(column, (0, 1)).all():
        raise DataError(f"column {name} is a mask: it must hold only true and false (or 1 and 0)")
    return column.astype(bool)


def _as_column(values: Sequence[object]) -> np.ndarray:
    """An array of the values; strings and sequences stay Python objects."""
    if len(values) and isinstance(values[0], (str, tuple, list, np.ndarray)):
        return object_column([tuple(value) if isinstance(value, list) else value for value in values])
    return np.asarray(values)


def object_column(values: Sequence[object]) -> np.ndarray:
    """An object array that holds each value as it is (NumPy would stack sequences of equal length). Equal texts become one object.

    That takes less memory, and the codes of such a column are found without reading the texts.
    """
    out, known = np.empty(len(values), object), dict[str, str]()
    for i, value in enumerate(values):
        out[i] = known.setdefault(value, value) if type(value) is str else value
    return out
