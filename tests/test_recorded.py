"""Recorded turns: what is read, what is refused, and with which words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from threespo_bench.batch_checks import check_batch
from threespo_bench.errors import DataError
from threespo_bench.recorded import Recorded, example_lines, read_turns
from threespo_bench.testing import sample_turns
from threespo_bench.turns import TurnBatch, object_column

Row = dict[str, Any]


def turn(**values: Any) -> Row:
    """A turn with all that is required; None takes a column away."""
    row = {"group_id": "g", "traj_id": "A", "step_id": 0, "step_reward": 1.0, "response_mask": [1, 1], **values}
    return {name: value for name, value in row.items() if value is not None}


def read(tmp_path: Path, *rows: Row | str) -> Recorded:
    path = tmp_path / "turns.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8")
    return read_turns(path, "grpo")


def equal(one: TurnBatch, other: TurnBatch) -> None:
    assert [name for name, _ in one._columns()] == [name for name, _ in other._columns()]
    for name, column in one._columns():
        assert column.dtype == other._get(name).dtype, name
        assert column.shape == other._get(name).shape, name
        same = map(np.array_equal, column, other._get(name)) if column.dtype == object else [np.array_equal(column, other._get(name))]
        assert all(same), name


# ---- what is read


def test_the_example(tmp_path: Path) -> None:
    turns = read(tmp_path, *example_lines()).turns
    check_batch(turns)
    assert turns.traj_id.tolist() == list("AAABBCCC")
    assert turns.step_id.tolist() == [0, 1, 2, 0, 1, 0, 1, 2]
    assert turns.response_mask.sum(axis=1).tolist() == [2, 3, 1, 2, 2, 1, 2, 3]
    assert turns.episode_return().tolist() == [10] * 3 + [0] * 5
    assert turns.truncated.tolist() == [False] * 4 + [True] + [False] * 3


def test_a_file_of_a_run_is_read_as_the_batch_itself_reads_it(tmp_path: Path) -> None:
    turns = sample_turns()
    number = len(turns)
    turns.padding = np.arange(number) >= number - 2
    turns.values = np.random.default_rng(0).normal(size=turns.response_mask.shape)
    turns.extras = {
        "command": turns.anchor_obs,
        "path": object_column([("a", "b") if row % 2 else () for row in range(number)]),
        "known_total": np.arange(number),
        "next_value": np.linspace(0, 1, number),
        "first_on_path": np.arange(number) % 2 == 0,
        "embedding": object_column([np.array([0.5, row]) for row in range(number)]),
    }
    path = tmp_path / "000000-000.parquet"
    turns.save(path)
    recorded = read_turns(path, "grpo")
    assert recorded.unused == {} and recorded.warnings == ()
    equal(recorded.turns, TurnBatch.load(path))


def test_parquet_of_others(tmp_path: Path) -> None:
    rows = [turn(step_id=0, done=False, baseline_return=0.5), turn(step_id=1, done=True, baseline_return=0.25)]
    path = tmp_path / "others.bin"  # the content decides, not the name
    pq.write_table(pa.Table.from_pylist(rows), path)
    turns = read_turns(path, "grpo").turns
    assert turns.terminated.tolist() == [False, True]
    assert turns.extras["baseline_return"].tolist() == [0.5, 0.25]


def test_an_episode_return_is_paid_at_the_last_step_wherever_that_row_stands(tmp_path: Path) -> None:
    rows = [
        turn(traj_id=name, step_id=step, step_reward=None, episode_return=value) for name, step, value in [("A", 1, 3), ("B", 0, 0.5), ("A", 2, 3), ("A", 0, 3)]
    ]
    turns = read(tmp_path, *rows).turns
    assert turns.step_reward.tolist() == [0, 0.5, 3, 0]
    assert turns.episode_return().tolist() == [3, 0.5, 3, 3]


def test_step_rewards_win_over_an_episode_return_that_disagrees(tmp_path: Path) -> None:
    agreeing = read(tmp_path, turn(step_reward=0.1, episode_return=0.3), turn(step_id=1, step_reward=0.2, episode_return=0.3))
    assert agreeing.warnings == ()
    recorded = read(tmp_path, turn(episode_return=2.0))
    assert recorded.turns.step_reward.tolist() == [1]
    assert "in 1 of 1 trajectories" in recorded.warnings[0]
    assert "episode_return" not in recorded.turns.extras


def test_values_of_turns_and_of_tokens(tmp_path: Path) -> None:
    assert read(tmp_path, turn(values=0.5), turn(step_id=1, values=1)).turns.values.tolist() == [0.5, 1.0]
    turns = read(tmp_path, turn(values=[0.5, 1]), turn(step_id=1, response_mask=[1, 0, 1], values=[1, None, 3])).turns
    assert turns.values[0].tolist() == [0.5, 1, 0]
    assert turns.values[1, [0, 2]].tolist() == [1, 3]


def test_done_is_terminated_unless_that_is_there(tmp_path: Path) -> None:
    assert read(tmp_path, turn(done=1)).turns.terminated.tolist() == [True]
    recorded = read(tmp_path, turn(done=1, terminated=False))
    assert recorded.turns.terminated.tolist() == [False]
    assert recorded.unused == {"done": "terminated is there too"}


def test_other_keys_become_extras(tmp_path: Path) -> None:
    extras = {"flag": True, "count": 3, "next_value": 0.5, "note": "x", "path": ["a"], "vector": [1, 2.5], "nobody": None}
    turns = read(tmp_path, turn(**extras), turn(step_id=1, **{**extras, "next_value": None, "note": None, "path": []})).turns
    kinds = {name: column.dtype.kind for name, column in turns.extras.items()}
    assert kinds == {"flag": "b", "count": "i", "next_value": "f", "note": "O", "path": "O", "vector": "O"}
    assert turns.extras["path"].tolist() == [("a",), ()]
    assert np.isnan(turns.extras["next_value"][1]) and turns.extras["note"][1] is None


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (1, "1", "different types"),
        (True, 1, "different types"),
        ([1], 1, "different types"),
        ({"a": 1}, {"a": 2}, "of type dict"),
        ([[1]], [[2]], "lists hold list"),
        ([1, "a"], [1, "a"], "lists hold numbers, texts"),
        (True, None, "some turns have none"),
        (1, 2**70, "too large"),
        (0.5, 10**400, "too large"),
    ],
)
def test_keys_that_cannot_be_columns_are_said_to_be_unused(first: Any, second: Any, reason: str, tmp_path: Path) -> None:
    recorded = read(tmp_path, turn() | {"odd": first}, turn(step_id=1) | {"odd": second})
    assert reason in recorded.unused["odd"]
    assert recorded.turns.extras == {}


def test_blank_lines_a_byte_order_mark_and_strange_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl"
    path.write_bytes(b"\xef\xbb\xbf\r\n" + json.dumps(turn(anchor_obs="a\u2028b"), ensure_ascii=False).encode() + b"\r\n\r\n")
    assert read_turns(path, "grpo").turns.anchor_obs.tolist() == ["a\u2028b"]


def test_padding_may_lack_numbers(tmp_path: Path) -> None:
    turns = read(tmp_path, turn(padding=0, values=1.0), turn(padding=1, step_reward=None)).turns
    assert turns.real.tolist() == [True, False]
    check_batch(turns)


def test_states_may_be_lists_and_ids_numbers(tmp_path: Path) -> None:
    turns = read(tmp_path, turn(traj_id=7, anchor_obs=["a", [1, 2]]), turn(traj_id=8, anchor_obs=["a", [1, 2]])).turns
    assert turns.traj_id.tolist() == [7, 8]
    assert len(set(turns.anchor_obs.tolist())) == 1


# ---- what is refused


@pytest.mark.parametrize("name", ["group_id", "traj_id", "step_id", "step_reward", "response_mask"])
def test_a_required_column_is_named_with_the_algorithm_that_needs_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"grpo needs the column {name}.*which .*turns\.jsonl does not have"):
        read(tmp_path, turn(**{name: None}), turn(**{name: None}))


BAD = [
    ({"group_id": None}, "there is no group_id, which other turns have"),
    ({"group_id": {"a": 1}}, 'group_id is {"a": 1}, must be a text'),
    ({"step_id": -0.5}, "step_id is -0.5, must be a whole number"),
    ({"step_id": True}, "step_id is true"),
    ({"step_id": 1 << 70}, "step_id is 1180591620717411303424"),
    ({"step_reward": "1"}, 'step_reward is "1", must be a number'),
    ({"step_reward": None}, "there is no step_reward, which other turns have"),
    ({"step_reward": 10**400}, "step_reward is 1000"),
    ({"response_mask": 1}, "response_mask is 1, must be a list of 0 and 1"),
    ({"response_mask": [1, 2]}, "response_mask is [1, 2]"),
    ({"values": "a"}, 'values is "a", must be'),
    ({"values": [0.5]}, "values has 1 tokens, but response_mask has 2"),
    ({"old_log_probs": -1.5}, "old_log_probs is -1.5, must be a list of numbers"),
    ({"old_log_probs": [-1.5]}, "old_log_probs has 1 tokens, but response_mask has 2"),
    ({"response_ids": [1, -2]}, "response_ids is [1, -2], must be a list of token ids"),
    ({"prompt_ids": ["a"]}, 'prompt_ids is ["a"]'),
    ({"action_valid": "yes"}, 'action_valid is "yes", must be true or false'),
]


@pytest.mark.parametrize(("change", "words"), BAD, ids=[f"{next(iter(change.items()))}"[:40] for change, _ in BAD])
def test_a_value_of_the_wrong_kind_is_named_with_its_line(change: Row, words: str, tmp_path: Path) -> None:
    optional = {"values": [0.5, 1], "old_log_probs": [-1, -2], "response_ids": [1, 2], "prompt_ids": [1], "action_valid": 1}
    good = turn(**optional)
    with pytest.raises(DataError) as refused:
        read(tmp_path, good, "", {name: value for name, value in {**good, "step_id": 1, **change}.items() if value is not None})
    assert "turns.jsonl, line 3: " in str(refused.value)
    assert words in str(refused.value)
    assert len(str(refused.value)) < 300


def test_returns_of_one_trajectory_must_agree(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 1: episode_return is 2\.0, but other turns of trajectory A have another one"):
        read(tmp_path, turn(step_reward=None, episode_return=2), turn(step_id=1, step_reward=None, episode_return=3))


def test_ids_are_written_in_one_way(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the column traj_id mixes numbers and texts"):
        read(tmp_path, turn(traj_id=1), turn(traj_id="1"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "has no turns"),
        (b"\n \n", "has no turns"),
        (b'{"group_id": "g"', "line 1 is not JSON"),
        (b'{"a": 1}\n\n{"a": 1,}\n', "line 3 is not JSON"),
        (b"[1]\n", "line 1 is no JSON object"),
        (b"\xff\xfe\x00", "neither Parquet nor text in UTF-8"),
        (b'{"a": "\\ud800"}\n', "line 1: a text is not valid Unicode"),
        (b"[" * 100_000, "line 1"),
        (b'{"a": ' + b"9" * 5000 + b"}", "line 1 cannot be read"),
        (b"PAR1 and then nothing", "not a readable Parquet file"),
    ],
    ids=["empty", "blank", "cut", "comma", "list", "binary", "surrogate", "deep", "digits", "parquet"],
)
def test_files_that_are_none(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "turns"
    path.write_bytes(content)
    with pytest.raises(DataError) as refused:
        read_turns(path, "grpo")
    assert words in str(refused.value)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_turns(tmp_path / "gone", "grpo")
    with pytest.raises(DataError, match="is a folder"):
        read_turns(tmp_path, "grpo")


# ---- whatever comes

SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.integers() | st.floats() | st.text(max_size=3)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2), max_leaves=4)
NAMES = st.sampled_from(
    ["group_id", "traj_id", "step_id", "step_reward", "response_mask", "episode_return", "done", "values", "old_log_probs", "padding", "anchor_obs"]
) | st.text(max_size=3)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.dictionaries(NAMES, VALUES, max_size=5), min_size=1, max_size=4), complete=st.booleans())
@example(rows=[{"response_mask": [], "values": []}], complete=True)
@example(rows=[{"padding": True, "episode_return": None}, {"episode_return": float("nan")}], complete=True)
def test_any_objects_give_a_batch_or_a_line(rows: list[Row], complete: bool, tmp_path: Path) -> None:
    rows = [{**turn(step_id=place), **row} if complete else row for place, row in enumerate(rows)]
    try:
        turns = read(tmp_path, *rows).turns
        check_batch(turns)
    except DataError:
        return
    assert len(turns) == len(rows)
    assert np.isfinite(turns.step_reward[turns.real]).all()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_give_a_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "turns"
    path.write_bytes(content)
    with pytest.raises(DataError):
        read_turns(path, "grpo")
