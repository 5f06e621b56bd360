"""WebShop with the same commands: a short run of the model that ships, its evaluation with scores, and a look at an episode."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SMALL = ["evaluation.episodes=24", "budget.iterations=2", "algorithm.tasks_per_iteration=4", "tracker=none"]
SEARCH = ["algorithm.env_steps_per_tree=24"]


def bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "threespo_bench", *map(str, arguments)], capture_output=True, text=True, timeout=500)


@pytest.mark.smoke
def test_a_run_is_evaluated_with_scores_and_played(tmp_path: Path) -> None:
    done = bench("run", "--algo", "3spo", "--env", "webshop", "--out", tmp_path, *SMALL, *SEARCH)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "default" / "3spo-webshop-seed0"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["kind"] for row in rows] == ["eval", "train", "train", "eval"]
    assert 0 < rows[0]["success"] < rows[0]["score"] < 1  # most wrong purchases are partly right
    assert {name.partition("/")[2] for name in rows[0] if name.startswith("success/")} == {"beauty", "electronics", "fashion", "garden", "grocery"}

    done = bench("eval", run, "--seeds", "5,6", "--episodes", "12", "--format", "csv")
    assert done.returncode == 0, done.stderr
    found = {row["name"]: row for row in csv.DictReader(io.StringIO(done.stdout))}
    assert float(found["success"]["mean"]) <= float(found["score"]["mean"]) <= 1

    done = bench("play", run, "--task", "webshop/test/00003")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("task      webshop/test/00003")
    assert any(line.startswith("does      search[") for line in lines)
    assert ", score 0." in lines[-1] or ", score 1." in lines[-1]


def test_the_published_products_with_the_full_prompt(tmp_path: Path) -> None:
    """The small model cannot read them; that everything works with them is another matter."""
    file = DATA / "webshop_1k" / "products_1000.jsonl.xz"
    if not file.exists():
        pytest.skip(f"needs the shared data: {file} is not there")
    settings = [f"env.products={file}", "env.template=verl_agent", "rollout.max_new_tokens=8", "rollout.max_turns=2", "evaluation.episodes=2"]
    done = bench("run", "--algo", "grpo", "--env", "webshop", "--out", tmp_path, *SMALL, "algorithm.group_size=2", *settings)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "default" / "grpo-webshop-seed0" / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["episodes_evaluated"] == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        (b"", "holds no products"),
        (b"\xfd7zXZ\x00 broken", "products.jsonl.xz is damaged"),
        (b'{"asin": 3}\n', "line 1: asin is no text"),
    ],
)
def test_unreadable_products_are_one_clear_line(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / ("products.jsonl.xz" if content and content.startswith(b"\xfd") else "products.jsonl")
    if content is not None:
        file.write_bytes(content)
    done = bench("run", "--algo", "grpo", "--env", "webshop", "--out", tmp_path / "runs", f"env.products={file}")
    assert done.returncode == 4, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()
