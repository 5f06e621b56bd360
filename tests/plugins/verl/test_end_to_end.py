"""Whole runs with ``engine=verl`` on the CPU, as a user starts them: training, evaluation, checkpoints, MLflow, resume, report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.smoke, pytest.mark.timeout(1500)]

SMALL = [
    "engine=verl", "engine.device=cpu", "evaluation.episodes=2", "evaluation.every_env_steps=100", "rollout.max_turns=4", "algorithm.tasks_per_iteration=2",
    "checkpoint.every_iterations=1", "save_turns=true", "env.receptacles_max=10",
]  # fmt: skip
TREE = ["algorithm.env_steps_per_tree=12"]
GROUP = ["algorithm.group_size=3"]


def bench(*arguments):
    """Run the program to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "threespo_bench", *arguments],
        capture_output=True,
        text=True,
        timeout=900,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def rows(run: Path):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("algorithm", "options"), [("3spo", TREE), ("grpo", GROUP)])
def test_two_iterations_in_two_processes(tmp_path, algorithm, options):
    bench("run", "--algo", algorithm, "--out", str(tmp_path), "--no-progress", *SMALL, *options, "budget.env_steps=null", "budget.iterations=1")
    run = tmp_path / "default" / f"{algorithm}-household-seed0"
    first = rows(run)
    bench("run", "--resume", str(run), "--no-progress", "budget.iterations=2")
    measured = rows(run)
    assert [row for row in measured if row["iteration"] <= 1][: len(first) - 1] == first[:-1], "the rows of the first process were changed"
    trained = [row for row in measured if row["kind"] == "train"]
    assert [row["iteration"] for row in trained] == [1, 2]
    assert sum(row["update/optimizer_steps"] for row in trained) >= 2
    for row in trained:
        assert row["update/logprob_gap_max"] < 1e-4
    assert sum(row["kind"] == "eval" for row in measured) >= 2
    newest = max((run / "checkpoints").iterdir())
    assert list(newest.rglob("model_world_size_1_rank_0.pt"))
    check_tracking(tmp_path, run)
    bench("report", str(tmp_path / "default"))
    assert list((tmp_path / "default").rglob("report*.html")) or list((tmp_path / "default").rglob("*.html"))


def check_tracking(out: Path, run: Path):
    """The run is in MLflow, finished, with its metrics."""
    from mlflow.tracking import MlflowClient

    store = next(out.rglob("mlflow.db"))
    client = MlflowClient(f"sqlite:///{store}")
    status = json.loads((run / "status.json").read_text())
    found = client.get_run(status["tracker_run"])
    assert found.info.status == "FINISHED"
    assert any(np.isfinite(value) for value in found.data.metrics.values())
