"""The benchmark of rollouts: what it compares, and how it divides the time of an iteration."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    return importlib.import_module("rollout_speed")


def test_candidates(benchmark, monkeypatch):
    monkeypatch.setattr(benchmark, "find_spec", lambda name: None)
    assert benchmark.candidates("env/bin/python") == {"hf": ["rollout=hf"], "server": ["rollout=vllm", "rollout.python=env/bin/python"]}
    with pytest.raises(SystemExit, match="--python"):
        benchmark.candidates(None)
    monkeypatch.setattr(benchmark, "find_spec", lambda name: object())
    assert list(benchmark.candidates(None)) == ["hf", "vllm"]
    assert list(benchmark.candidates("env/bin/python")) == ["hf", "vllm", "server"]


def test_prompts_that_begin_alike(benchmark):
    texts = [text.split() for text in benchmark.prompts(3, 20, 0, shared=12)]
    assert {len(words) for words in texts} == {20}
    assert len({tuple(words[:12]) for words in texts}) == 1 and len({tuple(words) for words in texts}) == 3


def test_an_iteration_is_divided_without_rest_or_overlap(benchmark, monkeypatch):
    """What the server does while it gets weights is publication, everything else of it generation."""
    own, server = [0.0], [0.0]

    def spend(seconds: float, of_server: float = 0.0):
        def work(*_):
            own[0] += seconds
            server[0] += of_server

        return work

    monkeypatch.setattr(benchmark.time, "process_time", lambda: own[0])
    monkeypatch.setattr(benchmark, "server_cpu", lambda engine: server[0])
    monkeypatch.setattr(benchmark.BatchScheduler, "_run", spend(3.0))
    engine = SimpleNamespace(learner=SimpleNamespace(update=spend(5.0), score=spend(1.0)), publish=spend(0.25, 0.5))
    clock = benchmark.Clock()
    clock.start(SimpleNamespace(engine=engine), Path())
    for _ in range(2):
        benchmark.BatchScheduler._run(None)
        spend(0.125, 2.0)()
        engine.learner.score()
        engine.learner.update()
        engine.publish()
        clock.iteration({"train/turns": 7})
    for row in clock.rows:
        assert (row["generation"], row["learning"], row["publication"], row["rest"]) == (5.0, 6.0, 0.75, 0.125)
        assert row["total"] == 11.875 and row["turns"] == 7


@pytest.mark.slow
def test_iterations_of_a_real_run(benchmark, monkeypatch, tmp_path):
    scheduler = benchmark.BatchScheduler._run
    monkeypatch.setattr(benchmark.BatchScheduler, "_run", scheduler)  # put back what the clock replaces
    monkeypatch.setattr(benchmark, "EPISODES", ["algorithm.tasks_per_iteration=1", "algorithm.group_size=2", "rollout.max_turns=3"])
    (row,) = benchmark.train(["rollout=hf"], str(benchmark.household_tiny()), 1, str(tmp_path))
    assert row["generation"] > 0 and row["learning"] > 0 and row["rest"] > 0 and row["turns"] > 0
    assert row["total"] == pytest.approx(sum(row[name] for name in ("generation", "learning", "publication", "rest")))
