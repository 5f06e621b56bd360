"""Where verl is in an environment of its own: its tests run there, and what was trained there is played here.

THREESPO_BENCH_VERL_PYTHON names the interpreter.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from threespo_plugins.verl_engine.merging import PYTHON_VARIABLE

ROOT = Path(__file__).resolve().parents[3]

pytestmark = [
    pytest.mark.without_verl,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(find_spec("verl") is not None, reason="verl is installed here"),
    pytest.mark.skipif(not os.environ.get(PYTHON_VARIABLE), reason=f"{PYTHON_VARIABLE} is not set: scripts/verl_env.sh DIR makes such an environment"),
]


def test_the_tests_without_ray_pass_there():
    command = [os.environ[PYTHON_VARIABLE], "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", "tests/plugins/verl"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1700, check=False)
    assert answer.returncode == 0, answer.stdout[-4000:]
    passed = re.search(r"(\d+) passed", answer.stdout)
    assert passed is not None and int(passed[1]) > 100, f"most tests were skipped: {answer.stdout[-300:]}"


def bench(python, *arguments):
    """Run the program to its end; its standard output."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    answer = subprocess.run([python, "-m", "threespo_bench", *arguments], capture_output=True, text=True, timeout=900, env=environment, cwd="/", check=False)
    assert answer.returncode == 0, answer.stderr[-3000:]
    return answer.stdout


def test_a_run_with_adapters_and_servers_of_its_own(tmp_path):
    """Trained, resumed and evaluated there; evaluated, played and merged here."""
    there, here = os.environ[PYTHON_VARIABLE], sys.executable
    small = ["env.receptacles_min=6", "env.receptacles_max=6", "rollout.max_turns=20", "algorithm.tasks_per_iteration=2", "algorithm.env_steps_per_tree=60"]
    engine = ["engine=verl", "engine.device=cpu", "engine.rollout_ranks=1", "engine.lora_rank=4", "algorithm.optimization.learning_rate=0.002"]
    limits = ["budget.env_steps=null", "budget.iterations=1", "evaluation.episodes=2", "checkpoint.every_iterations=1", "tracker=none"]
    bench(there, "run", "--algo", "3spo", "--out", str(tmp_path), "--no-progress", *engine, *small, *limits)
    run = str(tmp_path / "default" / "3spo-household-seed0")
    bench(there, "run", "--resume", run, "--no-progress", "budget.iterations=2")
    rows = [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row["kind"] == "train"]
    assert [row["iteration"] for row in trained] == [1, 2]
    assert all(row["update/logprob_gap_max"] < 1e-4 and row["update/optimizer_steps"] > 0 for row in trained)
    played = ["eval", run, "--seeds", "0", "--episodes", "4", "--format", "json"]
    mine, theirs = (json.loads(bench(python, *played)) for python in (here, there))
    assert [(row["name"], row["episodes"]) for row in mine["results"]] == [(row["name"], row["episodes"]) for row in theirs["results"]]
    assert {**mine, "results": None} == {**theirs, "results": None}
    assert "S(s) = " in bench(here, "play", run, "--task", "0")
    bench(here, "merge", run, str(tmp_path / "merged"))
    assert (tmp_path / "merged" / "config.json").is_file()
