"""Reads recorded turns: the Parquet files of our runs, anybody's Parquet with the same columns, or JSONL with one object a turn.

Keys are the names of :class:`~threespo_bench.turns.TurnBatch`. Besides:

* ``episode_return`` stands in for ``step_reward``: it is put on the last turn of the trajectory;
* ``done`` stands in for ``terminated``;
* other keys become extras, if their values are numbers, texts, flags or lists of such.

Nothing is guessed: a value of the wrong kind is an error that names the line and the column. Whether the batch makes sense as a whole is
another question (:mod:`threespo_bench.batch_checks`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from threespo_bench.errors import DataError
from threespo_bench.turns import TurnBatch, codes, object_column, pad_tokens

_PARQUET = b"PAR1"
_OWN = {field.name for field in fields(TurnBatch)} - {"extras"}
_IDS = ("group_id", "traj_id", "task_key", "anchor_obs", "next_anchor_obs")
_FLAGS = ("action_valid", "terminated", "truncated", "success", "padding")
_LOG_PROBS = ("old_log_probs", "rollout_log_probs", "ref_log_probs")
_SCALARS: dict[type, str] = {bool: "flags", int: "numbers", float: "numbers", str: "texts"}


@dataclass(frozen=True)
class Recorded:
    """A file of turns.

    Attributes:
        turns: its rows, in the order of the file.
        unused: columns that could not be used, and why.
        warnings: what looks wrong and is no error.
    """

    turns: TurnBatch
    unused: dict[str, str]
    warnings: tuple[str, ...]


@dataclass
class _Table:
    """Raw columns by name; a missing value is None. ``word`` and ``numbers`` say where a row stands in the file."""

    path: Path
    columns: dict[str, list[Any]]
    word: str
    numbers: Sequence[int]

    def error(self, row: int, what: str, fix: str = "") -> DataError:
        return DataError(f"{self.path}, {self.word} {self.numbers[row]}: {what}", fix=fix)


def read_turns(path: Path, reader: str) -> Recorded:
    """Read a batch.

    Args:
        path: the file; its content decides whether it is Parquet or JSONL.
        reader: the algorithm that the turns are for, for messages.

    Raises:
        DataError: the file is missing, empty or broken, a required column is missing, or a value is of the wrong kind.
    """
    try:
        data = path.read_bytes()
    except IsADirectoryError as error:
        raise DataError(f"{path} is a folder", fix=f"give one file of turns; a run that records them has them in {path.name}/turns/") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    table = _read_parquet(path, data) if data.startswith(_PARQUET) else _read_jsonl(path, data)
    if not table.numbers:
        raise DataError(f"{path} has no turns", fix="it should be Parquet or JSONL with a row a turn; threespo-bench credit --example shows one")
    return _Reading(table, reader).result()


def example_lines() -> list[str]:
    """A batch to try things on, as JSONL: one task, three rollouts. A wins; B is cut after an invalid action; C fails, and looks twice at the same state."""
    turns = [  # trajectory, step, state, valid, length of the response, reward
        ("A", 0, "s0", True, 2, 0.0),
        ("A", 1, "s1", True, 3, 0.0),
        ("A", 2, "s2", True, 1, 10.0),
        ("B", 0, "s0", True, 2, 0.0),
        ("B", 1, "s1", False, 2, 0.0),
        ("C", 0, "s0", True, 1, 0.0),
        ("C", 1, "s0", True, 2, 0.0),
        ("C", 2, "s1", True, 3, 0.0),
    ]
    ends = {("A", 2): "terminated", ("B", 1): "truncated", ("C", 2): "terminated"}
    rows = [
        {
            "group_id": "g",
            "traj_id": trajectory,
            "step_id": step,
            "task_key": "t",
            "anchor_obs": state,
            "action_valid": valid,
            "step_reward": reward,
            "terminated": ends.get((trajectory, step)) == "terminated",
            "truncated": ends.get((trajectory, step)) == "truncated",
            "success": reward > 0,
            "response_mask": [1] * length,
        }
        for trajectory, step, state, valid, length, reward in turns
    ]
    return [json.dumps(row) for row in rows]


def _read_parquet(path: Path, data: bytes) -> _Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(data))
        columns = {name: column.to_pylist() for name, column in zip(table.column_names, table.columns, strict=True)}
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{path} is not a readable Parquet file: {error}") from error
    return _Table(path, columns, "row", range(1, table.num_rows + 1))


def _read_jsonl(path: Path, data: bytes) -> _Table:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is neither Parquet nor text in UTF-8 (byte {error.start})") from error
    rows, numbers = [], []
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: U+2028 may stand inside a JSON text
        if line.strip():
            rows.append(_json_object(path, number, line))
            numbers.append(number)
    names = dict.fromkeys(name for row in rows for name in row)
    return _Table(path, {name: [row.get(name) for row in rows] for name in names}, "line", numbers)


def _json_object(path: Path, number: int, line: str) -> dict[str, Any]:
    where = f"{path}, line {number}"
    try:
        row = json.loads(line)
        if "\\u" in line:
            json.dumps(row, ensure_ascii=False).encode()  # half a surrogate pair can be read but not written
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: a text is not valid Unicode") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{where} is not JSON: {error.msg} (column {error.colno})", fix="JSONL has one whole object on every line") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists in lists in lists
        raise DataError(f"{where} cannot be read: {error}") from error
    if not isinstance(row, dict):
        raise DataError(f"{where} is no JSON object", fix="JSONL has one object on every line, with a key for each column")
    return row


class _Reading:
    """Turns the raw columns of one file into a batch."""

    def __init__(self, table: _Table, reader: str) -> None:
        self._table, self._reader = table, reader
        self._raw = {name: values for name, values in table.columns.items() if any(value is not None for value in values)}
        self._count = len(table.numbers)
        self._padding = np.zeros(self._count, bool)
        self._unused: dict[str, str] = {}
        self._warnings: list[str] = []

    def result(self) -> Recorded:
        """The batch, and what a user should know of it."""
        self._rename_done()
        self._require()
        if "padding" in self._raw:
            self._padding = np.array(self._each("padding", _flag, "true or false"))
        columns: dict[str, np.ndarray] = {name: self._ids(name) for name in _IDS if name in self._raw}
        for name in ("step_id", "policy_version"):
            if name in self._raw:
                columns[name] = np.array(self._each(name, _whole, "a whole number"), np.int64)
        columns |= {name: np.array(self._each(name, _flag, "true or false"), bool) for name in _FLAGS if name in self._raw}
        columns |= self._token_columns()
        if "prompt_ids" in self._raw:
            prompts = self._each("prompt_ids", _list_of(_token), "a list of token ids")
            columns["prompt_ids"] = object_column([np.array(prompt, np.int32) for prompt in prompts])
        columns["step_reward"] = self._rewards(columns)
        return Recorded(TurnBatch(**columns, extras=self._extras()), self._unused, tuple(self._warnings))

    def _rename_done(self) -> None:
        done = self._raw.pop("done", None)
        if done is not None and "terminated" in self._raw:
            self._unused["done"] = "terminated is there too"
        elif done is not None:
            self._raw["terminated"] = done

    def _require(self) -> None:
        for name in ("group_id", "traj_id", "step_id", "step_reward", "response_mask"):
            stands_in = name == "step_reward" and "episode_return" in self._raw
            if name not in self._raw and not stands_in:
                either = " (or episode_return)" if name == "step_reward" else ""
                fix = "threespo-bench credit --example shows what a turn looks like"
                raise DataError(f"{self._reader} needs the column {name}{either}, which {self._table.path} does not have", fix=fix)

    def _each(self, name: str, convert: Callable[[Any], Any], wanted: str) -> list[Any]:
        """The values of a column, converted one by one; an error names the first that cannot be."""
        found = []
        for row, value in enumerate(self._raw[name]):
            if value is None and convert is _number and self._padding[row]:
                value = math.nan
            try:
                found.append(convert(value))
            except (ValueError, TypeError, OverflowError, RecursionError) as error:
                if value is None:
                    raise self._table.error(row, f"there is no {name}, which other turns have") from error
                raise self._table.error(row, f"{name} is {_shown(value)}, must be {wanted}") from error
        return found

    def _ids(self, name: str) -> np.ndarray:
        values = self._each(name, _hashable, "a text, a number, or a list of such")
        kinds = {_SCALARS.get(type(value), "lists") for value in values}
        if len(kinds) > 1:
            raise DataError(f"{self._table.path}: the column {name} mixes {' and '.join(sorted(kinds))}", fix="write all of them in the same way")
        return object_column(values)

    def _token_columns(self) -> dict[str, np.ndarray]:
        masks = self._each("response_mask", _list_of(_flag), "a list of 0 and 1")
        lengths = [len(mask) for mask in masks]
        width = max(lengths, default=0)
        columns = {"response_mask": pad_tokens(masks, width, bool)}
        for name in (*_LOG_PROBS, "response_ids"):
            if name in self._raw:
                convert, wanted = (_token, "a list of token ids") if name == "response_ids" else (_number_or_nan, "a list of numbers, one a token")
                columns[name] = self._padded(name, self._each(name, _list_of(convert), wanted), lengths, width)
        if "values" in self._raw:
            per_token = any(isinstance(value, list) for value in self._raw["values"])
            if per_token:
                lists = self._each("values", _list_of(_number_or_nan), "a list of numbers, one a token, as in other turns")
                columns["values"] = self._padded("values", lists, lengths, width)
            else:
                columns["values"] = np.array(self._each("values", _number, "a number, or a list of numbers, one a token"), float)
        return columns

    def _padded(self, name: str, rows: list[list[Any]], lengths: list[int], width: int) -> np.ndarray:
        for row, values in enumerate(rows):
            if len(values) != lengths[row]:
                raise self._table.error(row, f"{name} has {len(values)} tokens, but response_mask has {lengths[row]}")
        return pad_tokens(rows, width, np.int32 if name == "response_ids" else np.float64)

    def _rewards(self, columns: dict[str, np.ndarray]) -> np.ndarray:
        """(N,) rewards of the turns; an episode's return, where only that is known, is paid at its last turn."""
        rewards = np.array(self._each("step_reward", _number, "a number"), float) if "step_reward" in self._raw else None
        if "episode_return" not in self._raw:
            assert rewards is not None
            return rewards
        returns = np.array(self._each("episode_return", _number, "a number"), float)
        rows = np.flatnonzero(~self._padding)
        trajectory = codes(columns["traj_id"])[rows]
        order = np.lexsort((columns["step_id"][rows], trajectory))
        rows, trajectory = rows[order], trajectory[order]
        last = np.r_[trajectory[1:] != trajectory[:-1], True] if len(rows) else np.zeros(0, bool)
        of_trajectory = np.zeros(int(trajectory.max(initial=-1)) + 1)
        of_trajectory[trajectory[last]] = returns[rows[last]]
        differs = (returns[rows] != of_trajectory[trajectory]) & ~(np.isnan(returns[rows]) & np.isnan(of_trajectory[trajectory]))
        if differs.any():
            row = int(rows[np.argmax(differs)])
            raise self._table.error(row, f"episode_return is {returns[row]}, but other turns of trajectory {columns['traj_id'][row]} have another one")
        if rewards is not None:
            self._compare_returns(rewards[rows], trajectory, of_trajectory)
            return rewards
        placed = np.zeros(self._count)
        placed[rows[last]] = returns[rows[last]]
        return placed

    def _compare_returns(self, rewards: np.ndarray, trajectory: np.ndarray, returns: np.ndarray) -> None:
        wrong = int((~np.isclose(np.bincount(trajectory, weights=rewards, minlength=len(returns)), returns, rtol=1e-5, atol=1e-6, equal_nan=True)).sum())
        if wrong:
            self._warnings.append(f"episode_return is not the sum of step_reward in {wrong} of {len(returns)} trajectories; step_reward is used")

    def _extras(self) -> dict[str, np.ndarray]:
        extras = {}
        for name, values in self._raw.items():
            if name in _OWN or name == "episode_return":
                continue
            column, reason = _extra(values)
            if column is None:
                self._unused[name] = reason
            else:
                extras[name] = column
        return extras


