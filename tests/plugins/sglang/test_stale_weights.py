"""A server that forgets an update and reports it is found before a result of its old weights is written down."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.plugins.sglang.contract_server import ContractServer
from threespo_bench.cli.app import run_cli
from threespo_bench.errors import EngineError
from threespo_plugins.models.household_tiny import path

Play = Callable[..., ContractServer]
ONE_UPDATE = ("budget.iterations=1", "algorithm.tasks_per_iteration=4", "rollout.max_turns=12", "evaluation.episodes=3")


def run(server: ContractServer, out: Path) -> tuple[int, list[dict[str, float]]]:
    """Exit code and rows of a run of one update, after which nothing is left but an evaluation."""
    arguments = ["run", "--algo", "reinforce_pp", "--out", str(out), "--no-progress", "tracker=none", *ONE_UPDATE]
    code = run_cli([*arguments, "rollout=sglang", f"rollout.url={server.url}", f"rollout.weights_folder={out}"])
    (file,) = out.glob("default/*/metrics.jsonl")
    return code, [json.loads(line) for line in file.read_text().splitlines()]


def test_an_evaluation_after_the_last_update(play: Play, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = play(folder=path(), context=4104, faults={"forgets"})
    code, rows = run(server, tmp_path)
    printed = capsys.readouterr().err
    assert code == EngineError.exit_code, printed
    assert "stale weights: the sampler names the newest policy version" in printed and "Traceback" not in printed
    assert [row["kind"] for row in rows] == ["eval", "train"], "the evaluation of old weights was written down"


def test_an_evaluation_of_a_checkpoint(play: Play, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = play(folder=path(), context=4104)
    code, rows = run(server, tmp_path)
    assert code == 0, capsys.readouterr().err
    assert [row["kind"] for row in rows] == ["eval", "train", "eval"]
    (folder,) = tmp_path.glob("default/*/")
    of_checkpoint = ["eval", str(folder), "--episodes", "2", "--seeds", "1"]
    assert run_cli(of_checkpoint) == 0
    server.engine.model.load(path())
    server.setup.faults.add("forgets")
    assert run_cli(of_checkpoint) == EngineError.exit_code
    assert "stale weights" in capsys.readouterr().err
