"""One run from start to end: build, train, record, finish. A failure becomes a recorded outcome; a kill leaves a run that can be resumed."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from threespo_bench import manifest as manifests
from threespo_bench.assembly import build, run_name, warnings
from threespo_bench.budget import Budget, Limits, Spent
from threespo_bench.checkpointing import SavedCheckpoint
from threespo_bench.config.plain import flatten, from_plain, to_plain
from threespo_bench.config.schema import RunConfig
from threespo_bench.contracts.tracker import RUN_TAG
from threespo_bench.errors import DataError, Interrupted, StorageError, UsageError, suggest
from threespo_bench.host import PluginHost
from threespo_bench.interruption import StopRequest, Watchdog
from threespo_bench.outcome import Outcome, failure, read_outcome, successes
from threespo_bench.recorder import NoProgress, Progress, Recorder
from threespo_bench.reporting import draw_curve
from threespo_bench.store import CONFIG, CURVE, MANIFEST, RunStore, read_config, read_manifest, read_status
from threespo_bench.tracked import tags_of, task_sets
from threespo_bench.tracking import SafeTracker
from threespo_bench.tracking_record import Copy, TrackingRecord, key_of, run_content
from threespo_bench.training import TrainingRun, train


def run(config: RunConfig, host: PluginHost, *, progress: Progress | None = None, parent_tracker_run: str | None = None, name: str | None = None) -> Outcome:
    """Start a new run and see it to its end.

    Args:
        parent_tracker_run: id of the comparison's run in the tracker. name: of the run folder; made from the configuration by default.

    Returns:
        The outcome; failures after the run folder was made are in it and not raised.

    Raises:
        BenchError: the run could not be built, so there is no run folder.
    """
    training = build(config, host)
    try:
        description = manifests.describe(training, host)
        with RunStore.create(Path(config.out), config.experiment, name or run_name(host, config)) as store:
            _describe(store, config, description, parent_tracker_run)
            return _Session(training, store, host, progress or NoProgress()).go(_fresh)
    finally:
        training.close()


def resume(
    path: Path,
    host: PluginHost,
    *,
    budget: Mapping[str, int | None] | None = None,
    progress: Progress | None = None,
    parent_tracker_run: str | None = None,
) -> Outcome:
    """Continue a run from its newest complete checkpoint, exactly as if it had not been stopped.

    Args:
        budget: limits to replace, e.g. ``{"env_steps": 200_000}``; nothing else of a run can be changed.
        parent_tracker_run: id of the comparison's run in the tracker, if it is another one now.

    Raises:
        StorageError: no run folder, locked, or without a usable checkpoint.
        UsageError, DataError: the run cannot be continued with these plugins, data or limits.
    """
    with RunStore.open(Path(path)) as store:
        saved = read_config(store.path)
        config = from_plain(saved, host)
        extended = _replace_limits(config, budget or {})
        spent = _spent(store)
        if Budget(config.budget, spent).exhausted():
            if read_status(store.path).get("state") == "finished":
                return read_outcome(store.path, nothing_to_do=True)
            if extended:
                raise UsageError(f"the run has already spent more than the new budget: {_spent_text(spent, config.budget)}")
        config.out, config.experiment = str(store.path.parent.parent), store.path.parent.name  # the folder may have been moved
        checkpoint = store.checkpoints.newest(lambda line: _tell(store, progress, line))
        if checkpoint is not None:
            host.find("engines", config.engine.name).load().check_checkpoint(config.engine.options, checkpoint.folder / "learner")
        training = build(config, host)
        try:
            session = _Session(training, store, host, progress or NoProgress())
            description = _continued(read_manifest(store.path), manifests.describe(training, host), session.say)
            store.update_status(state="running", pid=os.getpid(), error=None, fix="", ended=None)
            if parent_tracker_run:
                store.update_status(parent_tracker_run=parent_tracker_run)
            store.write_manifest(description)
            if extended:
                store.write_config(saved | {"budget": asdict(config.budget)})
            return session.go(_Restore(checkpoint, extended))
        finally:
            training.close()


def _tell(store: RunStore, progress: Progress | None, text: str) -> None:
    store.event(text)
    if progress is not None:
        progress.message(text)


def _describe(store: RunStore, config: RunConfig, description: Mapping[str, Any], parent_tracker_run: str | None) -> None:
    """Write what makes a folder a run, the configuration last; on a full disk nothing is left behind."""
    try:
        store.update_status(state="running", pid=os.getpid(), parent_tracker_run=parent_tracker_run)
        store.write_manifest(description)
        store.write_config(to_plain(config))
    except StorageError:
        shutil.rmtree(store.path, ignore_errors=True)
        raise


Preparation = Callable[[Recorder], None]


def _fresh(recorder: Recorder) -> None:
    """A new run starts as it was built."""


@dataclass
class _Restore:
    """Puts a run back to a checkpoint, or to its beginning if none was ever written."""

    checkpoint: SavedCheckpoint | None
    extended: bool

    def __call__(self, recorder: Recorder) -> None:
        if self.checkpoint is None:
            recorder.rewind(0)
            return
        recorder.restore(self.checkpoint)
        if self.extended:
            recorder.drop_final_evaluation()


class _Session:
    """One process's work on one run."""

    def __init__(self, training: TrainingRun, store: RunStore, host: PluginHost, progress: Progress) -> None:
        self.training, self.store, self.host, self.progress = training, store, host, progress
        config = training.config
        store.checkpoints.keep = config.checkpoint.keep
        tracker = host.find("trackers", config.tracker.name)
        self.tracker = SafeTracker(lambda: tracker.load()(config.tracker.options, store.path.parent.parent), self.say)
        self.tracking = TrackingRecord(store.path)
        self._tracking_key = key_of(config.tracker.name, self.tracker.target())
        self.watchdog = Watchdog(self.say, self._where, limit=config.rollout.options.stall_seconds)
        self.recorder = Recorder(training, store, self.tracker, progress, self.watchdog)

    def say(self, text: str) -> None:
        """Tell the user, and write it down."""
        _tell(self.store, self.progress, text)

    def go(self, prepare: Preparation) -> Outcome:
        """Prepare, train, finish. Whatever happens, the status says so, the tracker is closed and the outcome returned."""
        state, error = "failed", None
        try:
            resumed = prepare is not _fresh
            prepare(self.recorder)
            self._start_tracker(resumed)
            self.recorder.connect()
            for line in warnings(self.training.config, self.training):
                self.say(line)
            self.store.event(f"process {os.getpid()} {'goes on after' if resumed else 'starts at'} iteration {self.training.iteration}")
            state = "finished" if self._train() else "interrupted"
        except KeyboardInterrupt:
            state = "interrupted"
        except (Exception, SystemExit) as caught:
            error = caught
            self.store.event(traceback.format_exc())
        finally:
            self.progress.stop()
        return self._finish(state, error)

    def _train(self) -> bool:
        with StopRequest(self.say) as stop, self.watchdog:
            self.training.should_stop = lambda: stop.asked
            self.progress.start(self.training, self.store.path)
            return asyncio.run(self._loop(stop))

    async def _loop(self, stop: StopRequest) -> bool:
        """Train; once the user wants to stop at once, asyncio says nothing of the tasks that this interrupts."""
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None if stop.asked else loop.default_exception_handler(context))
        return await train(self.training)

    def _start_tracker(self, resumed: bool) -> None:
        config, status = self.training.config, read_status(self.store.path)
        plain, tracking = to_plain(config), self.tracking
        tags = tags_of(plain) | {RUN_TAG: tracking.id}
        copy = tracking.copy(self._tracking_key)
        known = None if not resumed else copy.run if copy else None if tracking.known() else status.get("tracker_run")
        resume = (known or "") if resumed else None
        run_id = self.tracker.start(config.experiment, self.store.path.name, flatten(plain), tags, status.get("parent_tracker_run"), resume)
        self.store.update_status(tracker_run=run_id or known)
        if run_id != "":  # the tracker "none" has no runs
            tracking.write(self._tracking_key, Copy(run_id or known))
        self.tracker.inputs(task_sets(plain, read_manifest(self.store.path)))
        for file in (CONFIG, MANIFEST):
            self.tracker.artifact(self.store.path / file)
        if resumed:
            self.recorder.replay_to_tracker()

    def _finish(self, state: str, error: BaseException | None) -> Outcome:
        """Write down how it ended. A disk that is full may refuse even that; the outcome is returned all the same."""
        ended = failure(error) if error is not None else None
        if ended:
            self.store.event(f"failed: {ended.error}")
        changes = {"state": state, "error": ended.error if ended else None, "fix": ended.fix if ended else ""}
        exit_code = ended.exit_code if ended else Interrupted.exit_code if state == "interrupted" else 0
        try:
            start, final = successes(self.store.metrics.read())
            ended_at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            self.store.update_status(**changes, exit_code=exit_code, ended=ended_at, start_success=start, final_success=final)
            self._draw()
        except StorageError as refused:
            self.store.event(str(refused))
        self.tracker.artifact(self.store.path / CURVE)
        self.tracker.finish(state)
        self._record_copy(state)
        self.store.event(state)
        outcome = read_outcome(self.store.path, tracker=self.tracker.describe())
        outcome.state, outcome.exit_code = state, exit_code
        outcome.error, outcome.fix = (ended.error, ended.fix) if ended else (None, "")
        return outcome

    def _record_copy(self, state: str) -> None:
        """Note whether the tracker got everything; what is not noted is sent again by ``sync``."""
        if not self.tracker.complete or not self.tracker.run_id:
            return
        try:
            self.tracking.write(self._tracking_key, Copy(self.tracker.run_id, run_content(self.store.path, state), complete=True))
        except (StorageError, OSError) as refused:
            self.store.event(str(refused))

    def _draw(self) -> None:
        """The learning curve; a run is complete without it."""
        if not self.store.metrics.path.exists():
            return
        try:
            draw_curve(self.host, self.store.path, self.store.path / CURVE)
        except Exception as error:
            self.store.event(traceback.format_exc())
            self.progress.message(f"the curve was not drawn: {' '.join(str(error).split())}")

    def _where(self) -> str:
        run = self.training
        return f"iteration {run.iteration + 1} is going on, after {run.budget.spent.env_steps} environment steps"


