"""Whole runs whose episodes live in other processes: the rows and the weights are those of a run in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.runner import toy_bench
from tests.runner.test_real import SETTINGS, model  # noqa: F401
from threespo_bench.config.compose import compose
from threespo_bench.host import PluginHost
from threespo_bench.outcome import Outcome
from threespo_bench.rollout import environment_worker
from threespo_bench.runner import resume, run

WORKERS = "rollout.environment_workers=2"
COUNTS = ("environment/worker_crashes", "environment/episodes_retried")


def rows(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows without what is counted of the workers, and these counts."""
    everything = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    counts = [{name: row.pop(name) for name in COUNTS} for row in everything if COUNTS[0] in row]
    return everything, counts


def weights(path: Path) -> dict[str, Any]:
    return json.loads((sorted((path / "checkpoints").iterdir())[-1] / "complete.json").read_text())["files"]


def toy(folder: Path, *overrides: str) -> Outcome:
    return run(toy_bench.configuration(folder, *overrides), toy_bench.host())


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Those that are started during the test; all must have ended when the run has."""
    started, popen = [], environment_worker.subprocess.Popen

    def noted(*arguments: Any, **options: Any) -> Any:
        process = popen(*arguments, **options)
        if environment_worker._COMMAND in arguments[0]:
            started.append(process)
        return process

    monkeypatch.setattr(environment_worker.subprocess, "Popen", noted)
    return started


def test_a_run_with_workers_measures_the_same_and_ends_them(tmp_path: Path, processes: list[Any]) -> None:
    alone, together = toy(tmp_path / "alone"), toy(tmp_path / "together", WORKERS)
    assert (alone.state, together.state) == ("finished", "finished")
    assert len(processes) == 2 and all(process.returncode is not None for process in processes)
    assert rows(together.run)[0] == rows(alone.run)[0]
    assert rows(alone.run)[1] == []
    counts = rows(together.run)[1]
    assert counts and all(count == dict.fromkeys(COUNTS, 0) for count in counts)
    assert weights(together.run) == weights(alone.run)


def test_a_run_that_fails_ends_its_workers_and_says_what_the_environment_said(tmp_path: Path, processes: list[Any]) -> None:
    faults = ("env.fault=raise", "env.fault_step=30")
    alone, together = toy(tmp_path / "alone", *faults), toy(tmp_path / "together", *faults, WORKERS)
    assert together.state == "failed" and together.error == alone.error and "the scorer divides by zero" in together.error
    assert processes and all(process.returncode is not None for process in processes)
    assert "in an environment worker:" in (together.run / "events.log").read_text()


@pytest.mark.parametrize("algorithm", ["grpo", "3spo"])
def test_the_embedded_engine_makes_the_same_batches_to_the_last_bit(tmp_path: Path, model: Path, algorithm: str) -> None:  # noqa: F811
    host, runs = PluginHost.discover(), []
    for name, more in (("alone", []), ("together", [WORKERS])):
        config = compose(algorithm, "household", [*SETTINGS, f"model.path={model}", *more], host, out=str(tmp_path / name), experiment="test")
        runs.append(run(config, host))
        assert runs[-1].state == "finished", runs[-1].error
    assert rows(runs[0].run)[0] == rows(runs[1].run)[0]
    assert weights(runs[0].run) == weights(runs[1].run)


def test_a_stop_and_a_resume_with_workers(tmp_path: Path) -> None:
    whole = toy(tmp_path / "whole", "budget.env_steps=null", "budget.iterations=3")
    first = toy(tmp_path / "parts", WORKERS, "budget.env_steps=null", "budget.iterations=1")
    second = resume(first.run, toy_bench.host(), budget={"iterations": 3})
    assert second.state == "finished", second.error
    assert rows(second.run)[0] == rows(whole.run)[0]
