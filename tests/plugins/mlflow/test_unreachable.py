"""A server that is away, one that hangs, and a database that vanishes: training goes on, says so once, and what is missing is known."""

from __future__ import annotations

import json
import socket
import time

import pytest

from tests.plugins.mlflow.conftest import local, record
from tests.runner import toy_bench
from tests.runner.conftest import Watcher, fingerprint
from threespo_bench.errors import TrackerError
from threespo_bench.runner import resume, run
from threespo_bench.store import read_status
from threespo_bench.syncing import Synchronisation

pytest.importorskip("mlflow")


class Remover(Watcher):
    """Removes the database after an iteration."""

    def __init__(self, database, at: int) -> None:
        super().__init__()
        self.database, self.at = database, at

    def iteration(self, row) -> None:
        super().iteration(row)
        if row["iteration"] == self.at:
            self.database.unlink()


def sync(folder, host, **more):
    return [(sent.path.name, sent.what) for sent in Synchronisation(host, "mlflow", **more)([folder])]


def test_refused(runs, host, reference) -> None:
    watcher = Watcher()
    began = time.monotonic()
    outcome = run(toy_bench.configuration(runs, "tracker.uri=http://me:secret@127.0.0.1:9", tracker="mlflow"), host, progress=watcher)
    assert time.monotonic() - began < 60
    assert fingerprint(outcome.run) == fingerprint(reference)
    (said,) = [message for message in watcher.messages if "tracker" in message]
    assert "threespo-bench sync sends what is missing later" in said
    (key,) = record(outcome.run)["copies"]
    assert key == "mlflow http://127.0.0.1:9", "no password"
    assert record(outcome.run)["copies"][key]["complete"] is False
    with pytest.raises(TrackerError, match="cannot be reached"):
        sync(outcome.run, host)
    assert sync(outcome.run, host, uri=f"sqlite:///{runs}/mlflow.db") == [(outcome.run.name, "sent")]
    (tracked,) = local(runs).runs()
    local(runs).assert_complete(tracked, outcome.run)


def test_a_server_that_hangs(runs, host, reference) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        watcher, began = Watcher(), time.monotonic()
        uri = f"tracker.uri=http://127.0.0.1:{silent.getsockname()[1]}"
        outcome = run(toy_bench.configuration(runs, uri, "tracker.timeout_seconds=1", "tracker.retries=0", tracker="mlflow"), host, progress=watcher)
        assert time.monotonic() - began < 40
    assert fingerprint(outcome.run) == fingerprint(reference)
    assert len([message for message in watcher.messages if "tracker" in message]) == 1


def test_a_database_that_is_removed_in_the_middle(runs, host, reference) -> None:
    watcher = Remover(runs / "mlflow.db", 4)
    outcome = run(toy_bench.configuration(runs, "tracker.flush_rows=1", tracker="mlflow"), host, progress=watcher)
    assert outcome.state == "finished"
    assert fingerprint(outcome.run) == fingerprint(reference)
    (said,) = [message for message in watcher.messages if "tracker" in message]
    assert "was removed or replaced (threespo-bench sync copies the run anew)" in said
    assert record(outcome.run)["copies"]["mlflow store"]["complete"] is False
    assert sync(outcome.run, host) == [(outcome.run.name, "sent")]
    (tracked,) = local(runs).runs()
    assert (tracked.info.run_name, tracked.info.status) == (outcome.run.name, "FINISHED")
    local(runs).assert_complete(tracked, outcome.run)
    assert local(runs).files(tracked.info.run_id) == ["config.yaml", "curve.png", "manifest.json"]
    assert sync(outcome.run, host) == [(outcome.run.name, "complete")]


def test_a_resumed_run_whose_mlflow_run_is_gone_says_so(runs, host) -> None:
    first = run(toy_bench.configuration(runs, tracker="mlflow"), host, progress=Watcher(stop_at=4))
    (before,) = local(runs).runs()
    local(runs).client.delete_run(before.info.run_id)
    second = resume(first.run, host)
    (after,) = local(runs).runs()
    assert after.info.run_id != before.info.run_id
    assert after.data.tags["threespo_bench.replaces"] == before.info.run_id
    assert "is gone; this one has all rows" in after.data.tags["mlflow.note.content"]
    assert read_status(second.run)["tracker_run"] == after.info.run_id
    local(runs).assert_complete(after, first.run)


def test_a_resumed_run_goes_on_in_the_same_one(runs, host) -> None:
    first = run(toy_bench.configuration(runs, tracker="mlflow"), host, progress=Watcher(stop_at=4))
    (before,) = local(runs).runs()
    assert record(first.run)["copies"]["mlflow store"]["complete"] is True, "an interrupted run was copied completely too"
    resume(first.run, host, budget={"iterations": 12}, parent_tracker_run="0" * 32)
    (after,) = local(runs).runs()
    assert after.info.run_id == before.info.run_id
    assert "threespo_bench.replaces" not in after.data.tags
    assert after.data.tags["mlflow.parentRunId"] == "0" * 32
    assert json.loads(after.data.tags["threespo_bench.changed_params"]) == {"budget.iterations": "12"}
    local(runs).assert_complete(after, first.run)
