"""The benchmark of training: what it counts, and one real arm."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from threespo_bench.testing.batches import sample_turns


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    return importlib.import_module("training_cost")


def test_generation_ends_with_the_last_step_of_an_iteration(benchmark, monkeypatch):
    times = iter([1.0, 2.0, 5.0, 9.0, 20.0, 22.0, 23.0])
    monkeypatch.setattr(benchmark.time, "process_time", lambda: next(times))
    clock = benchmark.Clock()
    clock.start(None, Path())
    clock.tick()
    clock.tick()
    clock.iteration({"train/turns": 2, "kind": "train"})
    clock.evaluation({})
    clock.tick()
    clock.iteration({"train/turns": 1})
    assert clock.rows == [
        {"train/turns": 2, "generation_s": 4.0, "learning_s": 4.0, "iteration_s": 8.0},
        {"train/turns": 1, "generation_s": 2.0, "learning_s": 1.0, "iteration_s": 3.0},
    ]


def test_the_first_iteration_is_not_counted(benchmark):
    runs = [{"rows": [{"s": 100.0}, {"s": 1.0}, {"s": 3.0}]}, {"rows": [{"s": 50.0}]}]
    assert benchmark.per_iteration(runs, "s") == 3.0
    assert benchmark.change(75.2, 100) == "-24.8%"


def test_places_of_recorded_batches(benchmark, tmp_path):
    (tmp_path / "turns").mkdir()
    turns = sample_turns()
    turns.save(tmp_path / "turns" / "0.parquet")
    lengths = [turns.traj_id.tolist().count(name) for name in set(turns.traj_id)]
    assert benchmark._slots(tmp_path) == [{"trajectories": len(lengths), "turns": sum(lengths), "longest": max(lengths)}]


@pytest.mark.slow
def test_an_arm(benchmark):
    found = benchmark.arm("grpo", ["budget.iterations=1", "algorithm.tasks_per_iteration=1", "algorithm.group_size=2", "rollout.max_turns=2"])
    assert [batch["trajectories"] for batch in found["slots"]] == [2]
    assert found["rows"][0]["train/turns"] == found["slots"][0]["turns"]
    assert found["peak_mib"] > found["before_mib"] > 0
