"""A run that generates with the real vLLM learns like one that generates with transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

EPISODES = 96
BUDGET = ["budget.env_steps=4500", "evaluation.every_env_steps=4500", f"evaluation.episodes={EPISODES}"]
NOISE = 0.18
"""Three standard errors of the difference of two shares of 96 at 85%, and some for the difference of two courses of learning."""


def successes(out: Path, *options: str) -> list[float]:
    """Success at the start and at the end of a run of 3SPO."""
    command = [sys.executable, "-m", "threespo_bench", "run", "--algo", "3spo", "--seed", "0", "--out", str(out), "tracker=none", *BUDGET, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr
    (file,) = out.glob("default/*/metrics.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    gaps = [row["logprob_gap_max"] for row in rows if "logprob_gap_max" in row]
    assert max(gaps, default=0.0) <= 1e-4
    return [row["success"] for row in rows if row["kind"] == "eval"]


@pytest.mark.slow
@pytest.mark.smoke
@pytest.mark.timeout(3600)
def test_it_learns_as_with_transformers(vllm_python: str, tmp_path: Path) -> None:
    own = successes(tmp_path / "hf")
    served = successes(tmp_path / "vllm", "rollout=vllm", f"rollout.python={vllm_python}", "rollout.startup_seconds=1200")
    assert own[-1] - own[0] > 0.2
    assert served[-1] - served[0] > 0.2
    assert abs(served[-1] - own[-1]) < NOISE