def _continued(saved: dict[str, Any], now: dict[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """The manifest of a continued run: the first one, with this process's circumstances added. Raises DataError if it would be another run."""
    if not saved:
        raise DataError("the run has no manifest, so nobody can tell whether this would be the same run", fix="start a new run")
    for line in manifests.check_same(saved, now):
        say(f"the continuation may differ from an uninterrupted run: {line}")
    incidental = saved.get("incidental", {})
    later = [*incidental.get("continued", []), now["incidental"]]
    return saved | {"run": now["run"], "budget": now["budget"], "incidental": incidental | {"continued": later}}


def _replace_limits(config: RunConfig, budget: Mapping[str, int | None]) -> bool:
    """Change the limits of the budget; whether any did change. Raises UsageError for an unknown one."""
    known = [field.name for field in fields(Limits)]
    before = asdict(config.budget)
    for name, value in budget.items():
        if name not in known:
            raise UsageError(f"budget.{name} is no limit", fix=suggest(name, known))
        setattr(config.budget, name, value)
    config.budget.validate()
    return asdict(config.budget) != before


def _spent(store: RunStore) -> Spent:
    """What the run had spent at its last row."""
    rows = store.metrics.read()
    if not rows:
        return Spent()
    names = {field.name for field in fields(Spent)} - {"iterations"}
    return Spent(**{name: int(rows[-1].get(name) or 0) for name in names}, iterations=int(rows[-1]["iteration"]))


def _spent_text(spent: Spent, limits: Limits) -> str:
    parts = [f"{name}={getattr(spent, name)} of {limit}" for name, limit in asdict(limits).items() if limit is not None]
    return ", ".join(parts)
