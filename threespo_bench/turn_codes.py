"""Integer codes of ids: equal ids get equal codes, so that the rest is arithmetic on integers.

Ids are Python objects, mostly texts. Reading a text is what costs, so objects are told apart by their addresses as far as that goes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

_LOOK, _SHORT_RUN, _MANY = 256, 4, 2
"""What the first rows show of a column: its runs are long if they are at least four rows on average; it has many values if every second row has another."""
_TABLE = 4
"""Pairs get their codes from a table of all possible pairs if it is at most this many times as long as the column, otherwise by hashing."""


def codes(ids: np.ndarray) -> np.ndarray:
    """(N,) integers from 0: equal ids get equal codes, in order of first appearance. Ids may be any hashable values."""
    if ids.dtype == object:
        return _object_codes(ids)[0]
    return integer_codes(ids)[0] if ids.dtype.kind in "iu" else _value_codes(ids)


def group_codes(*columns: np.ndarray) -> np.ndarray:
    """(N,) codes of the rows' tuples over several id columns."""
    return combined([codes(column) for column in columns])


def pair_codes(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """(N,) codes of pairs of non-negative integers, whose product must fit into 64 bits."""
    pairs = one * (int(other.max(initial=0)) + 1) + other
    size = int(pairs.max(initial=-1)) + 1
    return _numbered(_first_rows(pairs, size) if size <= _TABLE * len(pairs) else _hashed_first_rows(pairs))[0]


def integer_codes(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N,) the :func:`codes` of integers, and the row in which each code appears first."""
    return _numbered(_hashed_first_rows(values))


def _numbered(first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes, and the first row of each, from the earliest row that has the same value as each row."""
    new = np.flatnonzero(first == np.arange(len(first), dtype=first.dtype))
    number = np.empty(len(first), np.int64)
    number[new] = np.arange(len(new))
    return number[first], new


def _first_rows(slots: np.ndarray, size: int) -> np.ndarray:
    """(N,) the earliest row that has the same slot; slots are below ``size``."""
    table = np.empty(size, np.int32 if len(slots) < 2**31 else np.int64)
    table[slots[::-1]] = np.arange(len(slots) - 1, -1, -1, dtype=table.dtype)  # the earliest row of each slot is written last
    return table[slots]


def _hashed_first_rows(values: np.ndarray) -> np.ndarray:
    """(N,) the earliest row that has the same integer. Slots are hashes; values that lost their slot to another one are sorted."""
    bits = len(values).bit_length()
    hashed = values.astype(np.uint64, copy=False) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(64 - bits) if bits else values  # Fibonacci hashing
    first = _first_rows(hashed.astype(np.intp), 2**bits)
    lost = np.flatnonzero(values[first] != values)
    if len(lost):
        _, earliest, inverse = np.unique(values[lost], return_index=True, return_inverse=True)
        first[lost] = lost[earliest[inverse]]
    return first


@dataclass(frozen=True)
class Seen:
    """A column as it was: its numbers, or the addresses of its objects; ``held`` keeps these alive, so that no other object can get their address."""

    values: np.ndarray
    held: np.ndarray | None = None

    def holds(self, column: np.ndarray) -> bool:
        """The column has the same numbers, or the same objects. Ids cannot be changed in place."""
        if (column.dtype == object) is (self.held is None):
            return False
        values = column if self.held is None else _addresses(column)
        return values.dtype == self.values.dtype and np.array_equal(values, self.values)


def remembered(column: np.ndarray) -> tuple[Seen, np.ndarray]:
    """A column as it is now, and its codes."""
    if column.dtype != object:
        return Seen(column.copy()), codes(column)
    found, held = _object_codes(column)
    return Seen(_addresses(column).copy(), held), found


def _addresses(ids: np.ndarray) -> np.ndarray:
    """(N,) which object stands in each row."""
    return np.ndarray(len(ids), np.intp, buffer=np.ascontiguousarray(ids))


def _object_codes(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N,) codes, and an array that has every object of ``ids`` at least once.

    Objects are told apart by address first, which reads none of them: in batches equal ids are mostly one object. Only the objects that are left
    have to be looked up.
    """
    addresses = _addresses(ids)
    starts = np.flatnonzero(np.r_[True, addresses[1:] != addresses[:-1]][: len(ids)])
    if len(starts) * _SHORT_RUN <= len(ids):
        objects = ids[starts]
        return np.repeat(_value_codes(objects), np.diff(np.r_[starts, len(ids)])), objects
    look = addresses[:_LOOK]
    if len(np.unique(look)) * _MANY <= len(look):
        found, first = integer_codes(addresses)
        objects = ids[first]
        equal = _value_codes(objects)
        return found if equal.max() == len(objects) - 1 else equal[found], objects
    return _value_codes(ids), ids.copy()


def combined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """(N,) codes of the rows' tuples over several columns of codes."""
    found = parts[0]
    for part in parts[1:]:
        found = pair_codes(found, part)
    return found


def _value_codes(ids: np.ndarray) -> np.ndarray:
    """(N,) codes by looking the ids up, run by run where the runs are long."""
    runs = _runs(ids)
    if runs is None:
        return _dictionary_codes(ids)
    starts, lengths = runs
    return np.repeat(_dictionary_codes(ids[starts]), lengths)


def _dictionary_codes(ids: np.ndarray) -> np.ndarray:
    number: defaultdict[object, int] = defaultdict(count().__next__)
    return np.fromiter(map(number.__getitem__, ids.tolist()), np.int64, len(ids))


def _runs(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Starts and lengths of the runs of equal ids, or None where the first rows show that runs are short.

    Samplers write trajectory by trajectory; comparing neighbours is then cheaper than looking every row up.
    """
    first = ids[:_LOOK]
    if not len(ids) or np.count_nonzero(first[1:] != first[:-1]) * _SHORT_RUN > len(first):
        return None
    starts = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]])
    return starts, np.diff(np.r_[starts, len(ids)])
