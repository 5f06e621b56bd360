"""A tracker gets a copy, and nothing it does wrong stops a run."""

from __future__ import annotations

import json

import pytest

from tests.runner import toy_bench
from tests.runner.conftest import Watcher, fingerprint
from threespo_bench.runner import resume, run
from threespo_bench.store import read_status


def calls(out, run_path):
    return [json.loads(line) for line in (out / f"tracker-{run_path.name}.jsonl").read_text().splitlines()]


def test_what_a_tracker_gets(tmp_path, host, reference):
    outcome = run(toy_bench.configuration(tmp_path, tracker="list"), host, parent_tracker_run="the parent")
    recorded = calls(tmp_path, outcome.run)
    start = recorded[0]
    assert (start["call"], start["experiment"], start["run"], start["parent"], start["resume"]) == ("start", "test", outcome.run.name, "the parent", None)
    assert start["params"]["algorithm.objective.clip_low"] == 0.2
    assert (start["params"]["algorithm"], start["params"]["seed"]) == ("counting", 0)
    record = json.loads((outcome.run / "tracking.json").read_text())
    assert start["tags"] == {"kind": "run", "algorithm": "counting", "env": "corridor", "seed": "0", "threespo_bench.id": record["id"]}
    assert record["copies"]["list"] | {"content": ""} == {"run": f"id-{outcome.run.name}", "content": "", "complete": True}
    logged = [call for call in recorded if call["call"] == "log"]
    assert len(logged) == (reference / "metrics.jsonl").read_text().count("\n")
    assert "eval/success" in logged[0]["metrics"]
    assert logged[-1]["step"] == outcome.env_steps
    assert [call["name"] for call in recorded if call["call"] == "artifact"] == ["config.yaml", "manifest.json", "curve.png"]
    assert recorded[-1] == {"call": "finish", "status": "finished"}
    assert outcome.tracker == "look at it"
    assert read_status(outcome.run)["tracker_run"] == f"id-{outcome.run.name}"


def test_a_resumed_run_goes_on_in_the_same_tracker_run_and_sends_its_rows_again(tmp_path, host):
    first = run(toy_bench.configuration(tmp_path, tracker="list"), host, progress=Watcher(stop_at=4), parent_tracker_run="the parent")
    before = len(calls(tmp_path, first.run))
    assert calls(tmp_path, first.run)[-1]["status"] == "interrupted"
    resume(first.run, host)
    later = calls(tmp_path, first.run)[before:]
    assert (later[0]["resume"], later[0]["parent"]) == (f"id-{first.run.name}", "the parent")
    rows = [json.loads(line) for line in (first.run / "metrics.jsonl").read_text().splitlines()]
    assert [call["step"] for call in later if call["call"] == "log"] == [row["env_steps"] for row in rows]


@pytest.mark.parametrize("fail", [["start"], ["log"], ["artifact"], ["finish"], ["start", "log", "artifact", "finish"]])
def test_a_failing_tracker_is_said_once_and_changes_nothing(tmp_path, host, reference, fail):
    watcher = Watcher()
    outcome = run(toy_bench.configuration(tmp_path, f"tracker.fail=[{','.join(fail)}]", tracker="list"), host, progress=watcher)
    assert outcome.state == "finished"
    assert fingerprint(outcome.run) == fingerprint(reference)
    said = [message for message in watcher.messages if "tracker" in message]
    assert len(said) == 1
    assert "ConnectionError: no route to the tracker" in said[0]
    assert "\n" not in said[0]


def test_a_tracker_that_cannot_be_loaded(tmp_path, host, reference, monkeypatch):
    monkeypatch.delattr(toy_bench, "ListTracker")
    watcher = Watcher()
    config = toy_bench.configuration(tmp_path)
    config.tracker.name = "list"
    outcome = run(config, host, progress=watcher)
    assert fingerprint(outcome.run) == fingerprint(reference)
    assert any("the tracker failed to construct" in message for message in watcher.messages)


def test_a_required_tracker_that_cannot_start_ends_the_run(tmp_path, host):
    outcome = run(toy_bench.configuration(tmp_path, "tracker.fail=[start]", "tracker.required=true", tracker="list"), host)
    assert (outcome.state, outcome.exit_code) == ("failed", 2)
    assert outcome.error == "the tracker cannot start: ConnectionError: no route to the tracker (start)"


def test_a_tracker_that_keeps_failing_is_left_alone(tmp_path, host, monkeypatch):
    tried = []

    def log(self, metrics, step):
        tried.append(step)
        raise TimeoutError("slow")

    monkeypatch.setattr(toy_bench.ListTracker, "log", log)
    assert run(toy_bench.configuration(tmp_path, tracker="list"), host).state == "finished"
    assert len(tried) == 3
