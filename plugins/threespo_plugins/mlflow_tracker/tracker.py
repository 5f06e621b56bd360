"""The tracker itself: opening or finding the MLflow run, and sending in batches what it has not got."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from filelock import FileLock

from threespo_bench.contracts.tracker import RUN_TAG, TaskSet, Tracker
from threespo_bench.errors import DataError, UsageError
from threespo_plugins.mlflow_tracker import connection
from threespo_plugins.mlflow_tracker.names import CHANGES, PARAM_LENGTH, Changes, batches, shorten, text_of
from threespo_plugins.mlflow_tracker.points import Points

METRICS_PER_BATCH = 500
NON_FINITE = "non_finite"
PARENT, NOTE, REPLACES = "mlflow.parentRunId", "mlflow.note.content", "threespo_bench.replaces"
_DIGEST_LENGTH = 36  # all that MLflow takes of a digest
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED", "running": "RUNNING"}


@dataclass
class MlflowConfig:
    """Options of the tracker.

    Attributes:
        uri: tracking URI; null takes MLFLOW_TRACKING_URI if that is set, else an SQLite file in the runs folder.
        experiment: MLflow experiment; null takes the run's experiment name.
        required: a tracker that cannot start is an error; otherwise the run goes on without it.
        flush_rows, flush_seconds: rows are sent when so many wait, or when the oldest waits so long.
        timeout_seconds: how long a server may take to answer. retries: further tries after that.
    """

    uri: str | None = None
    experiment: str | None = None
    required: bool = False
    flush_rows: int = 20
    flush_seconds: float = 15.0
    timeout_seconds: int = 10
    retries: int = 1

    def validate(self) -> None:
        """Raises UsageError naming the key for a value out of range."""
        limits = {"flush_rows": 1, "flush_seconds": 0, "timeout_seconds": 1, "retries": 0}
        for name, least in limits.items():
            if getattr(self, name) < least:
                raise UsageError(f"tracker.{name}={getattr(self, name)} is out of range: must be >= {least}")


class MlflowTracker(Tracker):
    """One MLflow run. One that is gone on with gets the points only that it has not got, so that nothing is there twice."""

    Config: ClassVar[type] = MlflowConfig
    can_sync: ClassVar[bool] = True

    def __init__(self, config: MlflowConfig, runs_folder: Path) -> None:
        super().__init__(config, runs_folder)
        self.uri = connection.tracking_uri(config.uri, runs_folder)
        self.run_id = ""
        self.changes = Changes()
        self._client: Any = None
        self._database: tuple[int, int] | None = None
        self._known: Points | None = None
        self._waiting: list[Any] = []
        self._rows, self._oldest = 0, 0.0
        self._told: dict[str, str] = {}

    def start(self, experiment: str, run_name: str, params: dict[str, Any], tags: dict[str, str], parent: str | None, resume: str | None) -> str:
        """See :meth:`Tracker.start`. Raises UsageError for a store that MLflow no longer supports."""
        client = self._connect()
        tags = tags | ({PARENT: parent} if parent else {})
        found = None
        if resume is not None:
            found = self._run(resume) or self._tagged(experiment, tags.get(RUN_TAG))
        if found is not None:
            self._go_on(found, tags)
        else:
            if resume:
                tags |= {REPLACES: resume, NOTE: f"The run {resume} that this one was first copied to is gone; this one has all rows from the beginning."}
            began = None if self.began is None else int(self.began * 1000)
            found = client.create_run(self._experiment(self.config.experiment or experiment), start_time=began, run_name=run_name, tags=tags)
        self.run_id = found.info.run_id
        self._log_params(params, found.data.params)
        return self.run_id

    def log(self, metrics: dict[str, float], step: int) -> None:
        """See :meth:`Tracker.log`."""
        self.log_at(metrics, step, None)

    def log_at(self, metrics: dict[str, float], step: int, when: float | None) -> None:
        """See :meth:`Tracker.log_at`. Values that are not finite are counted and left out: MLflow would show other numbers in their place."""
        from mlflow.entities import Metric

        finite = {name: float(value) for name, value in metrics.items() if value is not None and math.isfinite(value)}
        lost = [name for name in metrics if name not in finite]
        self.changes.lost.update(lost)
        if lost and not any(name.rpartition("/")[2] == NON_FINITE for name in finite):
            finite[NON_FINITE] = float(len(lost))
        now = time.time()
        stamp = int((now if when is None else when) * 1000)
        for name, value in finite.items():
            key = self.changes.metrics(name)
            if self._known is None or not self._known.take(key, step, value):
                self._waiting.append(Metric(key, value, stamp, step))
        self._oldest = self._oldest or now
        self._rows += 1
        if self._rows >= self.config.flush_rows or now - self._oldest >= self.config.flush_seconds:
            self.flush()

    def flush(self) -> None:
        """Send what waits. What could not be sent keeps waiting."""
        self._refuse_lost_database()
        while self._waiting:
            part = self._waiting[:METRICS_PER_BATCH]
            self._client.log_batch(self.run_id, metrics=part)
            self.sent += len(part)
            del self._waiting[:METRICS_PER_BATCH]
        self._tell_changes()
        self._rows, self._oldest = 0, 0.0

    def inputs(self, tasks: Sequence[TaskSet]) -> None:
        """See :meth:`Tracker.inputs`: MLflow's datasets."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        there = {(known.dataset.name, known.dataset.digest) for known in self._client.get_run(self.run_id).inputs.dataset_inputs}
        made = [
            DatasetInput(
                Dataset(name=item.name, digest=item.digest[:_DIGEST_LENGTH], source_type="threespo-bench", source=json.dumps(dict(item.source))),
                [InputTag("mlflow.data.context", item.context)],
            )
            for item in tasks
            if (item.name, item.digest[:_DIGEST_LENGTH]) not in there
        ]
        if made:
            self._client.log_inputs(self.run_id, datasets=made)

    def artifact(self, path: Path) -> None:
        """See :meth:`Tracker.artifact`."""
        self._refuse_lost_database()
        self._refuse_lost_folder()
        if path.is_dir():
            self._client.log_artifacts(self.run_id, str(path), artifact_path=path.name)
        else:
            self._client.log_artifact(self.run_id, str(path))

    def finish(self, status: str) -> None:
        """See :meth:`Tracker.finish`. The run is closed even if its last rows cannot be sent."""
        try:
            self.flush()
            if not self.changes.tags()[1]:
                self._client.log_dict(self.run_id, self.changes.everything(), CHANGES)
        finally:
            if self._database is None or connection.identity(connection.database(self.uri) or Path()) == self._database:
                ended = None if self.ended is None else int(self.ended * 1000)
                self._client.set_terminated(self.run_id, _STATUS.get(status, "FAILED"), ended)

    def target(self) -> str:
        """See :meth:`Tracker.target`."""
        return "store" if self.uri == connection.own_database(self.runs_folder) else connection.public(self.uri)

    def check(self) -> None:
        """See :meth:`Tracker.check`."""
        self._connect().search_experiments(max_results=1)

    def holds(self, run_id: str, parent: str | None) -> bool:
        """See :meth:`Tracker.holds`. No database is made for it."""
        file = connection.database(self.uri)
        if file is not None and not file.exists():
            return False
        self._connect()
        run = self._run(run_id)
        return run is not None and (parent is None or run.data.tags.get(PARENT) == parent)

    def describe(self) -> str:
        """The command, or the address, to look at."""
        if urlsplit(self.uri).scheme in ("http", "https"):
            return connection.public(self.uri)
        return f"mlflow ui --backend-store-uri {self.uri}"

    def _connect(self) -> Any:
        connection.refuse_file_store(self.uri)
        if self._client is None:
            self._client = connection.connect(self.uri, self.runs_folder, self.config.timeout_seconds, self.config.retries)
            file = connection.database(self.uri)
            self._database = connection.identity(file) if file else None
        return self._client

    def _experiment(self, name: str) -> str:
        """The id of the experiment ``name``, made or brought back if necessary."""
        from mlflow.exceptions import MlflowException

        location = (self.runs_folder / connection.ARTIFACTS).resolve().as_uri() if self._database else None
        self.runs_folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.runs_folder / ".mlflow.lock", timeout=120):
            found = self._client.get_experiment_by_name(name)
            if found is None:
                try:
                    return self._client.create_experiment(name, artifact_location=location)
                except MlflowException:  # a process on another machine may have made it in between
                    found = self._client.get_experiment_by_name(name)
                    if found is None:
                        raise
            if found.lifecycle_stage == "deleted":
                self._client.restore_experiment(found.experiment_id)
            return found.experiment_id

    def _run(self, run_id: str) -> Any:
        """The run of that id; None if there is none (any more)."""
        from mlflow.exceptions import MlflowException

        if not run_id:
            return None
        try:
            run = self._client.get_run(run_id)
        except MlflowException as error:
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return None
            raise
        return run if run.info.lifecycle_stage == "active" else None

    def _tagged(self, experiment: str, tag: str | None) -> Any:
        """The run with that :data:`RUN_TAG`; of several, which only a connection that broke can have left, the first."""
        found = self._client.get_experiment_by_name(self.config.experiment or experiment) if tag else None
        if found is None:
            return None
        runs = self._client.search_runs([found.experiment_id], f"tags.`{RUN_TAG}` = '{tag}'", order_by=["attributes.start_time ASC"], max_results=1)
        return self._client.get_run(runs[0].info.run_id) if runs else None

    def _go_on(self, run: Any, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        self._known = Points(self._client, run)
        changed = [RunTag(name, value) for name, value in tags.items() if run.data.tags.get(name) != value]
        if changed:
            self._client.log_batch(run.info.run_id, tags=changed)
        self._client.update_run(run.info.run_id, status="RUNNING")

    def _log_params(self, params: Mapping[str, Any], there: Mapping[str, str]) -> None:
        """Send the parameters that the run has not got. MLflow never changes one; what has another value now is told in a tag."""
        from mlflow.entities import Param

        entries = []
        for name, value in params.items():
            key, text = self.changes.params(name), text_of(value)
            if len(text) > PARAM_LENGTH:
                self.changes.cut[name] = len(text)
            if key not in there:
                entries.append(Param(key, shorten(text)))
            elif there[key] != shorten(text):
                self.changes.kept[name] = shorten(text)[:200]
        for part in batches(entries):
            self._client.log_batch(self.run_id, params=part)
            self.sent += len(part)
        self._tell_changes()

    def _tell_changes(self) -> None:
        from mlflow.entities import RunTag

        tags, _ = self.changes.tags()
        news = {name: text for name, text in tags.items() if self._told.get(name) != text}
        if news:
            self._client.log_batch(self.run_id, tags=[RunTag(name, text) for name, text in news.items()])
            self._told |= news

    def _refuse_lost_database(self) -> None:
        """Raises DataError if the SQLite file was removed or replaced: the open connection would go on writing to what nobody can read."""
        file = connection.database(self.uri)
        if file is not None and connection.identity(file) != self._database:
            raise DataError(f"the MLflow database {file} was removed or replaced", fix="threespo-bench sync copies the run anew")

    def _refuse_lost_folder(self) -> None:
        """Raises DataError if the database was moved: it names its artifact folder by an absolute path, which would be made anew in the old place."""
        path = urlsplit(self._client.get_run(self.run_id).info.artifact_uri)
        if path.scheme != "file" or self._database is None:
            return
        folder = Path(unquote(path.path)).parent.parent
        if not folder.exists() and folder != (self.runs_folder / connection.ARTIFACTS).resolve():
            raise DataError(f"MLflow keeps the artifacts of this experiment in {folder}, which is gone: only numbers are copied to MLflow")
