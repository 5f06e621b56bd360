"""JSON-lines files as columns of numbers. A file that is whole is read at once by Arrow; any other line by line, so that each bad line has its number."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import json as arrow_json

Columns = dict[str, NDArray[np.float64]]
ARROW_BLOCK = 4 << 20  # bytes that Arrow parses at a time
LARGEST = 1 << 1023  # an integer that surely is a float64


@dataclass
class Rows:
    """The rows of a file.

    Attributes:
        kinds: kind of row -> its columns, of equal length, in the order of the file; NaN where a row lacks the number.
        lines: kind -> the line number of each row, from 1.
        bad: numbers of damaged lines. torn: number of a damaged last line without newline, or 0.
    """

    kinds: dict[str, Columns] = field(default_factory=dict)
    lines: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    bad: list[int] = field(default_factory=list)
    torn: int = 0

    def of(self, kind: str) -> Columns:
        """The columns of one kind, which may be none."""
        return self.kinds.get(kind, {})

    def length(self, kind: str) -> int:
        """How many rows of one kind there are."""
        return len(self.lines.get(kind, ()))


def parse_rows(content: bytes) -> Rows:
    """The rows of a JSON-lines file: objects with a text ``kind`` and a number ``env_steps``. Other texts and nested values are left out, null is NaN."""
    rows = _by_arrow(content)
    return _line_by_line(content) if rows is None else rows


def _by_arrow(content: bytes) -> Rows | None:
    """All rows at once, or None if any line is not as it should be."""
    if not content.endswith(b"\n"):
        return None
    try:
        table = arrow_json.read_json(io.BytesIO(content), read_options=arrow_json.ReadOptions(use_threads=True, block_size=ARROW_BLOCK))
        names = table.column_names
        table.validate(full=True)  # that texts are UTF-8, too
    except (pa.ArrowException, ValueError):  # a name may be no text
        return None
    if table.num_rows != content.count(b"\n") or len(set(names)) != len(names) or not {"kind", "env_steps"} <= set(names):
        return None
    kind, steps = table["kind"], table["env_steps"]
    if kind.null_count or steps.null_count or not pa.types.is_string(kind.type) or not _is_numeric(steps.type) or not np.isfinite(_floats(steps)).all():
        return None
    codes = kind.combine_chunks().dictionary_encode()
    numbers = {name: _floats(table[name]) for name in names if _is_numeric(table[name].type)}
    places, rows = np.asarray(codes.indices), Rows()
    for code, name in enumerate(codes.dictionary.to_pylist()):
        chosen = np.flatnonzero(places == code)
        picked = {key: values[chosen] for key, values in numbers.items()}
        whole = len(chosen) == len(places)  # of several kinds, a column without any number belongs to the others
        rows.kinds[name] = {key: values for key, values in picked.items() if whole or not np.isnan(values).all()}
        rows.lines[name] = chosen + 1
    return rows


def _is_numeric(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)


def _floats(column: pa.ChunkedArray) -> NDArray[np.float64]:
    return column.cast(pa.float64(), safe=False).to_numpy()


def _line_by_line(content: bytes) -> Rows:
    lines = content.decode("utf-8", errors="replace").split("\n")
    rows = Rows(torn=len(lines) if lines[-1].strip() else 0)  # a complete file ends with a newline
    found: dict[str, list[Mapping[str, float]]] = {}
    numbers: dict[str, list[int]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        parsed = _row(line)
        if parsed is None:
            rows.bad.append(number)
            continue
        found.setdefault(parsed[0], []).append(parsed[1])
        numbers.setdefault(parsed[0], []).append(number)
    if rows.torn not in rows.bad:
        rows.torn = 0  # it lacks its newline only
    for kind, values in found.items():
        keys = dict.fromkeys(key for row in values for key in row)
        rows.kinds[kind] = {key: np.array([row.get(key, math.nan) for row in values], dtype=np.float64) for key in keys}
        rows.lines[kind] = np.array(numbers[kind], dtype=np.int64)
    return rows


def _row(line: str) -> tuple[str, dict[str, float]] | None:
    """Kind and numbers of a line (null is NaN); None if it is no such thing."""
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        return None
    if not _is_number(value.get("env_steps")) or not math.isfinite(value["env_steps"]):
        return None
    return value["kind"], {key: math.nan if item is None else float(item) for key, item in value.items() if item is None or _is_number(item)}


def _is_number(value: Any) -> bool:
    """Whether ``value`` is a number that float64 can hold."""
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST)


def drop_copies(rows: Rows) -> int:
    """Drop rows that equal an earlier one of their kind, in place, and return how many those were."""
    dropped = 0
    for kind, columns in rows.kinds.items():
        if _keys(columns)[0].all():
            continue  # no step is there twice
        table = np.ascontiguousarray(np.stack(list(columns.values()), axis=1))
        first = np.unique(table.view(np.dtype((np.void, table.strides[0])))[:, 0], return_index=True)[1]
        dropped += len(table) - len(first)
        _keep(rows, kind, np.sort(first))
    return dropped


def drop_repeats(rows: Rows) -> int:
    """Make one history of ``rows``, in place, and return how many rows that dropped.

    A run that went back to a checkpoint repeats a stretch: a later row replaces those of its kind at or after it."""
    dropped = 0
    for kind, columns in rows.kinds.items():
        new, order = _keys(columns)
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.cumsum(new)
        smallest_later = np.append(np.minimum.accumulate(place[::-1])[::-1][1:], np.iinfo(np.int64).max)
        kept = place < smallest_later
        if not kept.all():
            dropped += int((~kept).sum())
            _keep(rows, kind, np.flatnonzero(kept))
    return dropped


def _keys(columns: Columns) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """The rows in the order of steps and iterations, and which of these are the first with theirs."""
    steps = columns["env_steps"]
    iterations = columns.get("iteration", np.zeros_like(steps))
    order = np.lexsort((iterations, steps))
    new = np.ones(len(steps), dtype=bool)
    new[1:] = (np.diff(steps[order]) != 0) | (np.diff(iterations[order]) != 0)
    return new, order


def _keep(rows: Rows, kind: str, places: NDArray[np.int64]) -> None:
    rows.kinds[kind] = {key: values[places] for key, values in rows.kinds[kind].items()}
    rows.lines[kind] = rows.lines[kind][places]
