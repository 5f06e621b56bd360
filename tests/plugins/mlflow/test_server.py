"""With a real MLflow server: a comparison that is tracked while it goes on, runs that are sent later, and the server going away."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.plugins.mlflow.conftest import Reader, record
from tests.runner import toy_bench
from threespo_bench.errors import TrackerError
from threespo_bench.experiment import execute, plan
from threespo_bench.runner import run
from threespo_bench.syncing import Synchronisation

pytest.importorskip("mlflow")
SETTINGS = ["engine=table", "model=nothing", "budget.env_steps=null", "budget.iterations=4", "evaluation.every_env_steps=150", "evaluation.episodes=6"]


@contextmanager
def mlflow_server(folder: Path, database: Path) -> Iterator[str]:
    """A server of its own, in a process group that ends with the block."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{database}", "--artifacts-destination", str(folder / "artifacts")]
    settings = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "PYTHONWARNINGS": "ignore"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")} | settings
    with open(folder / "server.log", "w") as log:
        server = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        uri = f"http://127.0.0.1:{port}"
        _wait(server, f"{uri}/health", folder / "server.log")
        yield uri
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _wait(server: subprocess.Popen, address: str, log: Path, seconds: float = 150.0) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if server.poll() is not None:
            break
        with suppress(OSError), urllib.request.urlopen(address, timeout=2):
            return
        time.sleep(0.3)
    raise AssertionError(f"the server did not start:\n{log.read_text()[-2000:]}")


@pytest.mark.slow
@pytest.mark.smoke
@pytest.mark.timeout(600)  # the server alone takes half a minute to start on two busy cores
def test_a_remote_server(tmp_path, empty_database, host, monkeypatch, capsys) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_RUN_ID", "f" * 32)
    runs, database = tmp_path / "runs", tmp_path / "mlflow.db"
    database.write_bytes(empty_database.read_bytes())
    with mlflow_server(tmp_path, database) as uri:
        reader = Reader(uri)
        settings = [*SETTINGS, "tracker=mlflow", f"tracker.uri={uri}", "tracker.timeout_seconds=60"]
        comparison = execute(plan(["counting"], ["corridor"], [0, 1], host, overrides=settings, out=str(runs), experiment="test"), host)
        assert [outcome.state for outcome in comparison.outcomes.values()] == ["finished"] * 2
        found = {tracked.info.run_name: tracked for tracked in reader.runs()}
        parent = found.pop("comparison test")
        assert reader.files(parent.info.run_id) == ["report/index.html"]
        assert parent.data.params["seed"] == "0, 1"
        for name, tracked in found.items():
            folder = runs / "test" / name
            assert tracked.data.tags["mlflow.parentRunId"] == parent.info.run_id
            assert record(folder)["copies"][f"mlflow {uri}"]["complete"] is True
            reader.assert_complete(tracked, folder)
            inputs = [(given.dataset.name, given.tags[0].value) for given in tracked.inputs.dataset_inputs]
            assert sorted(inputs) == [("corridor/train", "training"), ("corridor/valid_unseen", "evaluation")]
        assert not (runs / "mlflow.db").exists()

        plain = run(toy_bench.configuration(runs, "budget.iterations=4"), host)
        send = Synchronisation(host, "mlflow", uri)
        done = {sent.path.name: sent.what for sent in send([plain.run, *(runs / "test" / name for name in found)])}
        assert done == {"test": "complete", plain.run.name: "sent", **dict.fromkeys(found, "complete")}
        assert [sent.what for sent in send([plain.run])] == ["complete", "complete"]
        (sent,) = [tracked for tracked in reader.runs() if tracked.info.run_name == plain.run.name]
        reader.assert_complete(sent, plain.run)
        assert reader.files(sent.info.run_id) == ["config.yaml", "curve.png", "manifest.json"]
    assert capsys.readouterr().out == "", "MLflow says nothing of its own"
    with pytest.raises(TrackerError, match="cannot be reached"):
        list(Synchronisation(host, "mlflow", uri)([plain.run]))
