"""Append-only files of JSON rows, one a line: what a run measured."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from threespo_bench.atomic import storage_errors, sync_file, write_text

Row = dict[str, Any]


class RowFile:
    """One file of rows. An append is whole or leaves the file as it was; a line torn by a kill is never read.

    An append survives the death of the process at once, and that of the machine after :meth:`sync`.

    Args:
        path: the file, e.g. ``metrics.jsonl``; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def discarded(self) -> Path:
        """Where rows go that :meth:`cut` removes."""
        return self.path.with_suffix(".discarded")

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one row. Raises StorageError, after which the file holds what it held before."""
        _append(self.path, [json.dumps(row, ensure_ascii=False, allow_nan=False)])

    def sync(self) -> None:
        """Make all rows durable."""
        if self.path.exists():
            with storage_errors(f"sync {self.path.name}"):
                sync_file(self.path)

    def read(self) -> list[Row]:
        """All complete rows."""
        return [json.loads(line) for line in self._lines()]

    def cut(self, count: int) -> int:
        """Keep the first ``count`` rows, move the others to :attr:`discarded` and drop a torn last line. Returns how many were moved."""
        if not self.path.exists():
            return 0
        lines = self._lines()
        extra = lines[count:]
        # The copy is durable before the original shrinks: a kill in between duplicates rows in the side file and loses none.
        if extra:
            _append(self.discarded, extra)
            sync_file(self.discarded)
        write_text(self.path, "".join(f"{line}\n" for line in lines[:count]))
        return len(extra)

    def _lines(self) -> list[str]:
        """The complete lines: those that end with a newline and are JSON."""
        if not self.path.exists():
            return []
        with storage_errors(f"read {self.path.name}"):
            text = self.path.read_bytes().decode("utf-8", errors="replace")
        lines = text.split("\n")[:-1]
        while lines and not _is_json(lines[-1]):
            lines.pop()
        return lines


def finite(metrics: Mapping[str, float]) -> Row:
    """The metrics as JSON values; what is not finite becomes null and is counted under ``non_finite``."""
    row: Row = {}
    lost = 0
    for name, value in metrics.items():
        number: int | float | None = _plain(value)
        if isinstance(number, float) and not math.isfinite(number):
            number, lost = None, lost + 1
        row[name] = number
    return row | {"non_finite": lost} if lost else row


def _plain(value: Any) -> int | float:
    """A Python number: integers stay integers, so that counts are written without a fraction."""
    if hasattr(value, "item"):
        value = value.item()
    return int(value) if isinstance(value, (bool, int)) else float(value)


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _append(path: Path, lines: Sequence[str]) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    with storage_errors(f"add a row to {path.name}"):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            before = os.fstat(descriptor).st_size
            try:
                _write_all(descriptor, data)
            except BaseException:
                os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    """Write everything: on a nearly full disk one call writes a part and only the next one says why."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
