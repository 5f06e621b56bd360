"""Sending recorded runs and comparisons to a tracker: from their folders alone, as often as one likes, only what is missing there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, fields
from itertools import groupby
from pathlib import Path
from typing import Any

from threespo_bench import tracked_comparison
from threespo_bench.config.defaults import config_class
from threespo_bench.config.plain import flatten
from threespo_bench.contracts.tracker import RUN_TAG, TaskSet, Tracker
from threespo_bench.errors import BenchError, DataError, StorageError, TrackerError, UsageError
from threespo_bench.experiment_record import RECORD, ExperimentRecord
from threespo_bench.host import PluginHost
from threespo_bench.store import CONFIG, CURVE, MANIFEST, RunStore, find_runs, is_locked, read_config, read_manifest, read_status
from threespo_bench.tracked import points, tags_of, task_sets, time_of
from threespo_bench.tracking_record import Copy, TrackingRecord, comparison_content, key_of, run_content

Point = tuple[dict[str, float], int, float | None]


@dataclass(frozen=True)
class Sent:
    """What became of a run or a comparison.

    Attributes:
        path: its folder. what: ``sent``, ``complete`` (the tracker had it all), ``to send`` (of a dry run), ``locked``, ``failed`` or ``unreadable``.
        values: how many values were sent. note: one line about a failure, or about what could not be sent. where: how to look at it.
    """

    path: Path
    what: str
    values: int = 0
    note: str = ""
    where: str = ""


@dataclass
class _Item:
    """A run or a comparison as a tracker gets it."""

    folder: Path
    config: Mapping[str, Any]
    experiment: str
    name: str
    params: dict[str, Any]
    tags: dict[str, str]
    state: str
    content: str
    files: tuple[Path, ...]
    tasks: list[TaskSet] = field(default_factory=list)
    points: Iterable[Point] = ()
    began: float | None = None
    ended: float | None = None
    earlier: str = ""


class Synchronisation:
    """Sends the chosen runs, those of a comparison under its own run.

    Args:
        default: the tracker of runs whose own tracker cannot be sent to later. uri: the address; by default what the run or the environment says.
        dry: only look.

    Raises:
        UsageError: the tracker takes no address. TrackerError: it cannot be reached.
    """

    def __init__(self, host: PluginHost, default: str, uri: str | None = None, *, dry: bool = False) -> None:
        self._host, self._default, self._uri, self._dry = host, default, uri, dry
        self._reached: set[str] = set()

    def __call__(self, runs: Sequence[Path]) -> Iterator[Sent]:
        """What became of one after the other: each comparison, then its chosen runs."""
        for experiment, group in groupby(_sorted(runs), key=lambda path: path.parent):
            parent = None
            if (experiment / RECORD).is_file():
                sent, parent = self._one(experiment, experiment.parent, _comparison, None)
                yield sent
            for path in group:
                yield self._run(path, parent)

    @staticmethod
    def count(runs: Sequence[Path]) -> int:
        """How many it will be."""
        return len(_sorted(runs)) + sum((folder / RECORD).is_file() for folder in {path.parent for path in _sorted(runs)})

    def _run(self, path: Path, parent: str | None) -> Sent:
        """Locked meanwhile, so that nobody goes on with it."""
        if is_locked(path):
            return Sent(path, "locked")
        with ExitStack() as stack:
            try:
                stack.enter_context(RunStore.open(path))
            except StorageError as error:
                return Sent(path, "unreadable", note=str(error))
            return self._one(path, path.parent.parent, _run, parent)[0]

    def _one(self, folder: Path, store: Path, read: Callable[[Path], _Item], parent: str | None) -> tuple[Sent, str | None]:
        """Send one, and the tracker's id of it."""
        try:
            item = read(folder)
            tracker, name = self._tracker(item, store)
        except (StorageError, DataError, ValueError, KeyError, TypeError, AttributeError) as error:  # files that somebody edited or damaged
            return Sent(folder, "unreadable", note=_line(error)), None
        if not self._dry:
            self._reach(tracker)
        try:
            return self._send(item, tracker, key_of(name, tracker.target()), parent)
        except StorageError as error:
            return Sent(folder, "unreadable", note=_line(error)), None
        except Exception as error:  # whatever a tracking tool raises
            self._reached.clear()
            self._reach(tracker)  # if that answers, it is about this run alone
            return Sent(folder, "failed", tracker.sent, _line(error)), None

    def _send(self, item: _Item, tracker: Tracker, key: str, parent: str | None) -> tuple[Sent, str | None]:
        record = TrackingRecord(item.folder)
        copy = record.copy(key)
        if copy and copy.run and copy.complete and copy.content == item.content and tracker.holds(copy.run, parent):
            return Sent(item.folder, "complete", where=tracker.describe()), copy.run
        if self._dry:
            there = copy.run if copy else None
            return Sent(item.folder, "to send", note="a part of it is there" if there and tracker.holds(there, None) else ""), there
        known = (copy.run if copy else "" if record.known() else item.earlier) or ""
        tracker.began, tracker.ended = item.began, item.ended
        run = tracker.start(item.experiment, item.name, item.params, item.tags | {RUN_TAG: record.id}, parent, known)
        record.write(key, Copy(run))
        tracker.inputs(item.tasks)
        for metrics, step, when in item.points:
            tracker.log_at(metrics, step, when)
        note = _attach(tracker, item.files)
        tracker.finish(item.state)
        record.write(key, Copy(run, item.content, complete=True))
        return Sent(item.folder, "sent", tracker.sent, note, tracker.describe()), run

    def _tracker(self, item: _Item, store: Path) -> tuple[Tracker, str]:
        """A new connection, with the run's own options if it is the run's own tracker."""
        section = item.config.get("tracker") or {}
        name = str(section.get("name") or "")
        own = name in self._host.names("trackers") and getattr(self._host.find("trackers", name).load(), "can_sync", False)
        contribution = self._host.find("trackers", name if own else self._default)
        known = {f.name for f in fields(config_class(contribution))}
        options = {key: value for key, value in (section.get("options") or {}).items() if own and key in known}
        if self._uri is not None:
            if "uri" not in known:
                raise UsageError(f"the tracker {contribution.name} has no address to choose", fix="leave --uri out")
            options["uri"] = self._uri
        made = contribution.load()
        return made(made.Config(**options), store), contribution.name

    def _reach(self, tracker: Tracker) -> None:
        """Raises TrackerError if nothing answers there; asked once for every address."""
        target = f"{tracker.target()} {tracker.runs_folder}"
        if target in self._reached:
            return
        try:
            tracker.check()
        except BenchError:
            raise
        except Exception as error:
            place = tracker.target() if tracker.target() != "store" else f"MLflow database in {tracker.runs_folder}"
            fix = "nothing is lost: the same command sends it when the server is back"
            raise TrackerError(f"{place} cannot be reached: {_line(error)}", fix) from error
        self._reached.add(target)


