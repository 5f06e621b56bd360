"""Connects the loop to the run folder, the tracker and the progress display, and puts a run back to a checkpoint."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from threespo_bench.checkpointing import SavedCheckpoint, read_state, write_state
from threespo_bench.interruption import Watchdog
from threespo_bench.rows import Row, finite
from threespo_bench.store import RunStore, read_manifest
from threespo_bench.tracked import metrics_of, points, step_of
from threespo_bench.tracking import SafeTracker
from threespo_bench.training import TrainingRun
from threespo_bench.turns import TurnBatch

_LEARNER = "learner"


class Progress(Protocol):
    """What shows a run while it is going on."""

    def start(self, run: TrainingRun, path: Path) -> None:
        """The loop begins, or goes on after a resume."""

    def tick(self) -> None:
        """One environment step of training was made."""

    def iteration(self, row: Mapping[str, Any]) -> None:
        """A row of training metrics was recorded."""

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """A row of evaluation metrics was recorded."""

    def message(self, text: str) -> None:
        """Something a user should know."""

    def stop(self) -> None:
        """The loop ended."""


class NoProgress:
    """Shows nothing."""

    def start(self, run: TrainingRun, path: Path) -> None: ...
    def tick(self) -> None: ...
    def iteration(self, row: Mapping[str, Any]) -> None: ...
    def evaluation(self, row: Mapping[str, Any]) -> None: ...
    def message(self, text: str) -> None: ...
    def stop(self) -> None: ...


class Recorder:
    """Writes what the loop reports. The run folder comes first; tracker and display get a copy."""

    def __init__(self, run: TrainingRun, store: RunStore, tracker: SafeTracker, progress: Progress, watchdog: Watchdog) -> None:
        self._run, self._store, self._tracker, self._progress, self._watchdog = run, store, tracker, progress, watchdog
        self._counts = {"metrics": 0, "timings": 0}
        self._before = 0.0
        self._began = time.perf_counter()
        reset_peak_memory()

    def connect(self) -> None:
        """Attach to the loop's callbacks."""
        run = self._run
        run.log, run.checkpoint, run.tick = self.log, self.checkpoint, self.tick
        if run.config.save_turns:
            run.keep_turns = self.keep_turns
        self._watchdog.watch(run.engine)

    def log(self, kind: str, metrics: Mapping[str, float], seconds: Mapping[str, float]) -> None:
        """A row of metrics of ``kind`` train or eval, with the wall-clock seconds of its phases."""
        row = {"kind": kind, **finite(metrics)}
        self._store.metrics.append(row)
        self._store.timings.append(self._timing(row, seconds))
        self._counts = {name: count + 1 for name, count in self._counts.items()}
        if kind == "train":
            self._keep_states()
        self._tracker.log(metrics_of(row), step_of(row))
        (self._progress.evaluation if kind == "eval" else self._progress.iteration)(row)
        self._watchdog.moved()

    def _keep_states(self) -> None:
        """Write the algorithm's case study; it is part of the algorithm's state, so a resumed run goes on with it."""
        states = self._run.algorithm.case_study()
        if states:
            self._store.write_states(states)

    def tick(self) -> None:
        """One environment step."""
        self._watchdog.moved()
        self._progress.tick()

    def keep_turns(self, iteration: int, number: int, turns: TurnBatch) -> None:
        """Record a batch."""
        self._store.save_turns(iteration, number, turns)

    def checkpoint(self) -> None:
        """Save everything that :meth:`restore` needs for an exact continuation."""
        run = self._run
        loop = run.state_dict() | {"policy_version": run.engine.rollout.version}
        algorithm, owner = run.algorithm.state_dict(), f"algorithm {run.config.algorithm.name}"

        def fill(folder: Path) -> None:
            write_state(folder, "loop", loop, "the loop")
            write_state(folder, "algorithm", algorithm, owner)
            (folder / _LEARNER).mkdir()
            run.engine.learner.save(folder / _LEARNER)

        self._store.metrics.sync()
        self._store.timings.sync()
        self._store.checkpoints.write(run.iteration, fill, dict(self._counts))
        self._store.update_status(checkpoint=run.iteration, env_steps=run.budget.spent.env_steps)
        self._watchdog.moved()

    def restore(self, checkpoint: SavedCheckpoint) -> None:
        """Put the run back to ``checkpoint``, bit for bit, and set aside what was recorded after it."""
        run, folder = self._run, checkpoint.folder
        loop = read_state(folder, "loop")
        run.load_state_dict(loop)
        run.algorithm.load_state_dict(read_state(folder, "algorithm"))
        run.engine.learner.load(folder / _LEARNER)
        if run.engine.rollout.version != loop["policy_version"]:  # an engine whose rollout part holds weights of its own
            run.engine.publish()
        self._counts = {name: int(checkpoint.notes[name]) for name in self._counts}
        self.rewind(checkpoint.iteration)

    def rewind(self, iteration: int) -> None:
        """Set aside what was recorded after the checkpoint of ``iteration`` (or everything, if there was none), and continue the clock."""
        moved = self._store.rewind(self._counts["metrics"], self._counts["timings"], iteration)
        if moved:
            self._store.event(f"{moved} rows measured after iteration {iteration} were moved to {self._store.metrics.discarded.name}")
        timings = self._store.timings.read()
        self._before = timings[-1]["seconds"] if timings else 0.0
        self._began = time.perf_counter()

    def drop_final_evaluation(self) -> None:
        """Set aside the last evaluation if only the end of the old budget called for it, because an uninterrupted longer run has none there."""
        rows = self._store.metrics.read()[: self._counts["metrics"]]
        if not _only_final(rows, self._run.config.evaluation.every_env_steps):
            return
        self._counts = {name: count - 1 for name, count in self._counts.items()}
        self._store.metrics.cut(self._counts["metrics"])
        self._store.timings.cut(self._counts["timings"])

    def replay_to_tracker(self) -> None:
        """Give the tracker the rows again that a killed process may not have sent; a tracker skips those it has."""
        for metrics, step, when in points(self._store.path, read_manifest(self._store.path)):
            self._tracker.log(metrics, step, when)

    def _timing(self, row: Row, seconds: Mapping[str, float]) -> Row:
        timing = {"kind": row["kind"], "iteration": row["iteration"], "env_steps": row["env_steps"]}
        timing["seconds"] = round(self._before + time.perf_counter() - self._began, 6)
        timing |= {f"seconds/{phase}": round(value, 6) for phase, value in seconds.items()}
        memory = _memory_mb()
        return timing | {"memory_mb": memory, "peak_memory_mb": max(peak_memory_mb(), memory or 0.0)}


def peak_memory_mb() -> float:
    """The largest resident memory of this process since :func:`reset_peak_memory`, or since its start where that cannot be set back."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return round(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024, 1)
    except (OSError, ValueError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return round(peak / (1 << 20 if sys.platform == "darwin" else 1 << 10), 1)


def reset_peak_memory() -> None:
    """Forget the peak of earlier runs in this process, where the system can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _memory_mb() -> float | None:
    """The present resident memory of this process, where the system tells."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return round(pages * resource.getpagesize() / (1 << 20), 1)


def _only_final(rows: list[Row], every: int) -> bool:
    """Whether the last row is an evaluation that was not due by the distance in environment steps."""
    if len(rows) < 2 or rows[-1]["kind"] != "eval":
        return False
    earlier = [row["env_steps"] for row in rows[:-1] if row["kind"] == "eval"]
    return bool(earlier) and rows[-1]["env_steps"] < (earlier[-1] // every + 1) * every
