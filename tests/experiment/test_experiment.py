"""A comparison sees all its runs through, whatever single ones do, and can be carried out again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.runner import toy_bench
from tests.runner.conftest import Watcher, fingerprint
from threespo_bench.discovery import installed as installed_plugins
from threespo_bench.errors import StorageError, UsageError
from threespo_bench.experiment import Variant, execute, plan
from threespo_bench.experiment_plan import steps
from threespo_bench.host import PluginHost
from threespo_bench.runner import run
from threespo_bench.store import RunStore, read_status
from threespo_bench.worker import Job, Worker

ROOT = Path(__file__).parents[2]
SETTINGS = [
    "engine=table", "model=nothing", "tracker=list", "budget.env_steps=null", "budget.iterations=10",
    "evaluation.every_env_steps=150", "evaluation.episodes=6", "checkpoint.every_iterations=3",
]  # fmt: skip


@pytest.fixture
def host():
    return toy_bench.host()


def planned(out, host, *algorithms, seeds=(0, 1), overrides=()):
    return plan(algorithms, ["corridor"], seeds, host, overrides=[*SETTINGS, *overrides], out=str(out), experiment="test")


def tracked(out: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (out / f"tracker-{name}.jsonl").read_text().splitlines()]


def test_matched_seeds_stand_together(tmp_path, host):
    runs = planned(tmp_path, host, "counting", "needy", seeds=[1, 0, 1])
    assert [run.name for run in runs] == ["1count-corridor-seed1", "needy-corridor-seed1", "1count-corridor-seed0", "needy-corridor-seed0"]


def test_variants_of_one_algorithm_have_names_of_their_own(tmp_path, host):
    larger, named = Variant("1count", ("algorithm.group_size=5",)), Variant("counting", ("algorithm.group_size=6",), "six")
    runs = planned(tmp_path, host, "counting", larger, named, seeds=[0])
    assert [run.name for run in runs] == ["1count-corridor-seed0", "1count-group_size-5-corridor-seed0", "six-corridor-seed0"]
    assert [run.config.algorithm.options.group_size for run in runs] == [3, 5, 6]
    with pytest.raises(UsageError, match="both be called six-corridor-seed0"):
        planned(tmp_path, host, named, Variant("counting", (), "six"), seeds=[0])


def test_every_run_is_composed_before_one_starts(tmp_path, host):
    with pytest.raises(UsageError):
        planned(tmp_path, host, "counting", Variant("counting", ("algorithm.group=1",)))
    assert not list(tmp_path.iterdir())


def test_a_failing_run_does_not_stop_the_others(tmp_path, host):
    lines = []
    faulty = Variant("counting", ("algorithm.bad_state=true",), "faulty")
    comparison = execute(planned(tmp_path, host, "needy", faulty, "counting"), host, say=lines.append)
    assert [outcome.state for outcome in comparison.outcomes.values()] == ["failed", "failed", "finished"] * 2
    assert not comparison.interrupted
    error = comparison.error()
    assert error.exit_code == 7
    assert str(error).startswith("4 of 6 runs failed, first needy-corridor-seed0: algorithm needy needs critic")
    report = (tmp_path / "test" / "report" / "index.html").read_text().split()
    assert report == ["faulty-corridor-seed0", "1count-corridor-seed0", "faulty-corridor-seed1", "1count-corridor-seed1"]
    assert sum("failed" in line for line in lines) == 4
    record = json.loads((tmp_path / "test" / "experiment.json").read_text())
    assert [(run["name"], run["state"], run["run"]) for run in record["runs"]][:2] == [
        ("needy-corridor-seed0", "failed", None),
        ("faulty-corridor-seed0", "failed", "faulty-corridor-seed0"),
    ]


def test_if_nothing_finished_the_cause_decides(tmp_path, host):
    assert execute(planned(tmp_path, host, "needy"), host).error().exit_code == 2


def test_the_runs_are_the_same_as_alone(tmp_path, host):
    comparison = execute(planned(tmp_path / "together", host, "counting", seeds=[0, 1]), host)
    assert comparison.error() is None
    for seed, outcome in enumerate(comparison.outcomes.values()):
        alone = run(toy_bench.configuration(tmp_path / "alone", seed=seed), host)
        assert fingerprint(outcome.run) == fingerprint(alone.run)


def test_carrying_out_a_plan_again_does_only_what_is_missing(tmp_path, host):
    runs = planned(tmp_path, host, "counting")
    first = execute(runs[:1], host)
    before = fingerprint(first.outcomes[runs[0].name].run)
    second = execute(runs, host)
    assert [outcome.nothing_to_do for outcome in second.outcomes.values()] == [True, False]
    assert fingerprint(second.outcomes[runs[0].name].run) == before
    third = execute(planned(tmp_path, host, "counting", overrides=["algorithm.group_size=4"]), host)
    assert [outcome.run.name for outcome in third.outcomes.values()] == ["1count-corridor-seed0-2", "1count-corridor-seed1-2"]


def test_a_run_that_another_process_works_on_is_left_to_it(tmp_path, host):
    runs = planned(tmp_path, host, "counting")
    first = execute(runs[:1], host, progress=lambda name: Watcher(stop_at=5)).planned[0].name
    record = tmp_path / "test" / "experiment.json"
    row, before = json.loads(record.read_text())["runs"][0], fingerprint(tmp_path / "test" / first)
    with RunStore.open(tmp_path / "test" / first):  # as its process holds it
        assert [step.action for step in steps(runs, host).values()] == ["busy", "run"]
        said: list[str] = []
        comparison = execute(runs, host, say=said.append)
    assert [(name, outcome.state) for name, outcome in comparison.outcomes.items()] == [(runs[1].name, "finished")]
    assert any(line.startswith(f"{first}: another process works on it") for line in said)
    assert not comparison.interrupted and not comparison.failed
    assert comparison.error().exit_code == StorageError.exit_code
    assert f"1 of 2 runs were left to another process, first {first}, which is locked" in str(comparison.error())
    assert json.loads(record.read_text())["runs"][0] == row
    assert fingerprint(tmp_path / "test" / first) == before
    assert (tmp_path / "test" / "report").is_dir() is ("comparison" in host.reports)
    again = execute(runs, host)
    assert again.error() is None and again.elsewhere == {}
    assert [outcome.nothing_to_do for outcome in again.outcomes.values()] == [False, True]


def test_a_run_of_other_code_is_made_again(tmp_path, host):
    runs = planned(tmp_path, host, "counting", seeds=[0])
    first = execute(runs, host).outcomes[runs[0].name].run
    manifest = json.loads((first / "manifest.json").read_text())
    manifest["run"]["code_digest"] = "older"
    (first / "manifest.json").write_text(json.dumps(manifest))
    assert not execute(runs, host).outcomes[runs[0].name].nothing_to_do


def test_an_interrupted_comparison_goes_on(tmp_path, host):
    runs = planned(tmp_path, host, "counting")
    first = execute(runs, host, progress=lambda name: Watcher(stop_at=5))
    assert first.interrupted
    assert list(first.outcomes) == [runs[0].name]
    assert first.error().exit_code == 130
    assert "2 of 2 runs are not finished" in str(first.error())
    assert not (tmp_path / "test" / "report").exists()
    second = execute(runs, host)
    assert second.error() is None
    assert sorted(path.name for path in (tmp_path / "test").glob("*seed*")) == ["1count-corridor-seed0", "1count-corridor-seed1"]
    whole = run(toy_bench.configuration(tmp_path / "whole"), host)
    assert fingerprint(second.outcomes[runs[0].name].run) == fingerprint(whole.run)


def test_runs_are_children_of_the_comparison_in_the_tracker(tmp_path, host):
    runs = planned(tmp_path, host, "counting", "needy", seeds=[0])
    execute(runs, host)
    parent = tracked(tmp_path, "comparison test")
    assert parent[0]["params"]["algorithm"] == "counting, needy"
    assert "algorithm.objective.clip_low" in parent[0]["params"]
    assert [call["call"] for call in parent] == ["start", "artifact", "finish"]
    assert parent[-1]["status"] == "failed"
    assert tracked(tmp_path, "1count-corridor-seed0")[0]["parent"] == "id-comparison test"
    execute(runs, host)
    assert tracked(tmp_path, "comparison test")[3]["resume"] == "id-comparison test"


def test_a_report_that_breaks_does_not_cost_the_runs(tmp_path, host, monkeypatch):
    monkeypatch.delattr(toy_bench, "compare")
    lines = []
    comparison = execute(planned(tmp_path, host, "counting", seeds=[0]), host, say=lines.append)
    assert comparison.error() is None
    assert any("the report was not written" in line for line in lines)


def test_a_baseline_that_no_run_has_does_not_cost_the_report(tmp_path, host, monkeypatch):
    asked = []

    def compare(runs, out, baseline=None, sections=(), title=""):
        asked.append(baseline)
        if baseline is not None:
            raise UsageError(f"baseline {baseline}: no run of this comparison has that algorithm", fix="did you mean counting?")
        return out

    monkeypatch.setattr(toy_bench, "compare", compare)
    lines = []
    comparison = execute(planned(tmp_path, host, "counting", seeds=[0]), host, say=lines.append, baseline="nobody")
    assert asked == ["nobody", None] and comparison.report is not None and comparison.error() is None
    told = "the report has not the baseline that was asked for: baseline nobody: no run of this comparison has that algorithm (did you mean counting?)"
    assert told in lines


def only_toys() -> PluginHost:
    """The installed toys, without the built-in plugins, whose names some of them take."""
    return PluginHost.discover(only=[source for source in installed_plugins() if source.entry_point == "toy_bench"])


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> str:
    """A folder that, on the path, makes the toys an installed plugin."""
    folder = tmp_path_factory.mktemp("site")
    metadata = folder / "toy_bench-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-bench\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[threespo_bench]\ntoy_bench = tests.runner.toy_bench\n")
    return str(folder)


@pytest.fixture
def installed_host(installed, monkeypatch):
    monkeypatch.syspath_prepend(installed)
    monkeypatch.syspath_prepend(str(ROOT))
    return only_toys()


def test_at_once_equals_one_by_one(tmp_path, host, installed_host):
    lines, watchers = [], {}

    def progress(name):
        return watchers.setdefault(name, Watcher())

    runs = planned(tmp_path / "at_once", installed_host, "counting", "needy")
    comparison = execute(runs, installed_host, jobs=2, progress=progress, say=lines.append)
    assert [outcome.state for outcome in comparison.outcomes.values()] == ["finished", "failed"] * 2
    assert comparison.outcomes["needy-corridor-seed0"].exit_code == 2
    assert (tmp_path / "at_once" / "test" / "report" / "index.html").exists()
    for seed in (0, 1):
        name = f"1count-corridor-seed{seed}"
        assert watchers[name].rows[-1]["iteration"] == 10
        alone = run(toy_bench.configuration(tmp_path / "alone", seed=seed), host)
        assert fingerprint(comparison.outcomes[name].run) == fingerprint(alone.run)


def test_a_process_without_the_plugin_says_so(tmp_path, host):
    worker = Worker(Job(toy_bench.configuration(tmp_path), "name"), host)
    outcome = worker.wait(Watcher())
    worker.close()
    assert (outcome.state, outcome.exit_code) == ("failed", 3)
    assert "exists only in the memory of the process that started this one" in outcome.error


def test_a_killed_process_is_a_failure_with_a_cause(tmp_path, installed_host):
    worker = Worker(Job(toy_bench.configuration(tmp_path, "engine.slow_save=20"), "name"), installed_host)

    class Killer(Watcher):
        def iteration(self, row):
            os.kill(worker._process.pid, signal.SIGKILL)

    outcome = worker.wait(Killer())
    worker.close()
    assert outcome.state == "failed"
    assert "ended by SIGKILL" in outcome.error
    assert "memory" in outcome.fix
    assert read_status(tmp_path / "test" / "name")["state"] == "failed"


def test_a_process_stops_with_its_parent(tmp_path, installed_host):
    worker = Worker(Job(toy_bench.configuration(tmp_path, "engine.slow_save=0.2", "checkpoint.every_iterations=1"), "name"), installed_host)

    class Leaver(Watcher):
        def iteration(self, row):
            if not worker._process.stdin.closed:
                worker._process.stdin.close()

    outcome = worker.wait(Leaver())
    worker.close()
    assert outcome.state == "interrupted", outcome


COMPARE = """
import sys
from tests.experiment.test_experiment import only_toys, planned
from threespo_bench.experiment import execute
host = only_toys()
runs = planned(sys.argv[1], host, "counting", seeds=[0, 1, 2], overrides=["engine.slow_save=0.2", "checkpoint.every_iterations=1"])
comparison = execute(runs, host, jobs=2, say=lambda text: print(text, flush=True))
print(comparison.error().exit_code)
"""


def test_interrupting_runs_at_once(tmp_path, installed, installed_host):
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join([installed, *filter(None, sys.path)])}
    process = subprocess.Popen([sys.executable, "-c", COMPARE, str(tmp_path)], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    while len(list(tmp_path.glob("test/*/checkpoints/iteration*"))) < 2 and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    printed = process.communicate()[0].splitlines()
    assert printed[-1] == "130"
    states = [read_status(path.parent)["state"] for path in tmp_path.glob("test/*/config.yaml")]
    assert len(states) == 2
    assert "interrupted" in states
    assert not [line for line in printed if "failed" in line]
