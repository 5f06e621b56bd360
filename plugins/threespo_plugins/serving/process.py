"""A server in a process of its own: started, watched until it answers, and stopped with everything it started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from threespo_bench.errors import EngineError
from threespo_plugins.serving import guard

_GUARD = Path(guard.__file__)
_LOOK = 0.1  # seconds between two probes of a server that starts
_TELL = 20.0  # seconds between two messages about it


class ServerProcess:
    """One command under a guard. It dies with this process, however this process dies: Ctrl-C, an exception, ``kill -9``.

    Args:
        name: what messages call it.
        command: the program and its arguments.
        log: file that gets its standard output and errors; it is replaced.
        environment: variables to set beside those of this process; None removes one.
        remove: folders that are removed once the server has ended, even if this process was killed.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str | None] | None = None, remove: Sequence[Path] = ()) -> None:
        self.name, self.command, self.log, self._remove = name, list(command), log, [str(folder) for folder in remove]
        wanted = {**os.environ, **(environment or {})}
        self._environment = {key: value for key, value in wanted.items() if value is not None}
        self._guard: subprocess.Popen | None = None

    @property
    def alive(self) -> bool:
        """It was started and has not ended."""
        return self._guard is not None and self._guard.poll() is None

    @property
    def ids(self) -> list[int]:
        """Process ids of the server: its main process first, then what that started."""
        return guard.descendants(self._guard.pid) if self._guard is not None else []

    def start(self) -> None:
        """Start it. Raises EngineError if the program cannot be run."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        program = [sys.executable, "-S", "-E", str(_GUARD), str(os.getpid()), os.pathsep.join(self._remove), *self.command]
        with self.log.open("wb") as output:
            try:
                self._guard = subprocess.Popen(
                    program, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, env=self._environment, start_new_session=True
                )
            except OSError as error:
                raise EngineError(f"{self.name} cannot be started: {error}") from error

    def wait(self, ready: Callable[[], bool], seconds: float, say: Callable[[str], None] | None = None) -> None:
        """Return once ``ready()`` is true; it is asked again and again and must not raise.

        Raises:
            EngineError: the server ended, or is not ready after ``seconds``; the message has the last error line of its log.
        """
        started = told = time.monotonic()
        while not ready():
            now = time.monotonic()
            if not self.alive:
                raise EngineError(f"{self.name} ended while it started: {self.last_error()}", fix=f"its output is in {self.log}")
            if now - started > seconds:
                raise EngineError(f"{self.name} is not ready after {seconds:g} s: {self.last_error()}", fix=f"its output is in {self.log}")
            if say is not None and now - told >= _TELL:
                say(f"{self.name} is starting, {now - started:.0f} s so far ({self.log})")
                told = now
            time.sleep(_LOOK)

    def last_error(self) -> str:
        """The last line of the log that names an error, or else the last line."""
        try:
            lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        except OSError:
            return "no output"
        errors = [line for line in lines if "Error:" in line or "error:" in line]
        return (errors or lines or ["no output"])[-1][-300:]

    def close(self) -> None:
        """Stop it and everything below it; returns once they are gone. May be called more than once."""
        if self._guard is None:
            return
        process, self._guard = self._guard, None
        below = guard.descendants(process.pid)
        if process.stdin is not None:
            process.stdin.close()  # this is what the guard waits for
        try:
            process.wait(guard.GRACE + 10)
        except subprocess.TimeoutExpired:  # the guard was stopped (SIGSTOP): end its processes here
            for each in (process.pid, *below):
                _kill(each)
            process.wait()


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def _kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