def _extra(values: list[Any]) -> tuple[np.ndarray | None, str]:
    """The column of a key that is not one of ours, or why it cannot be one. A missing number is NaN, a missing text or list None."""
    kinds = {_SCALARS.get(type(value), type(value).__name__) for value in values if value is not None}
    if len(kinds) != 1:
        return None, f"its values are of different types: {', '.join(sorted(kinds))}"
    (kind,) = kinds
    if kind == "texts":
        return object_column(values), ""
    if kind == "flags":
        return (None, "some turns have none") if None in values else (np.array(values, bool), "")
    if kind == "numbers":
        whole = all(type(value) is int for value in values)
        try:
            return np.array([math.nan if value is None else value for value in values], np.int64 if whole else np.float64), ""
        except OverflowError:
            return None, "a number in it is too large"
    if kind == "list":
        inside = {_SCALARS.get(type(item), type(item).__name__) for value in values if value is not None for item in value}
        if len(inside) <= 1 and inside <= set(_SCALARS.values()):
            return object_column([None if value is None else tuple(value) for value in values]), ""
        return None, f"its lists hold {', '.join(sorted(inside))}"
    return None, f"its values are of type {kind}"


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_hashable(item) for item in value)
    if type(value) not in _SCALARS or value != value:
        raise ValueError
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError
    return float(value)


def _number_or_nan(value: Any) -> float:
    return math.nan if value is None else _number(value)


def _whole(value: Any) -> int:
    if type(value) not in (int, float) or value != int(value) or abs(value) >= 1 << 63:
        raise ValueError
    return int(value)


def _token(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise ValueError
    return value


def _flag(value: Any) -> bool:
    if type(value) not in (bool, int, float) or value not in (0, 1):
        raise ValueError
    return bool(value)


def _list_of(convert: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    def converted(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ValueError
        return [convert(item) for item in value]

    return converted


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        return "too deep"
    return text if len(text) <= 40 else text[:37] + "..."
