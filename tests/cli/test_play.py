"""``play``: the episode that was evaluated, step by step, and one's own commands."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def run(made_store: Path) -> Path:
    return made_store / "toys" / "larger-corridor-seed1"


def test_it_plays_the_evaluated_episodes(call, run: Path) -> None:
    code, out, err = call("play", str(run), "--seed", "1", "--episodes", "4")
    assert code == 0, err
    ends = [line for line in out.splitlines() if line.startswith("end ")]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    evaluated = [row for row in rows if row["kind"] == "eval"][-1]
    assert sum(" won after" in line for line in ends) / 4 == evaluated["success"]
    assert sum(int(line.partition("after ")[2].split()[0]) for line in ends) / 4 == evaluated["turns"]


def test_what_is_shown(call, run: Path) -> None:
    code, out, _ = call("play", str(run), "--task", "valid_unseen-2")
    assert code == 0
    lines = [line.split(maxsplit=1) for line in out.splitlines()]
    assert lines[0] == ["task", "valid_unseen-2 (kind0)"]
    assert lines[1] == ["[0]", "sees  place 0 goal 4"]
    assert lines[2] == ["can", "left | right | stay"] or lines[2][1].endswith("left | right | stay")
    labels = [line[0] for line in lines[:6]]
    assert labels == ["task", "[0]", "can", "says", "does", "reward"]
    assert lines[-1][0] == "end"
    assert "\x1b[" not in out


def test_commands_from_standard_input(call, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("left\nright\nfly\nright\n"))
    code, out, _ = call("play", str(run), "--task", "0", "--interactive")
    assert code == 0
    done = [line.split(maxsplit=1)[1] for line in out.splitlines() if line.startswith("does")]
    assert done == ["left", "right", "fly  (not admissible)".replace("  ", " "), "right"]
    assert "says" not in out and "Enter" not in out
    assert "won after 4 turns, return 10" in out


def test_leaving_and_letting_it_play(call, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("\nq\n"))
    code, out, err = call("play", str(run), "--task", "5", "--interactive")
    assert code == 0 and "left" in err
    assert sum(line.startswith("does") for line in out.splitlines()) == 1 and "end " not in out
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))  # the input ends at once: the policy plays on
    alone = call("play", str(run), "--task", "5")[1]
    assert call("play", str(run), "--task", "5", "--interactive")[1] == alone


@pytest.mark.parametrize(("task", "message"), [("99", "only 6 tasks"), ("valid", "6 tasks of the split"), ("nothing", "0 tasks of the split")])
def test_no_such_task(call, run: Path, task: str, message: str) -> None:
    code, _, err = call("play", str(run), "--task", task)
    assert code == 2 and message in err


def test_states_have_scores_where_the_policy_is_of_3spo() -> None:
    from threespo_algorithms.threespo import ThreeSPO, ThreeSPOConfig

    algorithm = ThreeSPO(ThreeSPOConfig(alpha=0.5, max_samples=8, count_terminal=True, success_discount=1.0))
    assert algorithm.state_report("task", "s", False) == "S(s) = 1.000, n(s) = 8, N_total = 0, N_success = 0, t = 1"
    for won in (True, False, True):
        algorithm._record("task", ("s", "end"), won)
    # SR = 2/3, t = 4: S = exp(-0.5 ln 4 * 2/3) = 4^(-1/3) = 0.630, n = ceil(8 * 0.630) = 6
    assert algorithm.state_report("task", "s", False) == "S(s) = 0.630, n(s) = 6, N_total = 3, N_success = 2, t = 4"


def test_the_tiny_model_in_a_pipe() -> None:
    command = [sys.executable, "-m", "threespo_bench", "play", "household-tiny", "--task", "1", "--temperature", "0", "rollout.max_turns=2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("task      household/valid_unseen/00001 (")
    assert "\x1b[" not in done.stdout
    assert "step limit reached after 2 turns" in done.stdout
