"""What must be equal for a seed across algorithms is in the manifests and the record, and what differs is said."""

from __future__ import annotations

import json

import pytest

from tests.docs.pages import ROOT, table
from tests.runner import toy_bench
from tests.runner.conftest import Watcher
from threespo_bench.experiment import Variant, execute, plan
from threespo_bench.manifest import MATCHED
from threespo_bench.matching import MUST_MATCH, match, warnings
from threespo_bench.runner import resume, run

SETTINGS = [
    "engine=table",
    "model=nothing",
    "tracker=none",
    "budget.env_steps=null",
    "budget.iterations=2",
    "evaluation.episodes=4",
    "checkpoint.every_iterations=1",
]


@pytest.fixture
def host():
    return toy_bench.host()


def planned(out, host, *algorithms, seeds=(0,), overrides=()):
    return plan(algorithms, ["corridor"], seeds, host, overrides=[*SETTINGS, *overrides], out=str(out), experiment="test")


def record(out) -> dict:
    return json.loads((out / "test" / "experiment.json").read_text())


def test_every_condition_is_in_the_manifest_and_moves_with_its_cause(tmp_path, host):
    def manifest(*overrides, seed=0):
        made = run(toy_bench.configuration(tmp_path, "budget.iterations=1", *overrides, seed=seed), host)
        return json.loads((made.run / "manifest.json").read_text())

    first = manifest()
    assert all(first[key] for key in MUST_MATCH)
    assert first["budget"] == {"env_steps": None, "tokens": None, "updates": None, "iterations": 1}

    def moved(other):
        return {key for key in MUST_MATCH if other[key] != first[key]}

    assert moved(manifest("algorithm.group_size=4")) == set()
    assert moved(manifest(seed=1)) == {"task_order_digest", "environment_seeds_digest", "evaluation_noise_digest"}
    assert moved(manifest("evaluation.temperature=0.9")) == {"evaluation_noise_digest"}
    assert moved(manifest("evaluation.episodes=3")) == {"evaluation_tasks_digest", "evaluation_noise_digest"}
    assert moved(manifest("budget.updates=9")) == {"budget"}
    assert moved(manifest("env.length=4")) == {"environment_digest"}


def test_a_longer_budget_is_recorded_when_a_run_goes_on(tmp_path, host):
    made = run(toy_bench.configuration(tmp_path, "budget.iterations=1"), host)
    resume(made.run, host, budget={"iterations": 2})
    assert json.loads((made.run / "manifest.json").read_text())["budget"]["iterations"] == 2


def test_the_record_proves_the_match(tmp_path, host):
    comparison = execute(planned(tmp_path, host, "counting", Variant("counting", ("algorithm.group_size=4",), "larger"), seeds=(0, 1)), host)
    assert comparison.mismatches == []
    found = record(tmp_path)
    assert found["must_match"] == [*MATCHED, "budget"]
    assert [(row["env"], row["seed"], row["differs"]) for row in found["matched"]] == [("corridor", 0, {}), ("corridor", 1, {})]
    assert set(found["matched"][0]["conditions"]) == set(MUST_MATCH)
    assert found["matched"][0]["conditions"]["task_order_digest"] != found["matched"][1]["conditions"]["task_order_digest"]


def test_what_differs_is_said(tmp_path, host):
    other = Variant("counting", ("budget.iterations=1", "env.length=4"), "other")
    comparison = execute(planned(tmp_path, host, "counting", other), host)
    between = "between 1count-corridor-seed0 and other-corridor-seed0: not a matched comparison"
    assert comparison.mismatches == [
        f"corridor, seed 0: the environment's data or version differ {between}",
        f"corridor, seed 0: the budget differs {between}",
    ]
    assert record(tmp_path)["matched"][0]["differs"]["environment_digest"] == {"1count-corridor-seed0": "corridor-5", "other-corridor-seed0": "corridor-4"}


def test_the_page_lists_what_must_match():
    rows = table((ROOT / "docs" / "experiments.md").read_text(encoding="utf-8"), "in the manifest", "what it covers")
    assert {row[0].strip("`") for row in rows} == set(MUST_MATCH)


def test_what_older_manifests_lack_is_no_difference():
    rows = match(
        [{"name": name, "env": "e", "seed": 0, "conditions": conditions} for name, conditions in (("a", {"budget": 1}), ("b", {"task_order_digest": "x"}))]
    )
    assert rows[0]["differs"] == {}
    assert warnings(rows) == []


def test_more_seeds_and_algorithms_extend_the_experiment(tmp_path, host):
    execute(planned(tmp_path, host, "counting"), host)
    execute(planned(tmp_path, host, "counting", seeds=(1,)), host)
    execute(planned(tmp_path, host, Variant("counting", ("algorithm.group_size=4",), "larger"), seeds=(0, 1)), host)
    names = ["1count-corridor-seed0", "1count-corridor-seed1", "larger-corridor-seed0", "larger-corridor-seed1"]
    found = record(tmp_path)
    assert [(row["name"], row["state"], row["run"]) for row in found["runs"]] == [(name, "finished", name) for name in names]
    assert [row["runs"] for row in found["matched"]] == [[names[0], names[2]], [names[1], names[3]]]
    assert (tmp_path / "test" / "report" / "index.html").read_text().split() == names


def test_a_failed_run_is_retried_or_only_reported(tmp_path, host):
    runs = planned(tmp_path, host, "needy", Variant("counting", ("env.fault=raise", "env.fault_step=0"), "faulty"))
    toy_bench.Corridor.steps = 0
    assert len(execute(runs, host).failed) == 2
    lines: list[str] = []
    again = execute(runs, host, retry=False, say=lines.append)
    assert [(outcome.state, bool(outcome.error)) for outcome in again.outcomes.values()] == [("failed", True), ("failed", True)]
    assert [line for line in lines if "is not retried" in line] == [f"{run.name}: failed before and is not retried" for run in runs]
    assert again.error().exit_code == 2
    lines.clear()
    execute(runs, host, say=lines.append)
    assert not [line for line in lines if "is not retried" in line]
    assert "faulty-corridor-seed0: goes on from faulty-corridor-seed0" in lines


def test_a_run_whose_checkpoints_are_broken_begins_anew(tmp_path, host):
    runs = planned(tmp_path, host, "counting")
    first = execute(runs, host, progress=lambda name: Watcher(stop_at=1))
    assert first.interrupted
    for file in (tmp_path / "test" / runs[0].name / "checkpoints").glob("*/loop.json"):
        file.write_text("{}")
    second = execute(runs, host)
    assert second.error() is None
    assert second.outcomes[runs[0].name].run.name == f"{runs[0].name}-2"


def test_the_record_says_where_a_running_run_is(tmp_path, host):
    seen: list[dict] = []

    class Looking(Watcher):
        def iteration(self, row):
            seen.append(record(tmp_path))

    execute(planned(tmp_path, host, "counting", seeds=(0, 1)), host, progress=lambda name: Looking())
    rows = seen[0]["runs"]
    assert [(row["state"], row["run"]) for row in rows] == [("running", rows[0]["name"]), ("planned", None)]
    assert rows[1]["process"]["pid"]
