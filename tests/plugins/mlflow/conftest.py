"""An MLflow database to start from, and what reads back from it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.runner import toy_bench
from threespo_bench.runner import run
from threespo_plugins.mlflow_tracker import MlflowConfig, MlflowTracker


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Making an MLflow database takes seconds; the tests start from copies of one."""
    pytest.importorskip("mlflow")
    folder = tmp_path_factory.mktemp("mlflow")
    MlflowTracker(MlflowConfig(uri=f"sqlite:///{folder}/mlflow.db"), folder).check()
    return folder / "mlflow.db"


@pytest.fixture
def runs(tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runs folder with an empty database."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = tmp_path / "runs"
    folder.mkdir()
    shutil.copy(empty_database, folder)
    return folder


@pytest.fixture
def host() -> Any:
    """The toys."""
    return toy_bench.host()


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that no tracker follows."""
    return run(toy_bench.configuration(tmp_path_factory.mktemp("reference")), toy_bench.host()).run


class Reader:
    """Reads a store of MLflow."""

    def __init__(self, uri: str) -> None:
        from mlflow.tracking import MlflowClient

        self.client = MlflowClient(tracking_uri=uri)

    def runs(self, experiment: str = "test") -> list[Any]:
        """All runs of an experiment."""
        found = self.client.get_experiment_by_name(experiment)
        return self.client.search_runs([found.experiment_id]) if found else []

    def curve(self, run_id: str, key: str) -> list[tuple[int, float]]:
        """The points of a metric: (step, value)."""
        return sorted((point.step, point.value) for point in self.client.get_metric_history(run_id, key))

    def files(self, run_id: str, folder: str | None = None) -> list[str]:
        """The artifacts of a run, those in folders too."""
        found = []
        for item in self.client.list_artifacts(run_id, folder):
            found += self.files(run_id, item.path) if item.is_dir else [item.path]
        return sorted(found)

    def assert_complete(self, run: Any, folder: Path) -> None:
        """All that a run folder measured is there, and each point once."""
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for kind, prefix, key in (("train", "", "train/success"), ("train", "", "iteration"), ("eval", "eval/", "success")):
            assert self.curve(run.info.run_id, prefix + key) == [(row["env_steps"], row[key]) for row in rows if row["kind"] == kind], (folder, key)


def local(runs: Path) -> Reader:
    """A reader of the database in a runs folder."""
    return Reader(f"sqlite:///{(runs / 'mlflow.db').resolve()}")


def record(folder: Path) -> dict[str, Any]:
    """``tracking.json``."""
    return json.loads((folder / "tracking.json").read_text())
