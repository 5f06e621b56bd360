"""What launchers have in common that hand runs to something that starts processes elsewhere: bounded work, events, Ctrl-C, and what is lost.

A subclass submits a task (:func:`threespo_bench.remote.task`) so that some process calls :func:`threespo_bench.remote.carry_out` with it, and tells when that
process is no more.
"""

from __future__ import annotations

import secrets
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from threespo_bench.budget import Budget
from threespo_bench.config.plain import from_plain
from threespo_bench.contracts.launcher import Cell, Launcher, Monitor
from threespo_bench.errors import BenchError, Interrupted
from threespo_bench.interruption import StopRequest
from threespo_bench.outcome import Outcome, failure
from threespo_bench.recorder import Progress
from threespo_bench.remote import Exchange, task
from threespo_bench.worker import Shadow, lost


@dataclass(frozen=True)
class Ended:
    """How a process ended, as far as whoever started it knows.

    Attributes:
        outcome: what it returned, or None. error, fix: why it returned nothing.
        again: it was stopped by a rule of the cluster (time limit, preemption), so the run goes on when it is submitted again.
    """

    outcome: Mapping[str, Any] | None = None
    error: str = ""
    fix: str = ""
    again: bool = False


class RemoteLauncher(Launcher):
    """Submits runs, at most ``launcher.jobs`` at a time.

    Attributes:
        poll_seconds: between two looks at the runs. settle_seconds: what a slow shared file system is given to show the last lines of a process that has ended.
        requeues: how often a run that a rule of the cluster stopped is submitted again.
    """

    poll_seconds = 0.5
    settle_seconds = 5.0
    requeues = 0

    @abstractmethod
    def open(self, cells: Sequence[Cell], monitor: Monitor) -> None:
        """Connect. Raises BenchError if nothing can be launched."""

    @abstractmethod
    def submit(self, task: Mapping[str, Any], place: int) -> Any:
        """Hand a task over; returns what :meth:`look` and :meth:`cancel` get. ``place`` is a number that no other running task has, from 0."""

    @abstractmethod
    def look(self, handle: Any) -> Ended | None:
        """None while the process runs or waits to; must not block. Once it has ended, the answer stays."""

    @abstractmethod
    def cancel(self, handle: Any) -> None:
        """End the process at once, or take it out of the queue."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect; what :meth:`open` started is ended."""

    def launch(self, cells: Sequence[Cell], monitor: Monitor) -> None:
        """See the contract."""
        if not cells:
            return
        work = _Work(self, monitor, deque(cells))
        try:
            self.open(cells, monitor)
            with StopRequest(work.stop):
                work.go()
        except BaseException:
            work.cancel()
            raise
        finally:
            self.close()
            work.exchange.remove()


@dataclass
class _Running:
    """A run that was submitted."""

    cell: Cell
    place: int
    handle: Any
    shadow: Shadow
    progress: Progress
    path: Path | None
    place_in_events: int = 0
    begun: bool = False
    outcome: Outcome | None = None
    silent_since: float | None = None
    cancelled: bool = False


