"""Advantages turn by turn, side by side: as a table for people, and as JSON, CSV and Parquet for programs."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from threespo_bench.crediting import Credited, mean_advantages, shown_rows
from threespo_bench.turns import TurnBatch

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

TABLE_WIDTH = 80
PER_TOKEN = "*"
_LONGEST_ID = 24

Advantage = float | list[float]
"""One number where all response tokens of the turn have it, else one a token, to the last response token (0 on tokens that are no response)."""


@dataclass(frozen=True)
class CreditTable:
    """The turns that can get credit, in the order of the file, with what each algorithm gives them.

    Attributes:
        trajectories, steps: what a turn is called. rewards: its reward. dropped: how many rows were left out, by reason.
        columns, means, diagnostics: by algorithm; ``means`` are over the response tokens of a turn.
    """

    trajectories: list[Any]
    steps: list[int]
    rewards: list[float]
    dropped: dict[str, int]
    columns: dict[str, list[Advantage]]
    means: dict[str, list[float]]
    diagnostics: dict[str, dict[str, float]]


def make_table(turns: TurnBatch, credits: Sequence[Credited]) -> CreditTable:
    """Collect the answers of several algorithms on one batch."""
    shown, dropped = shown_rows(turns)
    rows = np.flatnonzero(shown)
    mask = turns.response_mask[rows]
    return CreditTable(
        trajectories=turns.traj_id[rows].tolist(),
        steps=turns.step_id[rows].tolist(),
        rewards=turns.step_reward[rows].tolist(),
        dropped=dropped,
        columns={credited.label: _per_turn(credited.credit.advantages[rows], mask) for credited in credits},
        means={credited.label: mean_advantages(credited.credit, turns)[rows].tolist() for credited in credits},
        diagnostics={credited.label: dict(credited.credit.diagnostics) for credited in credits},
    )


def _per_turn(advantages: np.ndarray, mask: np.ndarray) -> list[Advantage]:
    low, high = np.where(mask, advantages, np.inf).min(axis=1), np.where(mask, advantages, -np.inf).max(axis=1)
    values: list[Advantage] = (low + 0.0).tolist()  # no negative zero
    lengths = mask.shape[1] - np.argmax(mask[:, ::-1], axis=1)
    for row in np.flatnonzero(low != high):
        values[row] = (np.where(mask[row], advantages[row], 0.0)[: lengths[row]] + 0.0).tolist()
    return values


def as_json(table: CreditTable) -> str:
    """One object for one algorithm, a list of them for several; a line a turn."""
    objects = []
    for label, values in table.columns.items():
        turns = zip(table.trajectories, table.steps, values, strict=True)
        rows = ",\n  ".join(_json({"traj_id": trajectory, "step_id": step, "advantage": value}) for trajectory, step, value in turns)
        diagnostics = {name: float(value) if math.isfinite(value) else None for name, value in table.diagnostics[label].items()}
        rest = f'"diag": {_json(diagnostics)},\n "dropped": {_json(table.dropped)}'
        objects.append(f'{{"algorithm": {_json(label)},\n "rows": [\n  {rows}\n ],\n {rest}}}')
    return (objects[0] if len(objects) == 1 else "[" + ",\n".join(objects) + "]") + "\n"


def as_csv(table: CreditTable) -> str:
    """A line per algorithm and turn; advantages per token as a JSON list."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["algorithm", "traj_id", "step_id", "advantage"])
    for label, values in table.columns.items():
        for trajectory, step, value in zip(table.trajectories, table.steps, values, strict=True):
            writer.writerow([label, _name(trajectory), step, _json(value)])
    return out.getvalue()


def as_parquet(table: CreditTable) -> bytes:
    """A row per algorithm and turn; if any turn has advantages per token, all are lists, of one number where the tokens do not differ."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    values = [value for column in table.columns.values() for value in column]
    if any(isinstance(value, list) for value in values):
        values = [value if isinstance(value, list) else [value] for value in values]
    names = [name if isinstance(name, (str, int)) else _name(name) for name in table.trajectories]
    columns = {
        "algorithm": [label for label in table.columns for _ in table.steps],
        "traj_id": names * len(table.columns),
        "step_id": table.steps * len(table.columns),
        "advantage": values,
    }
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


def as_tables(table: CreditTable, width: int = TABLE_WIDTH) -> list[Table]:
    """Tables that fit into ``width`` columns: as many algorithms side by side as there is room for, then the others below."""
    turns = {"trajectory": [_short(_name(name)) for name in table.trajectories], "step": [str(step) for step in table.steps]}
    turns["reward"] = [f"{reward:g}" for reward in table.rewards]
    tables = _side_by_side(turns, {label: _cells(table, label) for label in table.columns}, width)
    diagnostics = dict.fromkeys(name for values in table.diagnostics.values() for name in values)
    if diagnostics:
        cells = {label: [f"{values[name]:.4g}" if name in values else "" for name in diagnostics] for label, values in table.diagnostics.items()}
        tables += _side_by_side({"diagnostic": list(diagnostics)}, cells, width)
    return tables


def per_token(table: CreditTable) -> bool:
    """Whether some turn has advantages that differ between its tokens; the table then shows their mean, with a mark."""
    return any(isinstance(value, list) for values in table.columns.values() for value in values)


def _side_by_side(names: dict[str, list[str]], columns: dict[str, list[str]], width: int) -> list[Table]:
    taken = sum(_width(name, cells) + 2 for name, cells in names.items())
    blocks: list[list[str]] = [[]]
    used = taken
    for label, cells in columns.items():
        wide = _width(_heading(label), cells) + 2
        if blocks[-1] and used + wide - 2 > width:
            blocks.append([])
            used = taken
        blocks[-1].append(label)
        used += wide
    return [_table(names, {label: columns[label] for label in block}) for block in blocks]


def _table(names: dict[str, list[str]], columns: dict[str, list[str]]) -> Table:
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in names:
        made.add_column(name, justify="right" if name in ("step", "reward") else "left", no_wrap=True)
    for label in columns:
        made.add_column(_heading(label), justify="right", no_wrap=True)
    for row in zip(*names.values(), *columns.values(), strict=True):
        made.add_row(*row[: len(names)], *map(_coloured, row[len(names) :]))
    return made


def _coloured(cell: str) -> Text:
    from rich.text import Text

    return Text(cell, style={"+": "green", "-": "red"}.get(cell[:1], ""))


def _cells(table: CreditTable, label: str) -> list[str]:
    """The mean of each turn, and a mark (or room for one) that says whether its tokens differ."""
    values = zip(table.means[label], table.columns[label], strict=True)
    return [_number(mean) + (PER_TOKEN if isinstance(value, list) else " ") for mean, value in values]


def _number(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:+.4f}" if 1e-3 <= abs(value) < 1e5 else f"{value:+.3e}"


def _heading(label: str) -> str:
    return label.replace("@", "\n@")


def _width(heading: str, cells: Sequence[str]) -> int:
    return max(map(len, (*heading.split("\n"), *cells)))


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_ID else f"{name[: _LONGEST_ID // 2]}…{name[-(_LONGEST_ID - _LONGEST_ID // 2 - 1) :]}"


def _name(name: Any) -> str:
    return " ".join(name.split()) if isinstance(name, str) else _json(name)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
