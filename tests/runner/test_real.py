"""The built-in algorithms, environment and engine: equal runs are equal, and stopping changes nothing, down to the last bit of the weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.runner.conftest import Watcher, fingerprint
from threespo_bench.assembly import dry_run
from threespo_bench.config.compose import compose
from threespo_bench.experiment import execute, plan
from threespo_bench.host import PluginHost
from threespo_bench.manifest import MATCHED
from threespo_bench.runner import resume, run

pytest.importorskip("torch")
ALGORITHMS = ("grpo", "gigpo", "3spo")
SETTINGS = [
    "tracker=none", "budget.env_steps=null", "budget.iterations=3", "algorithm.tasks_per_iteration=2", "rollout.max_turns=5",
    "evaluation.episodes=2", "evaluation.every_env_steps=20", "checkpoint.every_iterations=1", "save_turns=true", "env.receptacles_max=10",
    "algorithm.optimization.learning_rate=1e-3",
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """The architecture of household-tiny, smaller and with random weights."""
    from threespo_envs.alfred.vocabulary import vocabulary
    from threespo_plugins.models.word_level import make_model, make_tokenizer

    folder = tmp_path_factory.mktemp("model")
    tokenizer = make_tokenizer(vocabulary())
    make_model(tokenizer, hidden=64, layers=1, heads=2, intermediate=64, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def host():
    return PluginHost.discover()


def configuration(out, host, algorithm, model, *overrides):
    return compose(algorithm, "household", [*SETTINGS, f"model.path={model}", *overrides], host, out=str(out), experiment="test")


def turns(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (path / "turns").iterdir()}


@pytest.fixture(scope="module", params=ALGORITHMS)
def whole(request, tmp_path_factory, host, model) -> tuple[str, Path]:
    """An algorithm and its uninterrupted run of three iterations."""
    outcome = run(configuration(tmp_path_factory.mktemp("whole"), host, request.param, model), host)
    assert outcome.state == "finished", outcome.error
    return request.param, outcome.run


def test_a_run_learns_and_is_drawn(whole):
    _, path = whole
    weights = [json.loads(file.read_text())["files"] for file in sorted((path / "checkpoints").glob("*/complete.json"))]
    assert weights[0] != weights[1]
    assert (path / "curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_three_iterations_are_k_and_a_resume_and_the_rest(tmp_path, host, model, whole, k):
    algorithm, path = whole
    if k in (0, 2):
        first = run(configuration(tmp_path, host, algorithm, model), host, progress=Watcher(stop_at=k))
    else:
        first = run(configuration(tmp_path, host, algorithm, model, f"budget.iterations={k}"), host)
    second = resume(first.run, host, budget={"iterations": 3})
    assert second.state == "finished", second.error
    assert second.nothing_to_do == (k == 3)
    assert fingerprint(second.run) == fingerprint(path)
    assert turns(second.run) == turns(path)


def test_a_comparison_at_once_is_the_comparison_one_by_one(tmp_path, host, model):
    options = [*SETTINGS, f"model.path={model}", "budget.iterations=1"]
    results = []
    for jobs in (1, 2):
        planned = plan(["grpo", "3spo"], ["household"], [0], host, overrides=options, out=str(tmp_path / str(jobs)), experiment="test")
        comparison = execute(planned, host, jobs=jobs)
        assert comparison.error() is None
        assert comparison.report.html.is_file()
        results.append([fingerprint(outcome.run) for outcome in comparison.outcomes.values()])
    assert results[0] == results[1]


def test_matched_runs_have_equal_digests(tmp_path, host, model):
    manifests = []
    for algorithm in ALGORITHMS:
        outcome = run(configuration(tmp_path, host, algorithm, model, "budget.iterations=1"), host)
        manifests.append(json.loads((outcome.run / "manifest.json").read_text()))
    matched = [{key: value for key, value in manifest.items() if key.endswith("_digest")} for manifest in manifests]
    assert matched[0] == matched[1] == matched[2]
    assert all(matched[0].values())
    assert set(matched[0]) == set(MATCHED)
    assert manifests[0]["versions"]["torch"]


def test_what_a_run_would_be(tmp_path, host, model):
    shown = dry_run(configuration(tmp_path, host, "grpo", model, "budget.env_steps=1000", "budget.iterations=null"), host)
    assert shown["training_tasks"] == 256
    assert shown["evaluation_tasks"] == 2
    assert shown["parameters"] > 10_000
    assert shown["iterations_at_least"] >= 1
    assert shown["run"].endswith("test/grpo-household-seed0")
    assert not list(tmp_path.iterdir())
