"""A run in a process of its own: plain data in, events and the outcome out.

The parent writes one JSON line (what to run) to the child's standard input and keeps it open; the child answers with JSON lines.
When the input closes, the parent is gone, and the child stops as if Ctrl-C had been pressed. The child builds its own plugin host and
verifies that it is the parent's.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from threespo_bench.budget import Budget, Spent
from threespo_bench.config.plain import from_plain, to_plain
from threespo_bench.config.schema import RunConfig
from threespo_bench.errors import Interrupted, StorageError
from threespo_bench.host import PluginHost
from threespo_bench.outcome import Outcome, failure
from threespo_bench.recorder import NoProgress, Progress
from threespo_bench.store import RunStore
from threespo_bench.threads import ONE_THREAD
from threespo_bench.training import TrainingRun


@dataclass(frozen=True)
class Job:
    """What a process shall do.

    Attributes:
        config: of the run. name: of its folder if it is new.
        resume: the folder of the run to continue, or None. parent_tracker_run: see the runner.
    """

    config: RunConfig
    name: str
    resume: Path | None = None
    parent_tracker_run: str | None = None


def attempt(job: Job, host: PluginHost, progress: Progress) -> Outcome:
    """Do a job in this process; a failure to even build the run is an outcome as well."""
    from threespo_bench import runner

    try:
        if job.resume is not None:
            return runner.resume(job.resume, host, progress=progress, parent_tracker_run=job.parent_tracker_run)
        return runner.run(job.config, host, progress=progress, parent_tracker_run=job.parent_tracker_run, name=job.name)
    except (Exception, SystemExit) as error:
        ended = failure(error)
        return Outcome(job.resume, "failed", ended.error, ended.fix, ended.exit_code)


class Worker:
    """A child process with one job. Create it, then :meth:`wait`; :meth:`interrupt` may be called from anywhere.

    Args:
        environment: variables that the child gets beside those of this process.
    """

    def __init__(self, job: Job, host: PluginHost, environment: Mapping[str, str] | None = None) -> None:
        self._job, self._interrupted = job, False
        environment = {**ONE_THREAD, **os.environ, **(environment or {}), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-c", "from threespo_bench.worker import main; main()"]
        # A session of its own: Ctrl-C at the terminal reaches the parent only, which passes it on once.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True, start_new_session=True)
        task = {"config": to_plain(job.config), "name": job.name, "resume": str(job.resume) if job.resume else None, "parent": job.parent_tracker_run}
        self._send(json.dumps(task | {"host": host.identity(), "command": sys.argv}))

    def wait(self, progress: Progress) -> Outcome:
        """Show what the child reports until it ends; its outcome."""
        shadow = Shadow(self._job.config, Budget(self._job.config.budget))
        outcome, path = None, self._job.resume
        for line in self._process.stdout or ():
            event = json.loads(line)
            if event["event"] == "outcome":
                outcome = Outcome.from_plain(event["outcome"])
            else:
                path = Path(event["path"]) if "path" in event else path
                shadow.show(event, progress)
        code = self._process.wait()
        return outcome or self._died(code, path)

    def interrupt(self) -> None:
        """Ask the child to stop at the end of its iteration; again, at once."""
        self._interrupted = True
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """End the child if it is still there."""
        if self._process.poll() is None:
            self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return  # it died at once; wait() tells

    def _died(self, code: int, path: Path | None) -> Outcome:
        """The outcome of a child that could not say how it ended, written into its run folder too."""
        if self._interrupted:  # before it was ready to be
            return Outcome(path, "interrupted", exit_code=Interrupted.exit_code)
        if code < 0:
            name = signal.Signals(-code).name
            error, fix = f"the run's process was ended by {name}", "most often the machine ran out of memory: use fewer --jobs" if name == "SIGKILL" else ""
        else:
            error, fix = f"the run's process ended with code {code} and without an outcome", ""
        return lost(path, error, fix)


def lost(path: Path | None, error: str, fix: str = "") -> Outcome:
    """The outcome of a run whose process could not say how it ended, written into its folder too. It goes on from its newest checkpoint when it is resumed."""
    if path is not None:
        with suppress(StorageError), RunStore.open(path) as store:
            store.update_status(state="failed", error=error, fix=fix, exit_code=1)
            store.event(f"failed: {error}")
    return Outcome(path, "failed", error, fix, 1)


@dataclass
class Shadow:
    """As much of a run in another process as a progress display looks at."""

    config: RunConfig
    budget: Budget
    iteration: int = 0

    def show(self, event: Mapping[str, Any], progress: Progress) -> None:
        """Pass an event on."""
        if "spent" in event:
            self.iteration, self.budget.spent = event["iteration"], Spent(**event["spent"])
        kind = event["event"]
        if kind == "start":
            progress.start(self, Path(event["path"]))  # type: ignore[arg-type]
        elif kind == "message":
            progress.message(event["text"])
        elif kind == "stop":
            progress.stop()
        else:
            getattr(progress, kind)(event["row"])


class Reporter(NoProgress):
    """The child's progress: everything but ticks becomes a line for the parent."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream, self._lock = stream, threading.Lock()
        self._run: TrainingRun | None = None

    def start(self, run: TrainingRun, path: Path) -> None:
        self._run = run
        self.send("start", path=str(path))

    def iteration(self, row: Mapping[str, Any]) -> None:
        self.send("iteration", row=row)

    def evaluation(self, row: Mapping[str, Any]) -> None:
        self.send("evaluation", row=row)

    def message(self, text: str) -> None:
        self.send("message", text=text)

    def stop(self) -> None:
        self.send("stop")

    def send(self, event: str, **values: Any) -> None:
        """A line; a parent that is gone is no reason to fail."""
        if self._run is not None:
            values |= {"iteration": self._run.iteration, "spent": vars(self._run.budget.spent)}
        with self._lock, suppress(OSError):
            self._stream.write(json.dumps({"event": event, **values}) + "\n")
            self._stream.flush()


def main() -> None:
    """The child's side."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever libraries print must not get among the answers
    reporter = Reporter(answers)
    task = json.loads(sys.stdin.readline())
    sys.argv = task["command"]  # for the manifest
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    try:
        outcome = work(task, reporter)
    except KeyboardInterrupt:
        outcome = Outcome(Path(task["resume"]) if task["resume"] else None, "interrupted", exit_code=Interrupted.exit_code)
    reporter.send("outcome", outcome=outcome.to_plain())
    sys.exit(outcome.exit_code)


def work(task: Mapping[str, Any], reporter: Reporter) -> Outcome:
    """Do what a task says, in this process, with a plugin host of its own that is verified to be the one of whoever sent it."""
    resume = Path(task["resume"]) if task["resume"] else None
    try:
        host = PluginHost.from_identity(task["host"])
        job = Job(from_plain(task["config"], host), task["name"], resume, task["parent"])
    except Exception as error:
        ended = failure(error)
        return Outcome(resume, "failed", ended.error, ended.fix, ended.exit_code)
    return attempt(job, host, reporter)


def _stop_with_parent() -> None:
    """Wait for the input to close; then stop gracefully. Reads the descriptor, because a thread that waits inside ``sys.stdin`` spoils the exit."""
    while os.read(0, 1):
        continue
    os.kill(os.getpid(), signal.SIGINT)