@dataclass
class _Work:
    """One call of ``launch``."""

    launcher: RemoteLauncher
    monitor: Monitor
    waiting: deque[Cell]
    running: list[_Running] = field(default_factory=list)
    stopping: bool = False
    again: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.exchange = Exchange(self.launcher.folder.resolve(), secrets.token_hex(4))

    def go(self) -> None:
        """Until nothing runs or waits any more."""
        limit = self.launcher.config.jobs or len(self.waiting)
        self.exchange.begin()
        while self.running or (self.waiting and not self.stopping):
            while self.waiting and len(self.running) < limit and not self.stopping:
                self._start(self.waiting.popleft())
            for run in list(self.running):
                self._look(run)
            if self.running:
                time.sleep(self.launcher.poll_seconds)

    def stop(self, text: str) -> None:
        """Ask what runs to stop at the end of its iteration, and take what only waits out of its queue. Called in a thread."""
        self.stopping = True
        self.monitor.say(text)
        for run in list(self.running):
            self._ask_to_stop(run)

    def cancel(self) -> None:
        """End everything at once; what was begun is resumed from its newest checkpoint."""
        for run in self.running:
            self._cancel(run)

    def _start(self, cell: Cell) -> None:
        place = min(set(range(len(self.running) + 1)) - {run.place for run in self.running})
        try:
            config = from_plain(cell.config, self.launcher.host)
            self.exchange.renew(cell.name)
            handle = self.launcher.submit(task(cell, self.launcher.host, self.exchange), place)
        except Exception as error:  # whatever a scheduler refuses costs this run, not the others
            ended = failure(error)
            self.monitor.ended(cell.name, Outcome(cell.resume, "failed", ended.error, ended.fix, ended.exit_code))
            return
        run = _Running(cell, place, handle, Shadow(config, Budget(config.budget)), self.monitor.progress(cell.name), cell.resume)
        self.running.append(run)
        if self.stopping:
            self._ask_to_stop(run)

    def _look(self, run: _Running) -> None:
        try:
            ended = self.launcher.look(run.handle)
        except Exception as error:  # the cluster itself is gone
            ended = Ended(error=f"the run was lost: {failure(error).error}")
        self._read(run)
        if ended is None or self._may_still_tell(run, ended):
            return
        self.running.remove(run)
        outcome = self._outcome(run, ended)
        if outcome.state == "interrupted" and not self.stopping and self._once_more(run, outcome):
            return
        self.monitor.ended(run.cell.name, outcome)

    def _may_still_tell(self, run: _Running, ended: Ended) -> bool:
        """The process is over, but its last lines may still be on their way through the file system."""
        if ended.outcome is not None or run.outcome is not None or not run.begun:
            return False
        if run.silent_since is None:
            run.silent_since = time.monotonic()
        return time.monotonic() - run.silent_since < self.launcher.settle_seconds

    def _outcome(self, run: _Running, ended: Ended) -> Outcome:
        """What the process said, by either way; or what it means that it said nothing."""
        if ended.outcome is not None:
            return Outcome.from_plain(dict(ended.outcome))
        if run.outcome is not None:
            return run.outcome
        if run.cancelled or ended.again:
            return Outcome(run.path, "interrupted", exit_code=Interrupted.exit_code)
        return lost(run.path, ended.error, ended.fix)

    def _once_more(self, run: _Running, outcome: Outcome) -> bool:
        """Put a run that the cluster stopped back into the queue, unless that happened too often."""
        name, count = run.cell.name, self.again.get(run.cell.name, 0)
        if count >= self.launcher.requeues:
            return False
        self.again[name] = count + 1
        self.monitor.say(f"{name}: stopped by the cluster (time limit or preemption); submitted again to go on ({count + 1} of {self.launcher.requeues} times)")
        self.waiting.appendleft(replace(run.cell, resume=outcome.run or run.path))
        return True

    def _read(self, run: _Running) -> None:
        """Show the events that are new."""
        events, run.place_in_events = self.exchange.read(run.cell.name, run.place_in_events)
        for event in events:
            run.begun = True
            if event["event"] == "outcome":
                run.outcome = Outcome.from_plain(event["outcome"])
            elif event["event"] != "process":
                run.path = Path(event["path"]) if "path" in event else run.path
                run.shadow.show(event, run.progress)

    def _ask_to_stop(self, run: _Running) -> None:
        if run.begun:
            self.exchange.stop(run.cell.name)
        else:
            self._cancel(run)

    def _cancel(self, run: _Running) -> None:
        run.cancelled = True
        try:
            self.launcher.cancel(run.handle)
        except Exception as error:
            self.monitor.say(f"{run.cell.name}: cannot be cancelled: {failure(error).error}")


def explain(error: BaseException) -> str:
    """The line of an exception of a cluster's own library, without its traceback."""
    text = str(error).strip()
    return failure(error).error if isinstance(error, BenchError) else f"{type(error).__name__}: {' '.join((text.splitlines() or [''])[0].split())}"
