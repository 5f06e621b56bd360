"""What ``threespo-bench credit`` refuses, leaves out or warns of: wrong use, bad batches, columns that are missing, rows without credit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.credit_command import GOLDEN, Run, bench, strict, write

# ---- wrong use


USAGE = [
    (["--algo", "gropo"], "unknown algorithm 'gropo'", "grpo"),
    (["--algo", "grpo@refrence"], "grpo has no preset 'refrence'", "did you mean reference?"),
    (
        ["--algo", "grpo", "--set", "grup_size=4"],
        "unknown key 'algorithm.grup_size': the algorithm grpo has no such option",
        "did you mean algorithm.group_size?",
    ),
    (["--algo", "grpo", "--algo", "gigpo", "--set", "gama=1"], "none of grpo, gigpo has such an option", "did you mean algorithm.gamma?"),
    (["--algo", "grpo", "--set", "group_size=1"], "algorithm.group_size=1 is out of range", "group_size=8"),
    (["--algo", "grpo", "--set", "group_size=many"], "algorithm.group_size=many: must be of type int", "algorithm.group_size=8"),
    (["--algo", "grpo", "--set", "epsilon=nan"], "algorithm.epsilon=nan is not a number", ""),
    (["--algo", "grpo", "--set", "preset=nope"], "grpo: no preset 'nope'", "dr_grpo"),
    (["--algo", "grpo", "--set", "objective=1"], "algorithm.objective is a group of keys", "algorithm.objective."),
    (["--algo", "grpo", "--set", "group_size"], "has no '='", "key=value"),
    (["--algo", "grpo", "--set", "gigpo:gamma=1"], "'gigpo' is not one of the", "grpo"),
    ([], "no algorithm was named", "--algo"),
    (["--algo", "grpo", "--format", "parquet"], "Parquet is not for the screen", "--out"),
    (["--algo", "grpo", "--figure", "x.pdf"], "a figure is .png or .svg", "x.png"),
    (["--example"], "is there already", "another name"),
    (["--example", "--algo", "grpo"], "--algo cannot be combined with --example", ""),
]


@pytest.mark.parametrize(("arguments", "line", "fix"), USAGE, ids=[" ".join(row[0]) or "nothing" for row in USAGE])
def test_wrong_use(arguments: list[str], line: str, fix: str, b1: Path, credit: Run) -> None:
    before = b1.read_text()
    code, out, err = credit(b1, *arguments)
    assert (code, out) == (2, "")
    assert line in err and fix in err
    assert len(err.splitlines()) <= 2 and err.startswith("error: ")
    assert b1.read_text() == before


def test_no_file(credit: Run) -> None:
    code, _, err = credit("--algo", "grpo")
    assert code == 2 and "no file was named" in err


# ---- bad batches


def change(place: int, **values: Any) -> Callable[[list[dict[str, Any]]], None]:
    def apply(rows: list[dict[str, Any]]) -> None:
        rows[place].update(values)

    return apply


def without(name: str) -> Callable[[list[dict[str, Any]]], None]:
    def apply(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            del row[name]

    return apply


DATA = [
    (change(2, step_reward=float("nan")), "the step_reward of trajectory A, step 2 is nan"),
    (change(2, step_id=5), "trajectory A has a gap: step_id goes from 1 to 5"),
    (change(1, step_id=2), "trajectory A, step 2 comes twice"),
    (change(4, task_key="u"), "group g mixes tasks: trajectory B, step 1 has the task_key u, others have t"),
    (without("group_id"), "gigpo needs the column group_id"),
    (without("step_reward"), "gigpo needs the column step_reward (or episode_return)"),
    (without("anchor_obs"), "gigpo needs the column anchor_obs"),
    (lambda rows: rows.clear(), "has no turns"),
]


@pytest.mark.parametrize(("spoil", "line"), DATA, ids=[line for _, line in DATA])
def test_bad_batches(spoil: Callable[[list[dict[str, Any]]], None], line: str, b1: Path, credit: Run) -> None:
    rows = [json.loads(text) for text in b1.read_text().splitlines()]
    spoil(rows)
    code, out, err = credit(write(b1, rows), "--algo", "gigpo")
    assert (code, out) == (4, "")
    assert line in err
    assert err.startswith("error: ") and len(err.splitlines()) <= 2


def test_a_broken_line_in_a_real_process(b1: Path) -> None:
    b1.write_text(b1.read_text().replace('"traj_id": "B", ', '"traj_id": B, ', 1))
    done = bench(b1, "--algo", "grpo")
    assert done.returncode == 4
    assert "b1.jsonl, line 4 is not JSON" in done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= 2


def test_a_column_that_an_algorithm_reads_and_the_file_lacks(b1: Path, credit: Run) -> None:
    code, _, err = credit(b1, "--algo", "grpo", "--algo", "3spo")
    assert code == 4
    assert "3spo needs the column next_anchor_obs" in err and "save_turns=true" in err


def test_a_column_that_is_there_but_cannot_be_used_is_explained(b1: Path, credit: Run) -> None:
    known = ("known_total", "known_won", "next_known_total", "next_known_won", "clock", "first_on_path")
    rows = [json.loads(text) | {"next_anchor_obs": "s", **dict.fromkeys(known, 1)} for text in b1.read_text().splitlines()]
    rows[3]["clock"] = "late"
    code, _, err = credit(write(b1, rows), "--algo", "3spo")
    assert code == 4
    assert "3spo needs the column clock" in err and "the file has clock, but its values are of different types: numbers, texts" in err
    rows[3]["clock"] = 1
    code, out, err = credit(write(b1, rows), "--algo", "3spo", "--format", "json")
    assert code == 0, err
    assert len(strict(out)["rows"]) == 8


def test_a_column_of_a_type_that_no_algorithm_expects_is_a_line_too(b1: Path, credit: Run) -> None:
    known = ("known_total", "known_won", "next_known_total", "next_known_won", "clock", "first_on_path")
    rows = [json.loads(text) | {"next_anchor_obs": "s", **dict.fromkeys(known, "many")} for text in b1.read_text().splitlines()]
    code, _, err = credit(write(b1, rows), "--algo", "3spo")
    assert code == 4
    assert "3spo cannot credit this batch: " in err and "Traceback" not in err and len(err.splitlines()) <= 2


def test_groups_of_one_are_a_warning_that_says_what_they_get(b1: Path, credit: Run) -> None:
    rows = [json.loads(text) for text in b1.read_text().splitlines()]
    for row in rows:
        row["group_id"] = "h" if row["traj_id"] == "A" else "g"
    code, out, err = credit(write(b1, rows), "--algo", "grpo", "--algo", "grpo@reference", "--format", "json")
    assert code == 0
    lines = err.splitlines()
    assert lines[0] == "warning: grpo: 1 of 2 groups are groups of one, with nothing to compare; their 3 turns get 0"
    assert "grpo@reference: 1 of 2 groups" in lines[1]  # statistics over rows: three turns of one trajectory are compared with themselves
    assert [row["advantage"] for row in strict(out)[0]["rows"]][:3] == [0, 0, 0]


def test_rows_that_cannot_get_credit_are_counted(b1: Path, credit: Run) -> None:
    rows = [json.loads(text) | {"padding": False} for text in b1.read_text().splitlines()]
    rows[2]["response_mask"] = []
    rows += [{**rows[0], "padding": True}, {**rows[0], "padding": True, "step_reward": None}]
    code, out, err = credit(write(b1, rows), "--algo", "grpo@reference", "--format", "json")
    answer = strict(out)
    assert code == 0
    assert answer["dropped"] == {"padding": 2, "no_response_tokens": 1}
    assert "2 padding, 1 without a response token" in err
    assert [(row["traj_id"], row["step_id"]) for row in answer["rows"]] == [*zip("AABBCCC", [0, 1, 0, 1, 0, 1, 2], strict=True)]
    expected = [value for place, value in enumerate(GOLDEN["grpo@reference"]) if place != 2]  # its reward belongs to its trajectory all the same
    np.testing.assert_allclose([row["advantage"] for row in answer["rows"]], expected, atol=1e-6)