def _sorted(runs: Iterable[Path]) -> list[Path]:
    """By comparison and name, each once."""
    return sorted({path.resolve() for path in runs}, key=lambda path: (path.parent, path.name))


def _run(path: Path) -> _Item:
    config, manifest, status = read_config(path), read_manifest(path), read_status(path)
    state = "interrupted" if status.get("state", "running") == "running" else str(status["state"])  # a process that was killed says nothing
    return _Item(
        folder=path,
        config=config,
        experiment=str(config.get("experiment") or path.parent.name),
        name=path.name,
        params=flatten(config),
        tags=tags_of(config),
        state=state,
        content=run_content(path, state),
        files=(path / CONFIG, path / MANIFEST, path / CURVE),
        tasks=task_sets(config, manifest),
        points=points(path, manifest),
        began=time_of(manifest.get("incidental", {}).get("started")),
        ended=time_of(status.get("ended")),
        earlier=str(status.get("tracker_run") or ""),
    )


def _comparison(folder: Path) -> _Item:
    record = ExperimentRecord(folder)
    rows, runs = record.rows(), find_runs(folder)
    configs = _readable(read_config, runs)
    if not configs:
        raise DataError(f"{folder} has no runs that can be read")
    manifests, statuses = _readable(read_manifest, runs), _readable(read_status, runs)
    states = {str(row.get("state")) for row in rows.values()}
    began = [time for manifest in manifests if (time := time_of(manifest.get("incidental", {}).get("started"))) is not None]
    ended = [time for status in statuses if (time := time_of(status.get("ended"))) is not None]
    experiment = str(configs[0].get("experiment") or folder.name)
    return _Item(
        folder=folder,
        config=configs[0],
        experiment=experiment,
        name=tracked_comparison.name_of(experiment),
        params=tracked_comparison.params_of([flatten(config) for config in configs]),
        tags={"kind": "comparison"},
        state="failed" if "failed" in states else "finished" if states <= {"finished"} else "interrupted",
        content=comparison_content(folder / tracked_comparison.REPORT, rows),
        files=(folder / tracked_comparison.REPORT,),
        began=min(began, default=None),
        ended=max(ended, default=None),
        earlier=str(record.read().get("tracker_run") or ""),
    )


def _readable(read: Callable[[Path], dict[str, Any]], runs: Iterable[Path]) -> list[dict[str, Any]]:
    """What ``read`` finds in those runs that are not damaged; a damaged one is told of in its own line."""
    found = []
    for path in runs:
        with suppress(StorageError):
            found.append(read(path))
    return found


def _attach(tracker: Tracker, files: Iterable[Path]) -> str:
    """Attach what is there; a line about why the files could not be, which is no reason to leave the numbers out."""
    try:
        for file in files:
            if file.exists():
                tracker.artifact(file)
    except DataError as error:
        return str(error)
    return ""


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text[:300] if isinstance(error, BenchError) else f"{type(error).__name__}: {text}"[:300]
