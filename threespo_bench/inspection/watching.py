"""Where a comparison stands at this moment, from its record and its run folders: runs under way, finished ones, and those still to come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from threespo_bench.errors import StorageError
from threespo_bench.experiment_record import RECORD, ExperimentRecord, is_expected
from threespo_bench.inspection.summary import RunSummary, summarise
from threespo_bench.store import CONFIG, find_runs

WAITING, NOT_STARTED = "waiting", "not started"
_ACTIVE = ("running", WAITING)


@dataclass(frozen=True)
class WatchedRun:
    """A run of an experiment. ``summary`` is None as long as it has no folder."""

    name: str
    experiment: str
    state: str
    summary: RunSummary | None = None
    error: str = ""

    @property
    def active(self) -> bool:
        """Whether it is going on or will."""
        return self.state in _ACTIVE


class Watch:
    """Looks at the experiments in a folder again and again. An experiment that was active once stays in view.

    Args:
        folder: a store or an experiment. An experiment is shown whether anything goes on in it or not.

    Raises:
        StorageError: there is no such folder.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise StorageError(f"there is no folder {folder}", fix="give an experiment's folder or a folder of experiments; runs are in ./runs by default")
        if (folder / CONFIG).is_file():
            raise StorageError(f"{folder} is a run", fix=f"watch its experiment, {folder.resolve().parent}; threespo-bench show shows one run")
        self._folder = folder
        self._alone = _is_experiment(folder)
        self._seen: set[Path] = set()

    def look(self) -> list[WatchedRun]:
        """The runs in view, by experiment, in the order of the plans."""
        folders = [self._folder] if self._alone else sorted(path for path in self._folder.iterdir() if path.is_dir() and _is_experiment(path))
        found = {folder: list(_runs(folder)) for folder in folders}
        self._seen |= {folder for folder, runs in found.items() if self._alone or any(run.active for run in runs)}
        return [run for folder, runs in found.items() if folder in self._seen for run in runs]


def _is_experiment(folder: Path) -> bool:
    return (folder / RECORD).is_file() or bool(find_runs(folder))


def _runs(folder: Path) -> Iterable[WatchedRun]:
    record = ExperimentRecord(folder)
    experiment, listed = folder.resolve().name, set()
    for name, row in record.rows().items():
        path = record.run(row)
        if path is not None and (path / CONFIG).is_file():
            listed.add(path.name)
            summary = summarise(path)
            waits = summary.state != "finished" and row.get("state") == "planned" and is_expected(row)  # stopped before, and its turn will come
            yield WatchedRun(name, experiment, WAITING if waits else summary.state, summary, summary.error)
        elif is_expected(row):
            yield WatchedRun(name, experiment, WAITING)
        else:
            state = row.get("state")
            yield WatchedRun(name, experiment, str(state) if state not in ("planned", "running", None) else NOT_STARTED, None, row.get("error") or "")
    for path in find_runs(folder, lambda path: path.name not in listed):
        summary = summarise(path)
        if record.rows() and summary.state != "running":
            continue  # an older run that the plan has replaced
        yield WatchedRun(path.name, experiment, summary.state, summary, summary.error)
