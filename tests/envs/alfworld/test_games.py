"""Where the games are found, and what is said when they are not or are damaged."""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.envs.alfred.test_pddl import PROBLEM
from threespo_bench.contracts.environment import Task
from threespo_bench.errors import BenchError, DataError, UsageError
from threespo_envs.alfworld.environment import AlfworldConfig, AlfworldEnvironment
from threespo_envs.alfworld.games import SPLITS, TASK_TYPES, GameCache, PackedGames, open_games

COUNTS = {"train": 3553, "valid_seen": 140, "valid_unseen": 134, "valid_train": 200}
LINE: dict[str, Any] = {
    "id": "pick_and_place_simple-Apple-None-Table-1/trial_a",
    "task": "put some apple on table.",
    "pddl_problem": PROBLEM,
    "walkthrough": [],
}
RAW: dict[str, Any] = {
    "pddl_domain": "",
    "grammar": '{"rhs": "Your task is to: put some apple on table."}',
    "pddl_problem": PROBLEM,
    "walkthrough": [],
    "solvable": True,
}


def environment(path: Path | str | None, **options: Any) -> AlfworldEnvironment:
    return AlfworldEnvironment(AlfworldConfig(games=None if path is None else str(path), **options))


def pack(folder: Path, *lines: object, split: str = "valid_seen") -> Path:
    """A packed folder with these games."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    (folder / f"{split}.jsonl.xz").write_bytes(lzma.compress(text.encode()))
    return folder


def write_raw(file: Path, **changes: object) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**RAW, **changes}))
    return file


@pytest.fixture
def raw_tree(tmp_path: Path, shared_data: Callable[..., Path]) -> Path:
    """An ALFWORLD_DATA tree, as alfworld-download makes it, of the sample games."""
    sample = shared_data("alfworld_sample")
    (tmp_path / "json_2.1.1").mkdir()
    for split in ("valid_seen", "valid_unseen"):
        (tmp_path / "json_2.1.1" / split).symlink_to(sample / split)
    return tmp_path


# ---- the real games


def test_the_benchmark_has_its_games(shared_data: Callable[..., Path]) -> None:
    alfworld = environment(shared_data("alfworld"))
    for split, count in COUNTS.items():
        tasks = alfworld.tasks(split)
        keys = [task.key for task in tasks]
        assert len(set(keys)) == len(keys) == count
        assert keys == sorted(keys)
        assert {task.kind for task in tasks} == set(TASK_TYPES)
        assert {task.split for task in tasks} == {split}


@pytest.mark.parametrize(("alias", "split"), [("eval_in_distribution", "valid_seen"), ("eval_out_of_distribution", "valid_unseen")])
def test_the_benchmarks_own_names_of_the_splits(alias: str, split: str, shared_data: Callable[..., Path]) -> None:
    alfworld = environment(shared_data("alfworld"))
    assert alfworld.tasks(alias) == alfworld.tasks(split)


def test_the_train_split_is_not_read_for_another_one(shared_data: Callable[..., Path]) -> None:
    games = PackedGames(shared_data("alfworld"))
    games.records("valid_unseen")
    assert list(games._records) == ["valid_unseen"]


def test_raw_files_are_the_same_games_as_the_packed_ones(raw_tree: Path, packed_games: PackedGames) -> None:
    cache = GameCache()
    raw = open_games(str(raw_tree))
    assert raw.splits() == ("valid_seen", "valid_unseen")
    for split in raw.splits():
        packed = {record.game_id: record for record in packed_games.records(split)}
        assert len(raw.records(split)) == 6
        for record in raw.records(split):
            assert record.kind == packed[record.game_id].kind
            game = cache.load("raw " + record.game_id, record.game_id, record.payload)
            assert game == cache.load("packed " + record.game_id, record.game_id, packed[record.game_id].payload)


def test_a_data_tree_is_found_by_the_environment_variable(raw_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(raw_tree))
    by_variable = environment(None).tasks("valid_seen")
    assert by_variable == environment(raw_tree / "json_2.1.1").tasks("valid_seen")
    with pytest.raises(DataError, match=r"there is no split train, only valid_seen, valid_unseen"):
        environment(None).tasks("train")


def test_one_raw_file_plays_under_any_split(raw_tree: Path) -> None:
    file = sorted(raw_tree.glob("json_2.1.1/valid_seen/*/*/game.tw-pddl"))[0]
    alfworld = environment(file)
    for split in SPLITS:
        (task,) = alfworld.tasks(split)
        assert task.key == f"{split}/{file.parent.parent.name}/{file.parent.name}"
        alfworld.reset(task, seed=0)
        for command in alfworld.world.game.walkthrough:
            step = alfworld.step(command)
        assert step.success


def test_a_split_folder_is_that_split_only(raw_tree: Path, shared_data: Callable[..., Path]) -> None:
    folder = shared_data("alfworld_sample", "valid_seen")
    assert environment(folder).tasks("valid_seen") == environment(raw_tree).tasks("valid_seen")
    with pytest.raises(DataError, match="there is no split train"):
        environment(folder).tasks("train")


# ---- small made-up ones


def test_loose_files_have_their_paths_as_ids(tmp_path: Path) -> None:
    write_raw(tmp_path / "a" / "one.tw-pddl")
    write_raw(tmp_path / "two.tw-pddl")
    write_raw(tmp_path / "b" / "game.tw-pddl")
    tasks = environment(tmp_path).tasks("train")
    assert [task.key for task in tasks] == ["train/a/one", "train/b", "train/two"]
    assert {task.kind for task in tasks} == {"pick_and_place_simple"}, "read from the goal where the id does not tell"


def test_games_that_the_benchmark_leaves_out_are_left_out(tmp_path: Path) -> None:
    split = tmp_path / "valid_seen"
    write_raw(split / "pick_and_place_simple-Apple-None-Table-1" / "t" / "game.tw-pddl")
    write_raw(split / "pick_and_place_simple-AppleSliced-None-Table-1" / "t" / "game.tw-pddl")
    write_raw(split / "pick_and_place_with_movable_recep-Apple-Bowl-Table-1" / "t" / "game.tw-pddl")
    write_raw(split / "pick_and_place_simple-Apple-None-Table-2" / "t" / "game.tw-pddl", solvable=False)
    assert [task.key for task in environment(tmp_path).tasks("valid_seen")] == ["valid_seen/pick_and_place_simple-Apple-None-Table-1/t"]


def test_max_games_takes_the_first_of_each_split(tmp_path: Path) -> None:
    folder = pack(tmp_path, *({**LINE, "id": f"pick_and_place_simple-Apple-None-Table-1/{name}"} for name in "cab"))
    assert [task.key[-1] for task in environment(folder).tasks("valid_seen")] == ["a", "b", "c"]
    assert [task.key[-1] for task in environment(folder, max_games=2).tasks("valid_seen")] == ["a", "b"]
    with pytest.raises(UsageError, match="max_games must be at least 1"):
        environment(folder, max_games=0)


def test_an_unknown_split_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no split 'valid_sen'") as caught:
        environment(pack(tmp_path, LINE)).tasks("valid_sen")
    assert "did you mean valid_seen" in caught.value.fix


def test_digests_follow_contents_and_not_paths(tmp_path: Path) -> None:
    first = environment(pack(tmp_path / "a", LINE)).digest()
    assert environment(pack(tmp_path / "b", LINE)).digest() == first
    assert environment(pack(tmp_path / "c", {**LINE, "task": "put an apple on table."})).digest() != first
    assert environment(pack(tmp_path / "d", LINE, split="train")).digest() != first
    raw = environment(write_raw(tmp_path / "e" / "game.tw-pddl")).digest()
    assert environment(write_raw(tmp_path / "f" / "e" / "game.tw-pddl")).digest() != raw, "its id is another one"
    assert environment(write_raw(tmp_path / "g" / "valid_seen" / "e" / "game.tw-pddl").parents[2]).digest() != raw
    (tmp_path / "h").mkdir()
    copy = write_raw(tmp_path / "h" / "e" / "game.tw-pddl").parent
    assert environment(copy).digest() == environment(write_raw(tmp_path / "i" / "e" / "game.tw-pddl").parent).digest()


def test_a_task_without_its_payload_is_looked_up(tmp_path: Path) -> None:
    alfworld = environment(pack(tmp_path, LINE))
    (task,) = alfworld.tasks("valid_seen")
    assert alfworld.load_game(Task(task.key, task.kind, task.split)) == alfworld.load_game(task)
    with pytest.raises(DataError, match="there is no game elsewhere in split valid_seen"):
        alfworld.load_game(Task("valid_seen/elsewhere", "", "valid_seen"))


def test_the_cache_is_bounded_and_keeps_what_was_used_last(tmp_path: Path) -> None:
    cache = GameCache(capacity=2)
    (record,) = open_games(str(pack(tmp_path, LINE))).records("valid_seen")
    games = {key: cache.load(key, record.game_id, record.payload) for key in "ab"}
    assert cache.load("a", record.game_id, record.payload) is games["a"]
    cache.load("c", record.game_id, record.payload)
    assert cache.load("a", record.game_id, record.payload) is games["a"]
    assert cache.load("b", record.game_id, record.payload) is not games["b"]


# ---- what goes wrong


def refusal(path: Path | str | None) -> BenchError | None:
    """Why the games at ``path`` cannot all be played; None if they can."""
    try:
        alfworld = environment(path)
        for task in alfworld.tasks("valid_seen"):
            alfworld.reset(task, seed=0)
    except BenchError as error:
        return error
    return None


def failure(path: Path | str | None) -> str:
    """What the user is told about the games at ``path``: one line, with advice."""
    error = refusal(path)
    assert isinstance(error, DataError)
    assert "\n" not in str(error)
    assert error.fix
    return str(error)


def test_missing_games_say_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(DataError, match=r"neither env.games nor \$ALFWORLD_DATA is set") as caught:
        environment(None).tasks("train")
    assert "alfworld-download" in caught.value.fix
    assert "env.games=" in caught.value.fix
    assert "does not exist" in failure(tmp_path / "nowhere")
    assert "holds no ALFWorld games" in failure(tmp_path)


def test_a_truncated_archive(tmp_path: Path) -> None:
    file = pack(tmp_path, *({**LINE, "id": f"x/{number}"} for number in range(200))) / "valid_seen.jsonl.xz"
    file.write_bytes(file.read_bytes()[:-200])
    assert "valid_seen.jsonl.xz cannot be read after line" in failure(tmp_path)


def test_an_archive_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "valid_seen.jsonl.xz").write_bytes(b"not found")
    assert "cannot be read after line 0" in failure(tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not valid JSON"),
        ("[1]", "line 2: not a game"),
        ({"task": "x"}, "line 2: the game has no id"),
        ({**LINE, "id": 7}, "line 2: the game has no id"),
        (LINE, "have the id pick_and_place_simple-Apple-None-Table-1/trial_a"),
        ('{"id": "b/c", "task', "game b/c: not valid JSON"),
        ({"id": "b/c", "task": "x"}, "game b/c: the pddl_problem is missing or no text"),
        ({"id": "b/c", "pddl_problem": PROBLEM}, "game b/c: the task sentence is missing or no text"),
        ({**LINE, "id": "b/c", "walkthrough": "look"}, "game b/c: the walkthrough is no list of commands"),
        ({**LINE, "id": "b/c", "pddl_problem": PROBLEM[:-40]}, "game b/c: its PDDL problem has brackets that do not match"),
        ({**LINE, "id": "b/c", "pddl_problem": ""}, "game b/c: its PDDL problem is not a problem of the domain"),
    ],
)
def test_damaged_lines(line: object, message: str, tmp_path: Path) -> None:
    assert message in failure(pack(tmp_path, LINE, line))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not valid JSON"),
        ("[]", "not a game"),
        ("[" * 100_000, "not valid JSON"),
        (json.dumps({**RAW, "grammar": None}), "its grammar states no task"),
        (json.dumps({**RAW, "grammar": "nothing"}), "its grammar states no task"),
        (json.dumps({**RAW, "pddl_problem": None}), "the pddl_problem is missing or no text"),
        (json.dumps({**RAW, "pddl_problem": "(define"}), "is not a problem of the domain"),
    ],
)
def test_damaged_raw_files(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "game.tw-pddl"
    file.write_text(content)
    assert message in failure(file)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file(tmp_path: Path) -> None:
    write_raw(tmp_path / "game.tw-pddl").chmod(0)
    assert "cannot be read: Permission denied" in failure(tmp_path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_raw_bytes_never_raise_anything_else(data: st.DataObject, tmp_path: Path) -> None:
    content = bytearray(json.dumps(RAW).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 5))] = data.draw(st.binary(max_size=3))
    file = tmp_path / "game.tw-pddl"
    file.write_bytes(bytes(content))
    error = refusal(file)
    assert error is None or "\n" not in str(error)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_archives_never_raise_anything_else(data: st.DataObject, tmp_path: Path) -> None:
    content = bytearray(lzma.compress((json.dumps(LINE) + "\n").encode()))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at : at + data.draw(st.integers(0, 5))] = data.draw(st.binary(max_size=3))
    (tmp_path / "valid_seen.jsonl.xz").write_bytes(bytes(content))
    error = refusal(tmp_path)
    assert error is None or "\n" not in str(error)
