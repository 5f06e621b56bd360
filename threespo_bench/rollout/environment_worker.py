"""The driver's side of one environment worker: its process, what waits for it, and what becomes of that when the process is gone."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from threespo_bench.contracts.environment import Task
from threespo_bench.errors import DataError
from threespo_bench.rollout.environment_process import Order, remade
from threespo_bench.rollout.world import EpisodeState, WayBack, way_back
from threespo_bench.threads import ONE_THREAD

if TYPE_CHECKING:
    from threespo_bench.rollout.environment_workers import EnvironmentWorkers, RemoteWorld

_COMMAND = "from threespo_bench.rollout.environment_process import main; main()"
_STARTS = 3
"""How often in a row a process may end before it is ready."""


@dataclass(eq=False)
class Request:
    """An operation of a live copy, and who waits for it.

    Attributes:
        state: where the copy stands before it; None for operations that begin anew.
        kind, argument, kinds: see :class:`Order`.
        settle: called once with (value, None) or (None, error). attempts: processes that it has cost.
    """

    world: RemoteWorld
    task: Task
    state: EpisodeState | None
    kind: str
    argument: Any
    kinds: tuple[str, ...] = ()
    settle: Callable[[Any, BaseException | None], None] = lambda value, error: None
    attempts: int = 0

    def blamed(self) -> tuple[str, str]:
        """The task, and in words what was being done."""
        what = {"step": f"the command {self.argument!r}", "reset": "reset()", "key": f"anchor({self.argument!r})", "go_back": "the way back to a state"}
        return self.task.key, what[self.kind]


class EnvironmentWorker:
    """One worker. Everything happens in the event loop's thread; nothing here waits.

    Attributes:
        load: live copies that were dealt to it. dropped: those that nobody needs any more and the process has not been told of.
        generation: counts processes, so that a copy knows whether its own is gone.
    """

    def __init__(self, workers: EnvironmentWorkers) -> None:
        self._workers = workers
        self.load, self.generation, self.dropped = 0, 0, deque[int]()
        self.process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: deque[Request] = deque()
        self._request: Request | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._phase, self._failed_starts = "", 0

    @property
    def running(self) -> bool:
        """There is a process, and it has not ended."""
        return self.process is not None and self.process.poll() is None

    def put(self, request: Request) -> None:
        """Carry it out when its turn comes."""
        self._queue.append(request)
        self._next()

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Work with ``loop`` from now on. A process that was busy for another one is given up."""
        self._queue.clear()
        if self.process is not None and (self._request is not None or self._phase != "ready"):
            self.discard()
        self._forget_reader()
        self._loop = loop
        if self._connection is not None:
            loop.add_reader(self._connection.fileno(), self._readable)

    def hang_up(self) -> bool:
        """Close this end, upon which the process ends; whether there is one."""
        self._forget_reader()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        return self.process is not None

    def discard(self) -> None:
        """End the process at once, with all that it has started."""
        self.hang_up()
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._request, self._phase = None, None, ""
        self.generation += 1
        self.dropped.clear()
        if self.process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)  # before it is waited for, so that the number is still its own
            self.process.wait()
            self.process = None

    def _next(self) -> None:
        if self._request is not None or not self._queue:
            return
        if self.process is None:
            self._start()
        elif self._phase == "ready":
            self._send(self._queue.popleft())

    def _start(self) -> None:
        assert self._loop is not None
        here, there = socket.socketpair()
        # A session of its own: Ctrl-C at the terminal is the driver's affair, and the whole group can be ended.
        self.process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, str(there.fileno())],
            pass_fds=(there.fileno(),),
            stdin=subprocess.DEVNULL,
            env={**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
        there.close()
        self._connection, self._phase = Connection(here.detach()), "started"
        self._loop.add_reader(self._connection.fileno(), self._readable)

    def _send(self, request: Request) -> None:
        assert self._loop is not None and self._connection is not None
        world, environment = request.world, self._workers.environment
        lost = request.state is not None and world.generation != self.generation
        way = way_back(request.state, environment) if lost and request.state is not None else None
        dropped = tuple(self.dropped.popleft() for _ in range(len(self.dropped)))
        try:
            message = pickle.dumps(Order(world.number, request.kind, request.argument, request.kinds, way, dropped), pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            self.dropped.extend(dropped)
            request.settle(None, DataError(f"{request.task.key} cannot be sent to a worker: {error}", fix="rollout.environment_workers=0"))
            self._next()
            return
        if world.generation not in (-1, self.generation):
            self._workers.counts["episodes_retried"] += 1
        world.generation, self._request = self.generation, request
        self._timer = self._loop.call_later(self._workers.timeout * _operations(request, way), self._late)
        try:
            self._connection.send_bytes(message)
        except OSError:
            self._request = None  # it had ended before; that was not this one's doing
            self._queue.appendleft(request)
            self._lost("it ended")

    def _readable(self) -> None:
        assert self._connection is not None
        try:
            message = self._connection.recv_bytes()
        except (EOFError, OSError):
            self._lost(self._ending())
            return
        if self._phase == "ready":
            self._answered(message)
        elif self._phase == "started":
            self._phase = "opening"
            with suppress(OSError):  # the end of the process is seen by the next read
                self._connection.send(self._workers.family)
        else:
            self._opened(pickle.loads(message))

    def _opened(self, reasons: list[str]) -> None:
        if reasons:
            self.discard()
            self._refuse_all(self._workers.refusal(reasons))
            return
        self._phase, self._failed_starts = "ready", 0
        self._next()

    def _answered(self, message: bytes) -> None:
        request, self._request = self._request, None
        assert request is not None and self._timer is not None
        self._timer.cancel()
        value, error = _read(message)
        if request.attempts:
            self._workers.absolve(request)
        request.settle(value, error)
        self._next()

    def _late(self) -> None:
        if self._connection is not None and self._connection.poll(0):
            return  # it has answered while the event loop was kept by something else
        self._lost(f"it takes longer than rollout.environment_timeout={self._workers.timeout:g} seconds")

    def _lost(self, how: str) -> None:
        """The process is gone, or has to go: what it was doing is tried again in a fresh one, and the rest goes on there."""
        request, ready = self._request, self._phase == "ready"
        self.discard()
        self._workers.counts["worker_crashes"] += 1
        if request is not None:
            refused = self._workers.blame(request, how)
            if refused is None:
                self._queue.appendleft(request)
            else:
                request.settle(None, refused)
        elif not ready:
            self._failed_starts += 1
            if self._failed_starts >= _STARTS:
                self._failed_starts = 0
                self._refuse_all(DataError(f"environment workers end before they are ready ({how})", fix="rollout.environment_workers=0 shows why"))
        self._next()

    def _refuse_all(self, error: Exception) -> None:
        refused, self._queue = self._queue, deque()
        for request in refused:
            request.settle(None, error)

    def _ending(self) -> str:
        """How the process ended, in words."""
        assert self.process is not None
        try:
            code = self.process.wait(0.5)
        except subprocess.TimeoutExpired:
            return "it closed its connection"
        return f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"it ended with code {code}"

    def _forget_reader(self) -> None:
        if self._connection is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._connection.fileno())


def _operations(request: Request, way: WayBack | None) -> int:
    """Steps that a request may have to make; each gets its time."""
    asked = 1 + (len(request.argument.commands) if request.kind == "go_back" else 0)
    return asked + (0 if way is None else 1 + len(way.commands))


def _read(message: bytes) -> tuple[Any, BaseException | None]:
    try:
        good, value = pickle.loads(message)
        return (value, None) if good else (None, remade(*value))
    except Exception as error:
        return None, DataError(f"the answer of an environment worker cannot be read: {error}", fix="rollout.environment_workers=0")
