"""The real games with the same commands: a short run on three of them, from their original files and from the packed ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SMALL = [
    "train_split=valid_seen", "evaluation.split=valid_unseen", "env.max_games=3", "evaluation.episodes=3", "budget.iterations=1",
    "rollout.max_turns=4", "algorithm.tasks_per_iteration=3", "tracker=none",
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The architecture of household-tiny, smaller and with random weights."""
    from threespo_envs.alfred.vocabulary import vocabulary
    from threespo_plugins.models.word_level import make_model, make_tokenizer

    folder = tmp_path_factory.mktemp("model")
    tokenizer = make_tokenizer(vocabulary())
    make_model(tokenizer, hidden=64, layers=1, heads=2, intermediate=64, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("algorithm", "games"), [pytest.param("3spo", "alfworld_sample", marks=pytest.mark.smoke), ("gigpo", "alfworld_sample"), ("grpo", "alfworld")]
)
def test_three_real_games(algorithm: str, games: str, model: Path, tmp_path: Path) -> None:
    folder = DATA / games
    if not folder.exists():
        pytest.skip(f"needs the shared data: {folder} is not there")
    settings = [f"env.games={folder}", f"model.path={model}", *SMALL, *(["algorithm.env_steps_per_tree=24"] if algorithm == "3spo" else [])]
    command = [sys.executable, "-m", "threespo_bench", "run", "--algo", algorithm, "--env", "alfworld", "--out", str(tmp_path), *settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert "success on held-out tasks" in done.stdout
    run = tmp_path / "default" / f"{algorithm}-alfworld-seed0"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["kind"] for row in rows] == ["eval", "train", "eval"]
    assert rows[0]["episodes_evaluated"] == 3
    assert rows[1]["train/turns"] > 0


def test_no_games_is_one_clear_line(model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "threespo_bench", "run", "--algo", "3spo", "--env", "alfworld", f"model.path={model}", "--out", str(tmp_path)]
    for games, message in ((f"env.games={tmp_path / 'gone'}", "does not exist"), (f"env.games={tmp_path}", "holds no ALFWorld games")):
        done = subprocess.run([*command, games], capture_output=True, text=True, timeout=200)
        assert done.returncode == 4
        assert message in done.stderr
        assert "alfworld-download" in done.stderr
