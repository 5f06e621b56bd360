"""The run folder: everything a run measured and everything needed to continue it. The source of truth for reports.

    <out>/<experiment>/<run>/
      config.yaml      the resolved configuration
      manifest.json    what was run: versions, digests, machine
      status.json      where it stands and how it ended
      metrics.jsonl    one row per training iteration and evaluation; equal runs give equal bytes
      timings.jsonl    the same rows' wall-clock seconds and memory
      states.json      what became of a few states, if the algorithm tells (3SPO)
      turns/           recorded turns, if asked for
      checkpoints/     the newest complete checkpoints
      curve.png        the learning curve
      tracking.json    which trackers have a copy of the run
      events.log       what happened, for people

A folder holds no path of its own, so it can be moved. While a run works on it, it is locked.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from threespo_bench.atomic import storage_errors, write_json, write_text
from threespo_bench.checkpointing import Checkpoints
from threespo_bench.errors import StorageError
from threespo_bench.rows import RowFile
from threespo_bench.turns import TurnBatch

CONFIG, MANIFEST, STATUS = "config.yaml", "manifest.json", "status.json"
METRICS, TIMINGS, EVENTS, CURVE, STATES = "metrics.jsonl", "timings.jsonl", "events.log", "curve.png", "states.json"
_LOCK = ".lock"
_LOOK_SECONDS = 0.3  # whoever asks whether a run is locked holds the lock for a moment
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class RunStore:
    """One run folder, open for writing and locked. Use as a context manager, or call :meth:`close`."""

    def __init__(self, path: Path, lock: FileLock) -> None:
        self.path, self._lock = path, lock
        self.metrics = RowFile(path / METRICS)
        self.timings = RowFile(path / TIMINGS)
        self.checkpoints = Checkpoints(path / "checkpoints")

    @classmethod
    def create(cls, out: Path, experiment: str, name: str) -> RunStore:
        """Make a new run folder, ``name`` or else ``name-2``, ``name-3`` ...; two processes never get the same one."""
        parent = out / safe_name(experiment)
        with storage_errors(f"create a run folder in {parent}"):
            parent.mkdir(parents=True, exist_ok=True)
            path = _allocate(parent, safe_name(name))
            for folder in ("turns", "checkpoints"):
                (path / folder).mkdir()
        return cls(path, _acquire(path))

    @classmethod
    def open(cls, path: Path) -> RunStore:
        """Open an existing run folder to continue it.

        Raises:
            StorageError: it is no run folder, or another process works on it.
        """
        if not (path / CONFIG).is_file():
            raise StorageError(f"{path} is not a run folder: it has no {CONFIG}")
        return cls(path.resolve(), _acquire(path))

    def close(self) -> None:
        """Unlock."""
        self._lock.release()

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Replace the configuration, given as plain data."""
        write_text(self.path / CONFIG, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Replace the manifest."""
        write_json(self.path / MANIFEST, manifest)

    def write_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Replace the case study of the run's states."""
        write_json(self.path / STATES, list(states))

    def update_status(self, **changes: Any) -> None:
        """Change the named fields of the status."""
        write_json(self.path / STATUS, read_status(self.path) | changes)

    def event(self, text: str) -> None:
        """Add a line (or a traceback) with the time to the log. Never fails: the log is for people and nothing depends on it."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        try:
            with open(self.path / EVENTS, "a", encoding="utf-8") as file:
                file.write(f"{stamp} {text}\n")
        except OSError:
            return

    def save_turns(self, iteration: int, number: int, turns: TurnBatch) -> None:
        """Record the ``number``-th batch of an iteration."""
        final = self.path / "turns" / f"{iteration:06d}-{number:03d}.parquet"
        temporary = final.with_suffix(".tmp")
        with storage_errors(f"record the turns of iteration {iteration}"):
            try:
                turns.save(temporary)
                os.replace(temporary, final)
            finally:
                temporary.unlink(missing_ok=True)

    def rewind(self, metrics: int, timings: int, iteration: int) -> int:
        """Go back to a checkpoint: keep so many rows, and no turns or checkpoints of later iterations. Returns how many metric rows were set aside."""
        self.timings.cut(timings)
        moved = self.metrics.cut(metrics)
        self.checkpoints.forget_after(iteration)
        self.checkpoints.clean()
        with storage_errors("remove turns after the checkpoint"):
            for path in (self.path / "turns").glob("*"):
                number = path.name.partition("-")[0]
                if number.isdigit() and int(number) >= iteration:
                    path.unlink()
        return moved


def read_config(path: Path) -> dict[str, Any]:
    """The configuration of the run in ``path`` as plain data. Raises StorageError."""
    try:
        config = yaml.safe_load((path / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise StorageError(f"{path / CONFIG} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise StorageError(f"{path / CONFIG} is not a configuration")
    return config


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of the run in ``path``; empty if there is none. Raises StorageError if it is damaged."""
    return _read_json(path / MANIFEST)


def read_status(path: Path) -> dict[str, Any]:
    """The status of the run in ``path``; empty if there is none. Raises StorageError if it is damaged."""
    return _read_json(path / STATUS)


def run_state(path: Path) -> str:
    """``running``, ``finished``, ``failed`` or ``interrupted``; the last also for a run whose process was killed, ``none`` without a status."""
    state = read_status(path).get("state", "none")
    return "interrupted" if state == "running" and not is_locked(path) else state


def is_locked(path: Path) -> bool:
    """Whether a process works on the run in ``path`` now."""
    lock = _lock(path)
    try:
        lock.acquire()
    except Timeout:
        return True
    except OSError:
        return False
    lock.release()
    return False


def find_runs(folder: Path, keep: Callable[[Path], bool] = lambda path: True) -> list[Path]:
    """The run folders directly in ``folder``, sorted by name."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if (path / CONFIG).is_file() and keep(path))


def safe_name(name: str) -> str:
    """``name`` as one component of a path: other characters than letters, digits, dot, underscore and hyphen become hyphens."""
    return _UNSAFE.sub("-", name).strip("-.") or "run"


def free_run_path(out: Path, experiment: str, name: str) -> Path:
    """The folder that :meth:`RunStore.create` would make now."""
    return next(path for path in _candidates(out / safe_name(experiment), safe_name(name)) if not path.exists())


def _candidates(parent: Path, name: str) -> Iterator[Path]:
    """``name``, ``name-2``, ``name-3`` ..."""
    yield parent / name
    yield from (parent / f"{name}-{number}" for number in count(2))


def _allocate(parent: Path, name: str) -> Path:
    for path in _candidates(parent, name):
        with suppress(FileExistsError):
            path.mkdir()
            return path.resolve()
    raise AssertionError("there is always another number")


def _lock(path: Path) -> FileLock:
    return FileLock(path / _LOCK, timeout=0, thread_local=False)


def _acquire(path: Path) -> FileLock:
    lock = _lock(path)
    with storage_errors(f"lock {path}"):
        try:
            lock.acquire(timeout=_LOOK_SECONDS, poll_interval=0.02)
        except Timeout:  # an OSError, too
            status = read_status(path)
            owner = f"process {status['pid']}" if "pid" in status else "another process"
            raise StorageError(f"the run in {path} is locked: {owner} works on it", fix="wait for it, or stop it first") from None
    return lock


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise StorageError(f"{path} cannot be read: {error}") from error
