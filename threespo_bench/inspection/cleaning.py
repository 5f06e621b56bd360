"""What of a store can go: runs that came to nothing, and checkpoints that are no longer needed. A run that is being worked on is never touched."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from threespo_bench.atomic import storage_errors
from threespo_bench.errors import StorageError
from threespo_bench.inspection.summary import RunSummary
from threespo_bench.store import RunStore, is_locked, read_status

CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Removal:
    """Something that can be removed: a run, or checkpoints of one. ``paths`` go, which hold ``size`` bytes."""

    run: RunSummary
    what: str
    paths: tuple[Path, ...]
    size: int


def removable_runs(runs: Iterable[RunSummary], states: Iterable[str]) -> Iterator[Removal]:
    """The runs in one of ``states`` (failed, interrupted) that nobody works on."""
    wanted = set(states) & {"failed", "interrupted"}
    for run in runs:
        if run.state in wanted and not is_locked(run.path):
            yield Removal(run, f"the {run.state} run", (run.path,), _size(run.path))


def removable_checkpoints(runs: Iterable[RunSummary], keep: int) -> Iterator[Removal]:
    """Checkpoints but the newest ``keep``, and what killed writers left. A run that is not finished keeps its newest one, or it could not go on."""
    for run in runs:
        if run.state not in ("finished", "failed", "interrupted") or is_locked(run.path):
            continue
        folder = run.path / CHECKPOINTS
        complete = sorted(path for path in folder.glob("iteration-*") if path.is_dir())
        stay = keep if run.state == "finished" else max(keep, 1)
        old = (*complete[: len(complete) - stay], *sorted(folder.glob(".writing-*")))
        if old:
            yield Removal(run, f"{len(old)} of {len(complete)} checkpoints", old, sum(_size(path) for path in old))


def remove(removal: Removal) -> bool:
    """Do it, unless somebody has begun to work on the run or its state has changed. Returns whether it was done. Raises StorageError."""
    try:
        store = RunStore.open(removal.run.path)
    except StorageError:
        return False
    with store:
        if read_status(store.path).get("state") == "finished" and removal.run.state != "finished":
            return False
        with storage_errors(f"remove {removal.what} in {removal.run.path}"):
            for path in removal.paths:
                shutil.rmtree(path)
    return True


def _size(path: Path) -> int:
    total = 0
    for file in path.rglob("*"):
        with suppress(OSError):
            total += file.lstat().st_size if not file.is_dir() else 0
    return total
