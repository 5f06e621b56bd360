"""A run in a process that something else starts, perhaps on another machine: what it is told, and what it does.

Both sides talk through a folder that they share. The process appends a JSON line for every event, the outcome last; a file that asks it to stop is looked for
every second. Whether the folder is shared at all is tried first: a file in it must hold the word that the task brings along.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from threespo_bench.atomic import storage_errors
from threespo_bench.contracts.launcher import Cell
from threespo_bench.errors import Interrupted, StorageError
from threespo_bench.host import PluginHost
from threespo_bench.outcome import Outcome, failure
from threespo_bench.threads import ONE_THREAD
from threespo_bench.worker import Reporter, work

FOLDER = "launcher"
_MARK = "mark"
_LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Exchange:
    """The folder by which the processes of one call and the comparison talk.

    Attributes:
        experiment: the experiment's folder, absolute. word: names this call.
    """

    experiment: Path
    word: str

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return self.experiment / FOLDER / self.word

    def begin(self) -> None:
        """Leave the mark by which a process knows that it sees the same folder. Raises StorageError."""
        with storage_errors(f"write in {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / _MARK).write_text(self.word, encoding="utf-8")

    def is_seen(self) -> bool:
        """The mark is there."""
        try:
            return (self.folder / _MARK).read_text(encoding="utf-8") == self.word
        except OSError:
            return False

    def renew(self, name: str) -> None:
        """Forget what an earlier attempt at a run wrote. Raises StorageError."""
        with storage_errors(f"write in {self.folder}"):
            self.stop_file(name).unlink(missing_ok=True)
            self.events_file(name).write_text("", encoding="utf-8")

    def events_file(self, name: str) -> Path:
        """What the process reports."""
        return self.folder / f"{name}.events.jsonl"

    def stop_file(self, name: str) -> Path:
        """Where this file is, the process shall stop."""
        return self.folder / f"{name}.stop"

    def stop(self, name: str) -> None:
        """Ask a process to stop."""
        with suppress(OSError):
            self.stop_file(name).touch()

    def read(self, name: str, place: int) -> tuple[list[dict[str, Any]], int]:
        """The complete lines after ``place``, and the place after them."""
        try:
            with self.events_file(name).open("rb") as file:
                file.seek(place)
                text = file.read()
        except OSError:
            return [], place
        text = text[: text.rfind(b"\n") + 1]
        return [json.loads(line) for line in text.splitlines()], place + len(text)

    def remove(self) -> None:
        """A process that is still to begin will not see the mark, and leaves it at that."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):
            self.folder.parent.rmdir()


def task(cell: Cell, host: PluginHost, exchange: Exchange) -> dict[str, Any]:
    """What the process is told, as JSON types."""
    return {
        "config": dict(cell.config),
        "name": cell.name,
        "resume": str(cell.resume.resolve()) if cell.resume else None,
        "parent": cell.parent_tracker_run,
        "host": host.identity(),
        "command": sys.argv,
        "paths": [path for path in sys.path if path],
        "folder": os.getcwd(),
        "experiment": str(exchange.experiment),
        "word": exchange.word,
    }


def carry_out(task: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The process's side, in its main thread: do the run, report on the way, and return the outcome as plain data.

    Args:
        environment: variables for the run.
    """
    exchange = Exchange(Path(task["experiment"]), task["word"])
    if not exchange.is_seen() or not Path(task["folder"]).is_dir():
        return _unseen(task).to_plain()
    os.environ.update({**{name: value for name, value in ONE_THREAD.items() if name not in os.environ}, **(environment or {})})
    os.chdir(task["folder"])
    sys.path.extend(path for path in task["paths"] if path not in sys.path)
    sys.argv = list(task["command"])
    with exchange.events_file(task["name"]).open("a", encoding="utf-8") as stream:
        reporter = Reporter(stream)
        reporter.send("process", host_name=socket.gethostname(), pid=os.getpid())
        outcome = _interruptible(task, reporter, exchange.stop_file(task["name"]))
        reporter.send("outcome", outcome=outcome.to_plain())
        with suppress(OSError):
            os.fsync(stream.fileno())
    return outcome.to_plain()


def _unseen(task: Mapping[str, Any]) -> Outcome:
    """This machine does not see the folders of the one that started the comparison."""
    missing = task["experiment"] if Path(task["folder"]).is_dir() else task["folder"]
    error = f"the machine {socket.gethostname()} does not see the folder {missing} of the machine that started the comparison"
    fix = "start it in a folder on a file system that all machines share, and choose --out on it as well"
    return Outcome(None, "failed", error, fix, StorageError.exit_code)


def _interruptible(task: Mapping[str, Any], reporter: Reporter, stop: Path) -> Outcome:
    """The run, which a stop file or the signal before a time limit interrupts as Ctrl-C would."""
    resume = Path(task["resume"]) if task["resume"] else None
    try:
        with _interrupted_by(stop):
            return work(task, reporter)
    except KeyboardInterrupt:
        return Outcome(resume, "interrupted", exit_code=Interrupted.exit_code)
    except BaseException as error:
        ended = failure(error)
        return Outcome(resume, "failed", ended.error, ended.fix, ended.exit_code)


@contextmanager
def _interrupted_by(stop: Path) -> Iterator[None]:
    """Within it, a stop file and SIGUSR2 (sent by a scheduler before the time limit) raise SIGINT in this process."""
    over = threading.Event()
    if stop.exists():
        raise KeyboardInterrupt

    def look() -> None:
        while not over.wait(_LOOK_SECONDS):
            if stop.exists():
                os.kill(os.getpid(), signal.SIGINT)
                return

    def before_the_limit(number: int, frame: FrameType | None) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGUSR2})  # whoever started this process may have blocked them
    former = {signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler), signal.SIGUSR2: signal.signal(signal.SIGUSR2, before_the_limit)}
    thread = threading.Thread(target=look, name="threespo-stop-file", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for number, handler in former.items():
            signal.signal(number, handler)
