"""What was sent to MLflow is read back through its client: values, names, steps, nesting; and nothing MLflow does stops a run."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runner import toy_bench
from tests.runner.conftest import Watcher, fingerprint
from threespo_bench.errors import UsageError
from threespo_bench.experiment import execute, plan
from threespo_bench.runner import resume, run
from threespo_plugins.mlflow_tracker import MlflowConfig, MlflowTracker, clean_name, shorten, tracking_uri

mlflow = pytest.importorskip("mlflow")
ROOT = Path(__file__).parents[3]


def client(runs: Path):
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=tracking_uri(None, runs))


def all_runs(runs: Path, experiment: str = "test"):
    reader = client(runs)
    return reader.search_runs([reader.get_experiment_by_name(experiment).experiment_id])


def history(runs: Path, run_id: str, key: str) -> list[tuple[int, float]]:
    return [(metric.step, metric.value) for metric in sorted(client(runs).get_metric_history(run_id, key), key=lambda metric: metric.step)]


def start(runs: Path, resume: str | None = None, **options) -> MlflowTracker:
    tracker = MlflowTracker(MlflowConfig(**options), runs)
    tracker.start("test", "name", {"a": 1}, {"kind": "test"}, None, resume)
    return tracker


def test_a_run_reads_back(runs, host):
    outcome = run(toy_bench.configuration(runs, tracker="mlflow"), host)
    (tracked,) = all_runs(runs)
    assert (tracked.info.run_name, tracked.info.status) == (outcome.run.name, "FINISHED")
    assert tracked.data.tags["algorithm"] == "counting"
    assert tracked.data.params["algorithm.objective.clip_low"] == "0.2"
    assert tracked.data.params["budget.env_steps"] == "null"
    rows = [json.loads(line) for line in (outcome.run / "metrics.jsonl").read_text().splitlines()]
    evaluations = [(row["env_steps"], row["success"]) for row in rows if row["kind"] == "eval"]
    assert history(runs, tracked.info.run_id, "eval/success") == evaluations
    training = [(row["env_steps"], row["train/success"]) for row in rows if row["kind"] == "train"]
    assert history(runs, tracked.info.run_id, "train/success") == training
    artifacts = {artifact.path for artifact in client(runs).list_artifacts(tracked.info.run_id)}
    assert artifacts == {"config.yaml", "manifest.json", "curve.png"}
    assert outcome.tracker == f"mlflow ui --backend-store-uri sqlite:///{runs.resolve()}/mlflow.db"


def test_values_that_are_not_finite_are_counted_and_left_out(runs, host):
    run(toy_bench.configuration(runs, "algorithm.odd=true", tracker="mlflow"), host)
    (tracked,) = all_runs(runs)
    assert not [key for key, value in tracked.data.metrics.items() if not math.isfinite(value) or value > 1e301]
    assert "odd/nan" not in tracked.data.metrics
    assert tracked.data.metrics["odd/big"] == 1e300
    assert tracked.data.metrics["non_finite"] >= 2
    assert tracked.info.status == "FINISHED"


def test_each_kind_of_value_by_itself(runs):
    tracker = start(runs)
    tracker.log({"a": float("nan"), "b": float("inf"), "c": float("-inf"), "d": 0.1, "e": None, "f": 3}, 5)
    tracker.log({"d": 0.2}, 6)
    tracker.finish("finished")
    metrics = client(runs).get_run(tracker.run_id).data.metrics
    assert metrics == {"d": 0.2, "f": 3.0, "non_finite": 4.0}
    assert history(runs, tracker.run_id, "non_finite") == [(5, 4.0)]


def test_a_resumed_run_has_every_step_once(runs, host):
    first = run(toy_bench.configuration(runs, tracker="mlflow"), host, progress=Watcher(stop_at=5, presses=2))
    assert first.state == "interrupted"
    (tracked,) = all_runs(runs)
    assert tracked.info.status == "KILLED"
    assert len(history(runs, tracked.info.run_id, "iteration")) == 5, "two iterations were sent and then taken back"
    resume(first.run, host, budget={"iterations": 12})
    (tracked,) = all_runs(runs)
    assert tracked.info.status == "FINISHED"
    rows = [json.loads(line) for line in (first.run / "metrics.jsonl").read_text().splitlines()]
    for key, kind, name in (("train/success", "train", "train/success"), ("eval/success", "eval", "success")):
        assert history(runs, tracked.info.run_id, key) == [(row["env_steps"], row[name]) for row in rows if row["kind"] == kind]


def test_rows_that_a_killed_process_did_not_send_are_sent_later(runs):
    lost = start(runs, flush_rows=100, flush_seconds=1000.0)
    lost.log({"m": 1.0}, 1)
    lost.flush()
    lost.log({"m": 2.0}, 2)  # waits, and dies with the process
    again = start(runs, resume=lost.run_id)
    assert again.run_id == lost.run_id
    for step in (1, 2, 3):
        again.log({"m": float(step)}, step)
    again.finish("finished")
    assert history(runs, lost.run_id, "m") == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_a_run_that_is_gone_is_begun_anew(runs):
    tracker = start(runs, resume="0" * 32)
    assert tracker.run_id != "0" * 32
    tracker.finish("finished")


def test_rows_wait_until_there_are_enough(runs):
    tracker = start(runs, flush_rows=3, flush_seconds=1000.0)
    for step in range(4):
        tracker.log({"m": 1.0}, step)
    assert len(history(runs, tracker.run_id, "m")) == 3
    tracker.finish("failed")
    assert len(history(runs, tracker.run_id, "m")) == 4
    assert client(runs).get_run(tracker.run_id).info.status == "FAILED"


def test_many_parameters_long_ones_and_odd_names(runs):
    tracker = MlflowTracker(MlflowConfig(), runs)
    params = {f"p{i}": i for i in range(450)} | {"long": "x" * 7000, "flag": True, "none": None, "size(mm)": 1}
    tracker.start("test", "name", params, {}, None, None)
    names = ["success@8,16", "success@8(16", "a//b", "/rooted", "../up", "ünïcode µ", "plain/name.x-y", ".", "", "x" * 300]
    tracker.log({name: float(i) for i, name in enumerate(names)}, 0)
    tracker.finish("finished")
    data = client(runs).get_run(tracker.run_id).data
    assert len(data.params) == 454
    assert len(data.params["long"]) == 6000
    assert data.params["long"].endswith("(cut; see config.yaml)")
    assert (data.params["flag"], data.params["none"], data.params["size_mm_"]) == ("true", "null", "1")
    assert sorted(data.metrics.values()) == [float(i) for i in range(len(names))], "no two names became one"
    assert data.metrics["plain/name.x-y"] == 6.0


@pytest.mark.parametrize(
    ("name", "clean"),
    [("a b", "a b"), ("a@b(c),d", "a_b_c__d"), ("a:b", "a_b"), ("a//b/", "a/b"), ("/a", "a"), ("../a", "a"), ("..", "_"), ("", "_"), ("a/../b", "b")],
)
def test_names(name, clean):
    assert clean_name(name) == clean


def test_short_text_stays():
    assert shorten("x" * 6000) == "x" * 6000


def test_a_moved_runs_folder(runs, host, tmp_path):
    first = run(toy_bench.configuration(runs, tracker="mlflow"), host, progress=Watcher(stop_at=4))
    moved = tmp_path / "moved"
    runs.rename(moved)
    watcher = Watcher()
    second = resume(moved / first.run.relative_to(runs), host, progress=watcher)
    assert second.state == "finished"
    assert not runs.exists(), "nothing is made in the old place"
    (said,) = [message for message in watcher.messages if "tracker" in message]
    assert "which is gone" in said
    (tracked,) = all_runs(moved)
    assert tracked.data.metrics["iteration"] == 10.0


def test_an_inherited_run_id_decides_nothing(runs, host, monkeypatch):
    monkeypatch.setenv("MLFLOW_RUN_ID", "f" * 32)
    settings = [
        "engine=table", "model=nothing", "tracker=mlflow", "budget.env_steps=null", "budget.iterations=2",
        "evaluation.every_env_steps=150", "evaluation.episodes=6",
    ]  # fmt: skip
    planned = plan(["counting", "needy"], ["corridor"], [0, 1], host, overrides=settings, out=str(runs), experiment="test")
    planned[1].config.algorithm.name = "counting"  # two by two, and the first of each pair breaks while it is running
    for broken in planned[::2]:
        broken.config.algorithm.options.bad_state = True
    comparison = execute(planned, host)
    assert [outcome.state for outcome in comparison.outcomes.values()].count("finished") >= 1
    found = {tracked.info.run_name: tracked for tracked in all_runs(runs)}
    parent = found.pop("comparison test")
    assert "mlflow.parentRunId" not in parent.data.tags
    assert {tracked.data.tags["mlflow.parentRunId"] for tracked in found.values()} == {parent.info.run_id}
    assert found["1count-corridor-seed0"].info.status == "FAILED"
    assert found["needy-corridor-seed0"].info.status == "FINISHED"
    assert parent.info.status == "FAILED"
    assert [artifact.path for artifact in client(runs).list_artifacts(parent.info.run_id)] == ["report"]


@pytest.mark.parametrize("uri", ["file:./mlruns", "file:///tmp/mlruns", "./mlruns", "mlruns"])
def test_a_folder_as_tracking_uri_is_explained(runs, host, monkeypatch, uri):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    watcher = Watcher()
    outcome = run(toy_bench.configuration(runs, "budget.iterations=1", tracker="mlflow"), host, progress=watcher)
    assert outcome.state == "finished"
    (said,) = [message for message in watcher.messages if "tracker" in message]
    assert "MLflow no longer takes a folder" in said
    assert "mlflow migrate-filestore --source" in said
    assert "\n" not in said
    assert outcome.tracker == ""
    required = run(toy_bench.configuration(runs, "budget.iterations=1", "tracker.required=true", tracker="mlflow"), host)
    assert (required.state, required.exit_code) == ("failed", 2)
    assert "MLflow no longer takes a folder" in required.error
    assert "migrate-filestore" in required.fix


def test_an_old_folder_in_the_working_directory_is_no_problem(runs, tmp_path, monkeypatch):
    old = tmp_path / "mlruns" / "0"
    old.mkdir(parents=True)
    (old / "meta.yaml").write_text("experiment_id: '0'\nname: Default\nartifact_location: ./mlruns/0\nlifecycle_stage: active\n")
    monkeypatch.chdir(tmp_path)
    tracker = start(runs)
    tracker.log({"m": 1.0}, 0)
    tracker.finish("finished")
    assert history(runs, tracker.run_id, "m") == [(0, 1.0)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mlruns", "runs"]


def test_where_it_goes(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking_uri(None, tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server:5000")
    assert tracking_uri(None, tmp_path) == "http://server:5000"
    assert tracking_uri("sqlite:///x.db", tmp_path) == "sqlite:///x.db"
    assert MlflowTracker(MlflowConfig(), tmp_path).describe() == "http://server:5000"


def test_a_server_that_does_not_answer_changes_nothing(runs, host, tmp_path):
    watcher = Watcher()
    config = toy_bench.configuration(runs, "tracker.uri=http://127.0.0.1:9", tracker="mlflow")
    outcome = run(config, host, progress=watcher)
    plain = run(toy_bench.configuration(tmp_path / "plain"), host)
    assert fingerprint(outcome.run) == fingerprint(plain.run)
    assert len([message for message in watcher.messages if "tracker" in message]) == 1


def test_a_damaged_database_changes_nothing(runs, host):
    (runs / "mlflow.db").write_bytes(b"this is no database" * 1000)
    watcher = Watcher()
    assert run(toy_bench.configuration(runs, "budget.iterations=1", tracker="mlflow"), host, progress=watcher).state == "finished"
    assert len([message for message in watcher.messages if "tracker" in message]) == 1


def test_a_deleted_experiment_is_brought_back(runs):
    start(runs).finish("finished")
    reader = client(runs)
    reader.delete_experiment(reader.get_experiment_by_name("test").experiment_id)
    start(runs).finish("finished")
    assert reader.get_experiment_by_name("test").lifecycle_stage == "active"


def test_options_out_of_range():
    for options in ({"flush_rows": 0}, {"flush_seconds": -1.0}, {"timeout_seconds": 0}, {"retries": -1}):
        with pytest.raises(UsageError, match=rf"tracker\.{next(iter(options))}="):
            MlflowConfig(**options).validate()


def test_mlflow_is_not_imported_until_it_is_used():
    code = "import sys, pathlib, threespo_plugins.mlflow_tracker as m; m.MlflowTracker(m.MlflowConfig(), pathlib.Path('.')); assert 'mlflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})


CONCURRENT = """
import sys
from pathlib import Path
from threespo_plugins.mlflow_tracker import MlflowConfig, MlflowTracker
tracker = MlflowTracker(MlflowConfig(), Path(sys.argv[1]))
tracker.start("test", sys.argv[2], {}, {}, None, None)
for step in range(60):
    tracker.log({f"m{i}": float(step) for i in range(20)}, step)
tracker.finish("finished")
"""


def test_processes_that_start_together_share_a_new_database(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment.pop("MLFLOW_TRACKING_URI", None)
    command = [sys.executable, "-c", CONCURRENT, str(tmp_path)]
    processes = [subprocess.Popen([*command, name], env=environment, stderr=subprocess.PIPE, text=True) for name in ("one", "two", "three")]
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], errors
    assert errors == ["", "", ""], "MLflow says nothing of its own"
    assert sorted(tracked.info.run_name for tracked in all_runs(tmp_path)) == ["one", "three", "two"]
    assert all(tracked.data.metrics["m7"] == 59.0 for tracked in all_runs(tmp_path))
