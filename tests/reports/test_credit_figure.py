"""The heat map of credit: every turn in its place, whatever the order of the rows, for batches of any size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from threespo_bench.testing import sample_turns
from threespo_bench.turns import TurnBatch, object_column
from threespo_reports.credit_figure import _cell, _grid, _natural, draw_credit


def batch(groups: int, rollouts: int, length: int) -> TurnBatch:
    rows = [(f"g{g}", f"g{g}/{b}", step) for g in range(groups) for b in range(rollouts) for step in range(length)]
    return TurnBatch(
        group_id=object_column([row[0] for row in rows]),
        traj_id=object_column([row[1] for row in rows]),
        step_id=np.array([row[2] for row in rows]),
        step_reward=np.array([float(row[2] == length - 1 and row[1].endswith("1")) for row in rows]),
        response_mask=np.ones((len(rows), 1), bool),
    )


def test_the_best_trajectory_of_a_group_is_on_top() -> None:
    grid = _grid(batch(11, 3, 2))
    assert grid.names[:3] == ["g0/1", "g0/0", "g0/2"]
    assert grid.returns[:3] == [1, 0, 0]
    assert [name for name, _, _ in grid.groups][-2:] == ["g9", "g10"]
    assert grid.breaks == list(range(3, 33, 3))
    assert grid.shape == (33, 2)


def test_turns_that_cannot_get_credit_have_no_place() -> None:
    turns = batch(1, 2, 3)
    turns.padding = np.arange(6) == 5
    turns.response_mask[0] = False
    grid = _grid(turns)
    assert sorted(grid.rows.tolist()) == [1, 2, 3, 4]
    assert grid.first == 0


def test_numbers_in_names_are_numbers() -> None:
    assert sorted(["t10", "t2", "a", "t2/1"], key=_natural) == ["a", "t2", "t2/1", "t10"]


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_order_of_the_rows_does_not_matter_and_equal_batches_give_equal_bytes(suffix: str, tmp_path: Path) -> None:
    turns = sample_turns()
    values = np.random.default_rng(0).normal(size=len(turns))
    order = np.random.default_rng(1).permutation(len(turns))
    draw_credit(turns, {"grpo": values}, tmp_path / f"one.{suffix}")
    draw_credit(turns.take(order), {"grpo": values[order]}, tmp_path / f"two.{suffix}")
    assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"two.{suffix}").read_bytes()


def test_every_panel_has_its_name_and_its_numbers(tmp_path: Path) -> None:
    turns = batch(1, 2, 2)
    svg = draw_credit(turns, {"gigpo@reference": np.array([1.5, 0, -2, 0.25]), "grpo": np.zeros(4)}, tmp_path / "who.svg").read_text()
    for text in ("GiGPO @reference", "GRPO", "+1.50", "\N{MINUS SIGN}2.00", "framed: a turn with a reward", "g0/1   1", ">turn<"):
        assert text in svg
    assert "Matplotlib" not in svg


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (48, 12), (512, 30), (5000, 50), (2, 400)])
@pytest.mark.parametrize("panels", [1, 4])
def test_the_size_of_a_panel_is_bounded(shape: tuple[int, int], panels: int) -> None:
    width, height = _cell(shape, panels)
    assert 0 < width * shape[1] < 7.51 and 0 < height * shape[0] < 9.01


@pytest.mark.parametrize(("groups", "rollouts", "length", "panels"), [(1, 1, 1, 1), (2, 2, 1, 5), (300, 8, 6, 2)])
def test_other_sizes(groups: int, rollouts: int, length: int, panels: int, tmp_path: Path) -> None:
    turns = batch(groups, rollouts, length)
    values = np.linspace(-1e5, 3, len(turns))
    out = draw_credit(turns, {f"algorithm_{number}": values for number in range(panels)}, tmp_path / "who.png")
    assert out.read_bytes().startswith(b"\x89PNG")


def test_strange_names(tmp_path: Path) -> None:
    turns = batch(1, 2, 2)
    turns.traj_id = object_column(["$a_b$", "$a_b$", "x" * 80, "x" * 80])
    assert draw_credit(turns, {"mine$": np.ones(4)}, tmp_path / "who.svg").exists()
