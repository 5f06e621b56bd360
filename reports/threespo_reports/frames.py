"""Measurements by run: the rows of a run lie together in every frame of the report, so a run is a slice of each column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class ByRun:
    """The columns of a frame run by run, without copies."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self._frame = frame
        self._columns: dict[str, Floats] = {}
        codes, names = pd.factorize(frame["run"])
        edges = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)] if len(codes) else []
        self._slices = {str(names[codes[start]]): slice(start, stop) for start, stop in pairwise(edges)}

    def __iter__(self) -> Iterator[str]:
        return iter(self._slices)

    def __contains__(self, run: object) -> bool:
        return run in self._slices

    def column(self, run: str, name: str) -> Floats:
        """The numbers of one run; NaN where the frame has no such column, empty where it has no such run."""
        place = self._slices.get(run, slice(0, 0))
        if name not in self._columns:
            values = self._frame[name].to_numpy(np.float64) if name in self._frame else np.full(len(self._frame), np.nan)
            self._columns[name] = values
        return self._columns[name][place]

    def curve(self, run: str, axis: str, value: str = "success") -> tuple[Floats, Floats]:
        """(x, value) of one run, x ascending, without points at which either is unknown."""
        return known_curve(self.column(run, axis), self.column(run, value))


def known_curve(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """The points at which both are finite, in the order of x."""
    known = np.isfinite(x) & np.isfinite(y)
    if not known.all():
        x, y = x[known], y[known]
    if (np.diff(x) < 0).any():
        order = np.argsort(x, kind="stable")
        x, y = x[order], y[order]
    return x, y


def stacked(parts: Sequence[tuple[Mapping[str, Any], Mapping[str, Floats]]]) -> pd.DataFrame:
    """Runs under one another, column by column, so that no more than one column is in memory twice.

    Args:
        parts: for each run, what is the same in all its rows (texts become categories), and its columns of numbers.
    """
    lengths = np.array([len(next(iter(columns.values()), ())) for _, columns in parts], dtype=np.int64)
    frame: dict[str, Any] = {}
    for name in dict.fromkeys(name for shared, _ in parts for name in shared):
        values = [shared[name] for shared, _ in parts]
        if all(isinstance(value, str) for value in values):
            categories = sorted({value for value, length in zip(values, lengths, strict=True) if length})
            code = {value: number for number, value in enumerate(categories)}
            frame[name] = pd.Categorical.from_codes(np.repeat([code.get(value, 0) for value in values], lengths), categories)
        else:
            frame[name] = np.repeat(np.array(values), lengths)
    for name in sorted({name for _, columns in parts for name in columns}):
        frame[name] = np.concatenate([columns[name] if name in columns else np.full(n, np.nan) for (_, columns), n in zip(parts, lengths, strict=True)])
    return pd.DataFrame(frame, copy=False)
