"""Whole commands on a model that was made a moment before: training, resuming, interrupting, comparing, reporting."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SMALL = ["evaluation.episodes=2", "rollout.max_turns=4", "algorithm.tasks_per_iteration=2", "tracker=none"]
PROGRAM = [sys.executable, "-m", "threespo_bench"]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program to its end."""
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, timeout=300)


def rows(run: Path) -> list[dict[str, Any]]:
    """What a run has measured so far; the last line may be half written."""
    metrics = run / "metrics.jsonl"
    return [json.loads(line) for line in metrics.read_text().split("\n")[:-1]] if metrics.exists() else []


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that knows nothing, made by the program itself."""
    folder = tmp_path_factory.mktemp("made") / "model"
    small = ["episodes=2", "hesitant_episodes=2", "hidden=32", "heads=1", "layers=1", "intermediate=32"]
    done = bench("warm-start", "--out", str(folder), "--no-progress", *small)
    assert done.returncode == 0, done.stderr
    assert f"model.path={folder}" in done.stdout
    return f"model.path={folder}"


def test_warm_start_refuses_unknown_options(tmp_path: Path) -> None:
    done = bench("warm-start", "--out", str(tmp_path / "x"), "episoods=2")
    assert done.returncode == 2
    assert "did you mean episodes?" in done.stderr


@pytest.mark.smoke
def test_run_resume_and_nothing_to_do(model: str, tmp_path: Path) -> None:
    done = bench("run", "--algo", "grpo", "--out", str(tmp_path), model, *SMALL, "budget.iterations=1", "algorithm.group_size=2")
    assert done.returncode == 0, done.stderr
    assert "finished: " in done.stdout
    assert "success on held-out tasks" in done.stdout
    run = tmp_path / "default" / "grpo-household-seed0"
    assert str(run) in done.stdout
    assert str(run / "curve.png") in done.stdout
    assert (run / "curve.png").exists()
    assert "evaluation at 0 env steps" in done.stderr

    again = bench("run", "--resume", str(run), "--no-progress")
    assert (again.returncode, again.stderr) == (0, "")
    assert "nothing to do" in again.stdout

    more = bench("run", "--resume", str(run), "budget.iterations=3")
    assert more.returncode == 0, more.stderr
    assert "resumed: grpo" in more.stderr
    assert rows(run)[-1]["iteration"] == 3


def test_an_interrupted_run_says_how_to_go_on(model: str, tmp_path: Path) -> None:
    command = [*PROGRAM, "run", "--algo", "grpo", "--out", str(tmp_path), model, *SMALL, "budget.iterations=100000", "algorithm.group_size=2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    run = tmp_path / "default" / "grpo-household-seed0"
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and not any(row["kind"] == "train" for row in rows(run)):
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "interrupted: " in out
    assert f"threespo-bench run --resume {run}" in out
    assert "Traceback" not in err


@pytest.mark.smoke
def test_compare_and_report(model: str, tmp_path: Path) -> None:
    settings = ["--budget", "env_steps=20", "--out", str(tmp_path), model, *SMALL, "--set", "grpo:algorithm.group_size=2"]
    done = bench("compare", "--algo", "3spo", "--algo", "grpo", "--seeds", "0..1", *settings)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "3spo-grpo-household"
    for name in ("3spo-household-seed0", "grpo-household-seed0", "3spo-household-seed1", "grpo-household-seed1"):
        assert name in done.stdout
        assert json.loads((folder / name / "status.json").read_text())["state"] == "finished"
    assert str(folder / "report" / "report.html") in done.stdout
    again = bench("compare", "--algo", "3spo", "--algo", "grpo", "--seeds", "0..1", *settings)
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("finished before") == 4

    report = bench("report", str(folder), "--out", str(tmp_path / "report"), "--baseline", "grpo")
    assert report.returncode == 0, report.stderr
    assert (tmp_path / "report" / "report.html").exists()
    assert list((tmp_path / "report" / "tables").glob("*.csv"))


def test_a_failing_run_does_not_stop_the_others(model: str, tmp_path: Path) -> None:
    settings = ["--budget", "env_steps=10", "--out", str(tmp_path), model, *SMALL, "--set", "grpo:model.path=gone"]
    done = bench("compare", "--algo", "grpo", "--algo", "gigpo", "--seeds", "0", *settings, "--set", "gigpo:algorithm.group_size=2")
    assert done.returncode == 7, done.stdout + done.stderr
    assert "1 of 2 runs failed, first grpo-household-seed0" in done.stderr
    assert "gigpo-household-seed0  finished" in done.stdout


def test_a_plan_is_checked_before_anything_starts(model: str, tmp_path: Path) -> None:
    done = bench("compare", "--algo", "grpo", "--algo", "gigpo", "--out", str(tmp_path / "runs"), model, "--set", "gigpo:algorithm.group_size=1")
    assert done.returncode == 2
    assert "algorithm.group_size=1 is out of range" in done.stderr
    assert not (tmp_path / "runs").exists()
    planned = bench("compare", "--algo", "3spo", "--algo", "3spo@paper", "--seeds", "0", "--out", str(tmp_path / "runs"), model, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert "3spo-paper-household-seed0" in planned.stdout
    assert not (tmp_path / "runs").exists()
