"""Rows are whole or absent, bytes repeat, and what a resume takes back is kept aside."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from threespo_bench.errors import StorageError
from threespo_bench.rows import RowFile, finite


def test_rows_come_back_in_order(tmp_path):
    rows = RowFile(tmp_path / "metrics.jsonl")
    assert rows.read() == []
    for i in range(3):
        rows.append({"kind": "train", "i": i, "x": 0.1 + i, "none": None, "text": "ü"})
    assert [row["i"] for row in rows.read()] == [0, 1, 2]
    assert rows.path.read_bytes().count(b"\n") == 3


def test_a_torn_last_line_is_not_read_and_goes_at_the_next_cut(tmp_path):
    rows = RowFile(tmp_path / "metrics.jsonl")
    rows.append({"i": 0})
    for torn in (b'{"i": 1', b'{"i": 1}', b'{"i": \n', b"\x00\x00\n"):
        rows.path.write_bytes(b'{"i": 0}\n' + torn)
        assert rows.read() == [{"i": 0}]
        assert rows.cut(5) == 0
        assert rows.path.read_bytes() == b'{"i": 0}\n'


def test_cut_rows_are_kept_aside(tmp_path):
    rows = RowFile(tmp_path / "metrics.jsonl")
    for i in range(5):
        rows.append({"i": i})
    assert rows.cut(3) == 2
    assert rows.cut(1) == 2
    assert rows.read() == [{"i": 0}]
    assert rows.discarded.name == "metrics.discarded"
    assert [json.loads(line)["i"] for line in rows.discarded.read_text().splitlines()] == [3, 4, 1, 2]


def test_cutting_what_is_not_there(tmp_path):
    assert RowFile(tmp_path / "metrics.jsonl").cut(0) == 0


@pytest.mark.parametrize("written", [0, 4])
def test_a_refused_write_leaves_the_file_as_it_was(tmp_path, monkeypatch, written):
    rows = RowFile(tmp_path / "metrics.jsonl")
    rows.append({"i": 0})
    real, answers = os.write, [written] if written else []

    def write(descriptor, data):
        if answers:
            return real(descriptor, bytes(data[: answers.pop()]))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(StorageError, match=r"add a row to metrics\.jsonl: the disk is full") as caught:
        rows.append({"i": 1})
    assert "--resume" in caught.value.fix
    monkeypatch.undo()
    assert rows.path.read_bytes() == b'{"i": 0}\n'
    rows.append({"i": 2})
    assert rows.read() == [{"i": 0}, {"i": 2}]


def test_what_is_not_finite_is_null_and_counted():
    assert finite({"a": float("nan"), "b": float("inf"), "c": -float("inf"), "d": 1.5}) == {"a": None, "b": None, "c": None, "d": 1.5, "non_finite": 3}
    assert "non_finite" not in finite({"a": 1})


def test_numbers_of_any_library_are_written_the_same_way():
    row = finite({"a": np.int64(3), "b": np.float64(0.1), "c": np.array(2.5), "d": True, "e": np.float32(0.5), "f": 7, "g": np.bool_(False)})
    assert json.dumps(row) == '{"a": 3, "b": 0.1, "c": 2.5, "d": 1, "e": 0.5, "f": 7, "g": 0}'


@given(st.lists(st.dictionaries(st.text(max_size=5), st.floats() | st.integers(-(2**60), 2**60), max_size=4), max_size=6))
def test_any_metrics_survive(tmp_path_factory, table):
    rows = RowFile(tmp_path_factory.mktemp("rows") / "metrics.jsonl")
    for metrics in table:
        rows.append(finite(metrics))
    assert rows.read() == [finite(metrics) for metrics in table]
