"""``sync``: from run folders alone, once, completely, and with one line for every run."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.plugins.mlflow.conftest import Reader, empty_database, local, record  # noqa: F401
from threespo_bench.store import RunStore

pytest.importorskip("mlflow")
RUN = "1count-corridor-seed0"


@pytest.fixture
def tracked_store(store, empty_database, monkeypatch):  # noqa: F811
    """The store of the toys, made without a tracker, with an empty database."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shutil.copy(empty_database, store)
    return store


def by_name(store) -> dict:
    return {run.info.run_name: run for run in local(store).runs("toys")}


def points(store) -> dict[str, int]:
    reader = local(store)
    return {name: sum(len(reader.curve(run.info.run_id, key)) for key in run.data.metrics) for name, run in by_name(store).items()}


def test_a_dry_run_sends_nothing(call, store, monkeypatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    code, out, err = call("sync", str(store), "--dry-run")
    assert code == 0, err
    assert out.count("would be sent") == 7
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


def test_a_comparison_without_a_tracker_is_sent_once_and_completely(call, tracked_store) -> None:
    store = tracked_store
    report = store / "toys" / "report"
    (report / "tables").mkdir()
    for name in ("report.html", "report.md", "tables/summary.csv"):
        (report / name).write_text(name)
    code, out, err = call("sync", str(store))
    assert code == 0, err
    assert out.count(": sent, ") == 7
    assert f"[2/7] toys/{RUN}: sent, " in out
    found, reader = by_name(store), local(store)
    parent = found.pop("comparison toys")
    assert (parent.info.status, parent.data.params["seed"]) == ("FAILED", "0, 1")
    assert {"report/report.html", "report/report.md", "report/tables/summary.csv"} <= set(reader.files(parent.info.run_id))
    assert {run.data.tags["mlflow.parentRunId"] for run in found.values()} == {parent.info.run_id}
    assert {run.info.run_name for run in found.values() if run.info.status == "FAILED"} == {"faulty-corridor-seed0", "faulty-corridor-seed1"}
    for name, run in found.items():
        reader.assert_complete(run, store / "toys" / name)
    run = found[RUN]
    assert (run.data.tags["algorithm"], run.data.tags["env"], run.data.tags["seed"]) == ("counting", "corridor", "0")
    assert run.data.params["algorithm.objective.clip_low"] == "0.2"
    manifest = json.loads((store / "toys" / RUN / "manifest.json").read_text())
    sets = {item.dataset.name: item.dataset.digest for item in run.inputs.dataset_inputs}
    assert sets == {"corridor/train": manifest["task_order_digest"][:36], "corridor/valid_unseen": manifest["evaluation_tasks_digest"][:36]}
    times = [point.timestamp for point in reader.client.get_metric_history(run.info.run_id, "iteration")]
    assert times == sorted(times) and run.info.start_time <= times[0] < run.info.start_time + 600_000, "the times of the run, not of now"

    before = points(store)
    code, out, _ = call("sync", str(store))
    assert code == 0
    assert out.count("nothing to send") == 7
    for forgotten in (store / "toys").rglob("tracking.json"):  # as if the process had died before it could write them
        forgotten.write_text(json.dumps({"id": json.loads(forgotten.read_text())["id"]}))
    code, out, _ = call("sync", str(store))
    assert out.count("sent, no value was missing") == 7
    assert points(store) == before
    (report / "report.md").write_text("another")
    assert call("sync", str(store))[1].count("nothing to send") == 6, "the report is sent again when it was made again"


def test_a_run_that_was_half_logged_is_completed(call, tracked_store) -> None:
    store, path = tracked_store, tracked_store / "toys" / RUN
    rows = (path / "metrics.jsonl").read_text()
    (path / "metrics.jsonl").write_text("".join(rows.splitlines(keepends=True)[:3]))
    assert call("sync", str(path))[0] == 0
    (path / "metrics.jsonl").write_text(rows)
    code, out, _ = call("sync", str(path))
    assert code == 0
    assert "[1/2] comparison toys: nothing to send" in out
    assert f"[2/2] toys/{RUN}: sent, " in out
    found = by_name(store)
    assert sorted(found) == [RUN, "comparison toys"], "only what was asked for, and what it hangs under"
    local(store).assert_complete(found[RUN], path)


def test_a_database_that_is_gone_is_made_again(call, tracked_store) -> None:
    store = tracked_store
    assert call("sync", str(store))[0] == 0
    before = points(store)
    (store / "mlflow.db").unlink()
    assert call("sync", str(store), "--dry-run")[1].count("would be sent") == 7
    code, out, err = call("sync", str(store))
    assert code == 0, err
    assert out.count(": sent, ") == 7
    assert points(store) == before
    run = by_name(store)[RUN]
    assert run.data.tags["mlflow.parentRunId"] == by_name(store)["comparison toys"].info.run_id


def test_an_unreachable_server(call, store) -> None:
    code, out, err = call("sync", str(store), "--uri", "http://127.0.0.1:9")
    assert code == 9
    assert "http://127.0.0.1:9 cannot be reached" in err
    assert "nothing is lost" in err
    assert out == ""


def test_another_address_than_that_of_the_run(call, store, empty_database, tmp_path) -> None:  # noqa: F811
    elsewhere = shutil.copy(empty_database, tmp_path / "elsewhere.db")
    code, out, _ = call("sync", str(store / "toys" / RUN), "--uri", f"sqlite:///{elsewhere}")
    assert code == 0
    assert out.splitlines()[-1] == f"mlflow ui --backend-store-uri sqlite:///{elsewhere}"
    assert len(Reader(f"sqlite:///{elsewhere}").runs("toys")) == 2
    assert not (store / "mlflow.db").exists()
    assert list(record(store / "toys" / RUN)["copies"]) == [f"mlflow sqlite:///{elsewhere}"]


def test_runs_that_are_worked_on_or_damaged(call, tracked_store) -> None:
    store = tracked_store
    (store / "toys" / "larger-corridor-seed0" / "status.json").write_text("{")
    with RunStore.open(store / "toys" / RUN):
        code, out, err = call("sync", str(store / "toys"))
    assert code == 6
    assert f"toys/{RUN}: left alone, a process works on it" in out
    assert "toys/larger-corridor-seed0: not sent: " in out
    assert "of 7 could not be sent" in err
    sent = {"comparison toys", "1count-corridor-seed1", "larger-corridor-seed1", "faulty-corridor-seed0", "faulty-corridor-seed1"}
    assert set(by_name(store)) == sent


def test_nothing_there(call, tmp_path) -> None:
    assert call("sync", str(tmp_path / "none"))[0] == 6
    code, _, err = call("sync", str(tmp_path))
    assert (code, "no run in" in err) == (0, True)
