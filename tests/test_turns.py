"""The batch of turns: its checks, its ids, joining and taking rows, and the way to disk and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from threespo_bench.errors import DataError
from threespo_bench.testing.batches import sample_turns
from threespo_bench.turns import TurnBatch, codes, group_codes, pad_tokens

COLUMNS = {"group_id": ["g", "g"], "traj_id": ["a", "b"], "step_id": [0, 0], "step_reward": [1.0, 0.0], "response_mask": [[1, 1], [1, 0]]}


def batch(**more: object) -> TurnBatch:
    return TurnBatch(**(COLUMNS | more))  # type: ignore[arg-type]


def objects(*values: object) -> np.ndarray:
    out = np.empty(len(values), object)
    out[:] = values
    return out


def rich() -> TurnBatch:
    """Every column, and extras of every kind."""
    turns = sample_turns()
    number = len(turns)
    paths = np.empty(number, object)
    for i in range(number):
        paths[i] = tuple(f"state {k}" for k in range(i % 3))
    turns.extras.update(command=objects(*[f"go {i}" for i in range(number)]), known=np.arange(number), first=np.arange(number) % 2 == 0, path=paths)
    return replace(turns, padding=np.arange(number) >= number - 2)


def assert_same(one: TurnBatch, other: TurnBatch) -> None:
    names = [name for name, _ in one._columns()]
    assert names == [name for name, _ in other._columns()]
    for name in names:
        first, second = one._get(name), other._get(name)
        assert first.dtype == second.dtype, name
        if name == "prompt_ids":
            assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(first, second, strict=True))
        elif first.ndim == 2 and first.shape == one.response_mask.shape and name != "response_mask":
            assert np.array_equal(np.where(one.response_mask, first, 0), np.where(other.response_mask, second, 0)), name
        else:
            assert np.array_equal(first, second), name


# ---- to disk and back


def test_parquet_and_back(tmp_path: Path) -> None:
    turns = rich()
    turns.save(tmp_path / "turns.parquet")
    back = TurnBatch.load(tmp_path / "turns.parquet")
    assert_same(turns, back)
    back.save(tmp_path / "again.parquet")
    assert_same(back, TurnBatch.load(tmp_path / "again.parquet"))


def test_a_row_of_the_file_is_a_turn_without_padding(tmp_path: Path) -> None:
    turns = rich()
    turns.save(tmp_path / "turns.parquet")
    frame = pd.read_parquet(tmp_path / "turns.parquet")
    assert len(frame) == len(turns)
    assert frame["traj_id"].tolist() == turns.traj_id.tolist()
    assert [len(ids) for ids in frame["response_ids"]] == turns.response_mask.sum(axis=1).tolist()
    assert [len(row) for row in frame["old_log_probs"]] == turns.response_mask.sum(axis=1).tolist()
    assert frame["command"].tolist() == turns.extras["command"].tolist()


def test_masks_with_holes_and_empty_responses_survive(tmp_path: Path) -> None:
    mask = np.array([[1, 0, 1, 0], [0, 0, 0, 0]], bool)
    turns = batch(response_mask=mask, response_ids=[[5, 6, 7, 8], [9, 9, 9, 9]])
    turns.save(tmp_path / "turns.parquet")
    back = TurnBatch.load(tmp_path / "turns.parquet")
    assert back.response_mask.tolist() == mask[:, :3].tolist()
    assert back.response_ids.tolist() == [[5, 6, 7], [0, 0, 0]]


def test_critic_values_per_token(tmp_path: Path) -> None:
    turns = batch(values=np.array([[0.5, 0.25], [1.0, 9.0]]))
    turns.save(tmp_path / "turns.parquet")
    assert TurnBatch.load(tmp_path / "turns.parquet").values.tolist() == [[0.5, 0.25], [1.0, 0.0]]


def test_no_numbers_under_a_false_mask_are_needed(tmp_path: Path) -> None:
    turns = batch(old_log_probs=np.array([[-1.0, -2.0], [-3.0, np.nan]]))
    turns.save(tmp_path / "turns.parquet")
    assert TurnBatch.load(tmp_path / "turns.parquet").old_log_probs.tolist() == [[-1.0, -2.0], [-3.0, 0.0]]


@pytest.mark.parametrize("content", [b"", b"no parquet at all", b"PAR1" + b"\0" * 40 + b"PAR1"])
def test_files_that_are_no_batch(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "turns.parquet"
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"turns\.parquet"):
        TurnBatch.load(file)


def test_missing_files_and_columns(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="gone"):
        TurnBatch.load(tmp_path / "gone.parquet")
    pd.DataFrame({"group_id": ["g"], "traj_id": ["a"], "step_id": [0], "response_mask": [[True]]}).to_parquet(tmp_path / "some.parquet")
    with pytest.raises(DataError, match="no column step_reward"):
        TurnBatch.load(tmp_path / "some.parquet")


# ---- rows


def test_joining_pads_tokens_and_keeps_every_row() -> None:
    narrow = batch(response_ids=[[1, 2], [3, 0]], values=[0.1, 0.2])
    wide = batch(response_mask=[[1, 1, 1], [1, 0, 0]], response_ids=[[4, 5, 6], [7, 0, 0]], values=[0.3, 0.4])
    joined = TurnBatch.concatenate([narrow, wide])
    assert joined.response_mask.astype(int).tolist() == [[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 0, 0]]
    assert joined.response_ids.tolist() == [[1, 2, 0], [3, 0, 0], [4, 5, 6], [7, 0, 0]]
    assert joined.values.tolist() == [0.1, 0.2, 0.3, 0.4]
    assert joined.response_mask.dtype == bool


def test_joining_the_parts_of_a_batch_gives_the_batch() -> None:
    turns = rich()
    parts = [turns.take(rows) for rows in np.array_split(np.arange(len(turns)), 4)]
    assert_same(turns, TurnBatch.concatenate(parts))


def test_taking_rows_by_index_and_by_mask() -> None:
    turns = rich()
    chosen = turns.extras["first"]
    for rows in (chosen, np.flatnonzero(chosen)):
        taken = turns.take(rows)
        assert taken.traj_id.tolist() == turns.traj_id[chosen].tolist()
        assert taken.extras["known"].tolist() == turns.extras["known"][chosen].tolist()
        assert [len(ids) for ids in taken.prompt_ids] == [3] * int(chosen.sum())
    assert turns.take(np.array([5, 5, 0])).step_id.tolist() == turns.step_id[[5, 5, 0]].tolist()
    assert len(turns.take(np.zeros(len(turns), bool))) == 0


# ---- checks


@pytest.mark.parametrize("name", ["response_mask", "action_valid", "success", "padding"])
def test_masks_are_true_or_false(name: str) -> None:
    wrong = [[0.5, 1.0], [1.0, 0.0]] if name == "response_mask" else [0.5, 1.0]
    with pytest.raises(DataError, match=f"column {name} is a mask"):
        batch(**{name: np.array(wrong)})
    right = [[1, 0], [1, 1]] if name == "response_mask" else [1, 0]
    assert getattr(batch(**{name: np.array(right)}), name).dtype == bool


def test_advantages_in_the_place_of_the_mask_are_refused() -> None:
    with pytest.raises(DataError, match="response_mask is a mask"):
        batch(response_mask=np.array([[-0.3, 1.2], [0.1, 0.0]]))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"traj_id": ["a"]}, "column traj_id has 1 rows, but the batch has 2"),
        ({"extras": {"known": np.arange(3)}}, "column known has 3 rows"),
        ({"response_mask": np.ones(2, bool)}, r"response_mask has shape \(2,\)"),
        ({"response_ids": [[1], [2]]}, r"response_ids has shape \(2, 1\), but response_mask has \(2, 2\)"),
    ],
)
def test_shapes(columns: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        batch(**columns)


def test_types_of_numbers() -> None:
    turns = batch(response_ids=[[1, 2], [3, 4]], old_log_probs=np.zeros((2, 2), np.float32), policy_version=[1, 1])
    assert (turns.response_ids.dtype, turns.old_log_probs.dtype, turns.step_reward.dtype) == (np.int32, np.float64, np.float64)
    assert (turns.step_id.dtype, turns.policy_version.dtype) == (np.int64, np.int64)


def test_a_missing_column_names_its_reader() -> None:
    turns = batch(extras={"known": np.zeros(2)})
    turns.require(["group_id", "known"], "mine")
    for name in ("anchor_obs", "clock"):
        with pytest.raises(DataError, match=f"mine needs the column {name}"):
            turns.require(["group_id", name], "mine")


# ---- ids and returns


def test_returns_are_sums_over_trajectories_whatever_the_order() -> None:
    turns = batch(
        group_id=list("gggggg"), traj_id=list("abacab"), step_id=[0, 0, 1, 0, 2, 1], step_reward=[1, 10, 2, 100, 4, 20], response_mask=np.ones((6, 1), bool)
    )
    assert turns.episode_return().tolist() == [7, 30, 7, 100, 7, 30]
    order = np.array([3, 5, 0, 2, 1, 4])
    assert turns.take(order).episode_return().tolist() == turns.episode_return()[order].tolist()


def test_padding_rows_have_no_return_and_add_to_none() -> None:
    turns = batch(traj_id=["a", "a"], step_reward=[1.0, 50.0], padding=[0, 1])
    assert turns.real.tolist() == [True, False]
    assert turns.episode_return().tolist() == [1.0, 0.0]
    assert batch(padding=[1, 1]).episode_return().tolist() == [0.0, 0.0]


def test_codes() -> None:
    assert codes(np.array(["b", "a", "b", "c"], object)).tolist() == [0, 1, 0, 2]
    assert codes(objects(("a", 1), ("a", 2), ("a", 1))).tolist() == [0, 1, 0]
    assert codes(np.array([], object)).tolist() == []
    assert group_codes(np.array([1, 1, 2]), np.array(["x", "y", "x"], object)).tolist() == [0, 1, 2]


def test_pad_tokens() -> None:
    padded = pad_tokens([np.array([1, 2]), np.array([]), np.array([3])], 3, np.int32)
    assert padded.tolist() == [[1, 2, 0], [0, 0, 0], [3, 0, 0]]
    assert padded.dtype == np.int32
