"""A checkpoint is complete or it does not count."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from threespo_bench.checkpointing import Checkpoints, damage, read_state, write_state
from threespo_bench.errors import PluginError, StorageError


def fill(content: bytes = b"weights"):
    def write(folder):
        (folder / "learner").mkdir()
        (folder / "learner" / "weights.bin").write_bytes(content)
        (folder / "loop.json").write_text("{}")

    return write


def test_the_newest_ones_stay(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    assert checkpoints.newest(pytest.fail) is None
    for iteration in (3, 6, 9, 12):
        checkpoints.write(iteration, fill(b"%d" % iteration), {"metrics": iteration})
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["iteration-000009", "iteration-000012"]
    newest = checkpoints.newest(pytest.fail)
    assert (newest.iteration, newest.notes) == (12, {"metrics": 12})
    assert (newest.folder / "learner" / "weights.bin").read_bytes() == b"12"


def test_one_that_is_written_again_replaces_the_former(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(3, fill(b"old"), {})
    checkpoints.write(3, fill(b"new"), {})
    assert (checkpoints.newest(pytest.fail).folder / "learner" / "weights.bin").read_bytes() == b"new"


def test_a_writer_that_fails_leaves_what_was_there(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(3, fill(), {})

    def break_off(folder):
        (folder / "part.bin").write_bytes(b"x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkpoints.write(6, break_off, {})
    assert [path.name for path in tmp_path.iterdir()] == ["iteration-000003"]


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        RuntimeError("[enforce fail at inline_container.cc:672] . PytorchStreamWriter failed writing file data/0: file write failed"),
        Exception("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_one_line_however_the_serialiser_says_it(tmp_path, error):
    def write(folder):
        raise error

    with pytest.raises(StorageError, match="cannot write the checkpoint of iteration 6: the disk is full") as caught:
        Checkpoints(tmp_path).write(6, write, {})
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_defect_is_not_taken_for_a_full_disk(tmp_path):
    def write(folder):
        raise KeyError("weights")

    with pytest.raises(KeyError):
        Checkpoints(tmp_path).write(6, write, {})


def test_leftovers_of_a_killed_writer_do_not_count(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(3, fill(), {})
    shutil.copytree(tmp_path / "iteration-000003", tmp_path / ".writing-iteration-000006")
    assert checkpoints.newest(pytest.fail).iteration == 3
    checkpoints.write(9, fill(), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["iteration-000003", "iteration-000009"]


def test_damage_is_named(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    folder = checkpoints.write(3, fill(), {}).folder
    assert damage(folder) is None
    weights = folder / "learner" / "weights.bin"
    weights.write_bytes(b"weightz")
    assert damage(folder) == "learner/weights.bin is not what was written"
    weights.unlink()
    assert damage(folder) == "learner/weights.bin is missing"
    (folder / "complete.json").unlink()
    assert "was not finished" in damage(folder)


def test_damaged_ones_are_skipped_and_reported(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for iteration in (3, 6):
        checkpoints.write(iteration, fill(), {})
    (tmp_path / "iteration-000006" / "loop.json").write_text("{ }")
    lines = []
    assert checkpoints.newest(lines.append).iteration == 3
    assert lines == ["checkpoint iteration-000006 is skipped: loop.json is not what was written"]
    (tmp_path / "iteration-000003" / "loop.json").unlink()
    with pytest.raises(StorageError, match="no usable checkpoint"):
        checkpoints.newest(lines.append)


STATE = {
    "counts": {"a|b": 3, "ü\n": -1},
    "floats": [0.1, float("inf"), 1e-300],
    "nothing": None,
    "flag": True,
    "text": "x",
    "array": np.arange(6, dtype=np.int32).reshape(2, 3),
    "words": np.array(["one", "three"]),
    "empty": np.zeros((0, 2)),
    "scalar": np.float64(0.1),
    "deep": [{"more": [np.array([np.nan])]}],
}


def test_a_state_comes_back_as_it_was(tmp_path):
    write_state(tmp_path, "algorithm", STATE, "algorithm x")
    back = read_state(tmp_path, "algorithm")
    assert list(back) == list(STATE)
    for key in ("counts", "floats", "nothing", "flag", "text", "scalar"):
        assert back[key] == STATE[key]
        assert type(back[key]) is type(STATE[key])
    for key in ("array", "words", "empty"):
        np.testing.assert_array_equal(back[key], STATE[key], strict=True)
    assert np.isnan(back["deep"][0]["more"][0]).all()


def test_equal_states_give_equal_bytes(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_state(tmp_path / name, "s", STATE, "x")
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


@pytest.mark.parametrize(
    ("state", "place"),
    [
        ({"a": {1: 2}}, "algorithm.a is a dict whose keys are not all strings"),
        ({"a": [{"b": (1, 2)}]}, r"algorithm.a\[0\].b is a tuple"),
        ({"a": np.array([object()])}, "algorithm.a is a ndarray"),
        ({"a": {1, 2}}, "algorithm.a is a set"),
    ],
)
def test_a_state_that_would_come_back_changed_is_refused(tmp_path, state, place):
    with pytest.raises(PluginError, match=f"algorithm x cannot be checkpointed: {place}"):
        write_state(tmp_path, "algorithm", state, "algorithm x")
