"""Which MLflow it is, and a client of it that gives up soon."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from filelock import FileLock

from threespo_bench.errors import UsageError

DATABASE, ARTIFACTS = "mlflow.db", "mlflow-artifacts"
SQLITE = "sqlite:///"
_ours: dict[str, str] = {}
_databases: dict[str, tuple[int, int]] = {}


def tracking_uri(configured: str | None, runs_folder: Path) -> str:
    """The configured URI, else MLFLOW_TRACKING_URI, else the SQLite file in the runs folder."""
    chosen = configured or os.environ.get("MLFLOW_TRACKING_URI", "")
    return chosen or own_database(runs_folder)


def own_database(runs_folder: Path) -> str:
    """The URI of the SQLite file in the runs folder."""
    return f"{SQLITE}{(runs_folder / DATABASE).resolve().as_posix()}"


def public(uri: str) -> str:
    """``uri`` without user name and password."""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if "@" in parts.netloc else uri


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


def database(uri: str) -> Path | None:
    """The file of an SQLite URI; None for another one."""
    return Path(uri[len(SQLITE) :].partition("?")[0]) if uri.startswith(SQLITE) else None


def identity(file: Path) -> tuple[int, int] | None:
    """What tells a file from another one that was put in its place; None if there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def connect(uri: str, runs_folder: Path, timeout: int, retries: int) -> Any:
    """A client that gives up after ``retries`` further tries of ``timeout`` seconds.

    Processes that start together take turns with an SQLite file, because each may be the one that creates it.
    """
    _settings(timeout, retries)
    from mlflow.tracking import MlflowClient

    file = database(uri)
    if file is None:
        return MlflowClient(tracking_uri=uri)
    runs_folder.mkdir(parents=True, exist_ok=True)
    with FileLock(runs_folder / ".mlflow.lock", timeout=120):
        if uri in _databases and _databases[uri] != identity(file):
            _forget(uri)
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        client.search_experiments(max_results=1)
        found = identity(file)
        if found:
            _databases[uri] = found
    return client


def _settings(timeout: int, retries: int) -> None:
    """MLflow by itself tries for minutes, which would hold up training. What the user has set stays."""
    wanted = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": str(retries),
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(timeout),
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "GIT_PYTHON_REFRESH": "quiet",
    }
    for name, value in wanted.items():
        if os.environ.get(name) in (None, _ours.get(name)):
            os.environ[name] = _ours[name] = value
    for name in ("alembic", "mlflow.store.db.utils", "mlflow.tracking", "urllib3.connectionpool"):
        logging.getLogger(name).setLevel(logging.ERROR if name.startswith("urllib3") else logging.WARNING)


def _forget(uri: str) -> None:
    """Make MLflow open a database anew that was replaced: it keeps one connection per process, which would go on writing to the removed file."""
    with suppress(Exception):  # these are inner parts of MLflow; without them the run is not copied, and `sync` does it later
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
        from mlflow.tracking._tracking_service import utils

        engine = SqlAlchemyStore._engine_map.pop(uri, None)
        if engine is not None:
            engine.dispose()
        utils._tracking_store_registry._get_store_with_resolved_uri.cache_clear()
