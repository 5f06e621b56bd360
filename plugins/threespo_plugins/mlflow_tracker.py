"""Copies a run to MLflow: one MLflow run per run, nested under the run of its comparison.

Only the client interface with explicit run ids is used. The module-level ``mlflow.log_*`` functions keep an active run per process and
take ``MLFLOW_RUN_ID`` from the environment, by which runs end up in one another. MLflow is imported on use; that takes about two seconds.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import posixpath
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from filelock import FileLock

from threespo_bench.contracts.tracker import Tracker
from threespo_bench.errors import DataError, UsageError

DATABASE, ARTIFACTS = "mlflow.db", "mlflow-artifacts"
PARAMS_PER_BATCH, METRICS_PER_BATCH = 100, 500
PARAM_LENGTH, NAME_LENGTH = 6000, 250
NON_FINITE = "non_finite"
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
_FORBIDDEN = re.compile(r"[^\w.\- /]")
_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "GIT_PYTHON_REFRESH": "quiet",
}


@dataclass
class MlflowConfig:
    """Options of the tracker.

    Attributes:
        uri: tracking URI; null takes MLFLOW_TRACKING_URI if that is set, else an SQLite file in the runs folder.
        experiment: MLflow experiment; null takes the run's experiment name.
        required: a tracker that cannot start is an error; otherwise the run goes on without it.
        flush_rows, flush_seconds: rows are sent when so many wait, or when the oldest waits so long.
    """

    uri: str | None = None
    experiment: str | None = None
    required: bool = False
    flush_rows: int = 20
    flush_seconds: float = 15.0

    def validate(self) -> None:
        """Raises UsageError naming the key for a value out of range."""
        if self.flush_rows < 1:
            raise UsageError(f"tracker.flush_rows={self.flush_rows} is out of range: must be >= 1")
        if self.flush_seconds < 0:
            raise UsageError(f"tracker.flush_seconds={self.flush_seconds} is out of range: must be >= 0")


class MlflowTracker(Tracker):
    """One MLflow run. A resumed one skips the steps that it has already, metric by metric, so that no step is there twice."""

    Config: ClassVar[type] = MlflowConfig

    def __init__(self, config: MlflowConfig, runs_folder: Path) -> None:
        super().__init__(config, runs_folder)
        self.uri = tracking_uri(config.uri, runs_folder)
        self.run_id = ""
        self._client: Any = None
        self._names: dict[str, str] = {}
        self._waiting: list[Any] = []
        self._rows, self._oldest = 0, 0.0
        self._known: dict[str, int] | None = None

    def start(self, experiment: str, run_name: str, params: dict[str, Any], tags: dict[str, str], parent: str | None, resume: str | None) -> str:
        """See :meth:`Tracker.start`. Raises UsageError for a store that MLflow no longer supports."""
        refuse_file_store(self.uri)
        client = self._client = self._connect()
        if resume and self._exists(resume):
            client.update_run(resume, status="RUNNING")
            self.run_id, self._known = resume, {}
            return resume
        more = {"mlflow.parentRunId": parent} if parent else {}
        created = client.create_run(self._experiment(self.config.experiment or experiment), run_name=run_name, tags={**tags, **more})
        self.run_id = created.info.run_id
        self._log_params(params)
        return self.run_id

    def log(self, metrics: dict[str, float], step: int) -> None:
        """See :meth:`Tracker.log`. Values that are not finite are counted and left out: MLflow would show other numbers in their place."""
        from mlflow.entities import Metric

        lost = sum(1 for value in metrics.values() if value is None or not math.isfinite(value))
        finite = {name: float(value) for name, value in metrics.items() if value is not None and math.isfinite(value)}
        if lost:
            finite[NON_FINITE] = finite.get(NON_FINITE, 0.0) + lost
        now = time.time()
        for name, value in finite.items():
            key = self._name(name)
            if self._known is None or step > self._last_step(key):
                self._waiting.append(Metric(key, value, int(now * 1000), step))
        self._oldest = self._oldest or now
        self._rows += 1
        if self._rows >= self.config.flush_rows or now - self._oldest >= self.config.flush_seconds:
            self.flush()

    def flush(self) -> None:
        """Send what waits. What could not be sent keeps waiting."""
        while self._waiting:
            self._client.log_batch(self.run_id, metrics=self._waiting[:METRICS_PER_BATCH])
            del self._waiting[:METRICS_PER_BATCH]
        self._rows, self._oldest = 0, 0.0

    def artifact(self, path: Path) -> None:
        """See :meth:`Tracker.artifact`; a folder is attached with its files."""
        self._refuse_lost_folder()
        if path.is_dir():
            self._client.log_artifacts(self.run_id, str(path), artifact_path=path.name)
        else:
            self._client.log_artifact(self.run_id, str(path))

    def finish(self, status: str) -> None:
        """See :meth:`Tracker.finish`. The run is closed even if its last rows cannot be sent."""
        try:
            self.flush()
        finally:
            self._client.set_terminated(self.run_id, _STATUS.get(status, "FAILED"))

    def describe(self) -> str:
        """The command, or the address, to look at."""
        if urlsplit(self.uri).scheme in ("http", "https"):
            return self.uri
        return f"mlflow ui --backend-store-uri {self.uri}"

    def _connect(self) -> Any:
        """A client. Processes that start together take turns, because each may be the one that creates the database."""
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        for name in ("alembic", "mlflow.store.db.utils", "mlflow.tracking"):
            logging.getLogger(name).setLevel(logging.WARNING)
        from mlflow.tracking import MlflowClient

        if not self.uri.startswith("sqlite:"):
            return MlflowClient(tracking_uri=self.uri)
        self.runs_folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.runs_folder / ".mlflow.lock", timeout=120):
            client = MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)
            client.search_experiments(max_results=1)
        return client

    def _experiment(self, name: str) -> str:
        """The id of the experiment ``name``, made or brought back if necessary."""
        local = self.uri.startswith("sqlite:")
        location = (self.runs_folder / ARTIFACTS).resolve().as_uri() if local else None
        self.runs_folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.runs_folder / ".mlflow.lock", timeout=120):
            found = self._client.get_experiment_by_name(name)
            if found is None:
                return self._client.create_experiment(name, artifact_location=location)
            if found.lifecycle_stage == "deleted":
                self._client.restore_experiment(found.experiment_id)
            return found.experiment_id

    def _exists(self, run_id: str) -> bool:
        from mlflow.exceptions import MlflowException

        try:
            return self._client.get_run(run_id).info.lifecycle_stage == "active"
        except MlflowException:
            return False

    def _refuse_lost_folder(self) -> None:
        """Raises DataError if the database was moved: it names its artifact folder by an absolute path, which would be made anew in the old place."""
        path = urlsplit(self._client.get_run(self.run_id).info.artifact_uri)
        if path.scheme != "file" or not self.uri.startswith("sqlite:"):
            return
        folder = Path(unquote(path.path)).parent.parent
        if not folder.exists() and folder != (self.runs_folder / ARTIFACTS).resolve():
            raise DataError(f"MLflow keeps the artifacts of this experiment in {folder}, which is gone: only numbers are copied to MLflow")

    def _log_params(self, params: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        entries = [Param(self._name(key), shorten(_text(value))) for key, value in params.items()]
        for part in _parts(entries, PARAMS_PER_BATCH):
            self._client.log_batch(self.run_id, params=part)

    def _last_step(self, key: str) -> int:
        """The last step that the resumed run has of a metric, before this process; -1 if none."""
        assert self._known is not None
        if key not in self._known:
            history = self._client.get_metric_history(self.run_id, key)
            self._known[key] = max((metric.step for metric in history), default=-1)
        return self._known[key]

    def _name(self, name: str) -> str:
        """The name as MLflow takes it; two names that become equal by that are kept apart."""
        if name not in self._names:
            clean = clean_name(name)
            taken = clean in self._names.values()
            self._names[name] = f"{clean[: NAME_LENGTH - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}" if taken else clean
        return self._names[name]


def tracking_uri(configured: str | None, runs_folder: Path) -> str:
    """The configured URI, else MLFLOW_TRACKING_URI, else the SQLite file in the runs folder."""
    chosen = configured or os.environ.get("MLFLOW_TRACKING_URI", "")
    return chosen or f"sqlite:///{(runs_folder / DATABASE).resolve().as_posix()}"


def refuse_file_store(uri: str) -> None:
    """Raises UsageError for a folder as a tracking URI, with the command that turns it into a database."""
    parts = urlsplit(uri)
    if parts.scheme not in ("", "file"):
        return
    folder = parts.path or uri
    raise UsageError(
        f"MLflow no longer takes a folder as tracking URI ({uri})",
        fix=f"convert it with: mlflow migrate-filestore --source {folder} --target sqlite:///mlflow.db, then set "
        "tracker.uri=sqlite:///mlflow.db; or unset MLFLOW_TRACKING_URI to use a new database in the runs folder",
    )


def clean_name(name: str) -> str:
    """``name`` without the characters and path parts that MLflow refuses in names."""
    clean = posixpath.normpath(_FORBIDDEN.sub("_", name)).lstrip("/")
    while clean.startswith(".."):
        clean = clean[2:].lstrip("/")
    return "_" if clean in ("", ".") else clean[:NAME_LENGTH]


def shorten(text: str) -> str:
    """``text`` cut to what MLflow keeps of a parameter; the configuration attached to the run has all of it."""
    mark = " ... (cut; see config.yaml)"
    return text if len(text) <= PARAM_LENGTH else text[: PARAM_LENGTH - len(mark)] + mark


def _text(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _parts(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
