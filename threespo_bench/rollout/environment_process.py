"""The process of an environment worker: live copies of an environment, and orders that are carried out one by one.

It is started as ``python -c "from threespo_bench.rollout.environment_process import main; main()" DESCRIPTOR`` with one end of a socket pair. The first
message is the family of tasks; then comes an :class:`Order` at a time, and each is answered. When the other end closes, the driver is gone or done, and the
process ends with everything it started.
"""

from __future__ import annotations

import atexit
import os
import pickle
import select
import signal
import sys
import threading
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from threespo_bench.contracts.environment import Environment
from threespo_bench.errors import DataError
from threespo_bench.rollout.world import Live, WayBack

_PARENT_CHECK_MS = 500
_GRACE_SECONDS = 1.0
"""What live copies get to let their resources go when the driver is gone."""


class Order(NamedTuple):
    """What to do.

    Attributes:
        world: number of the live copy. kind: ``reset``, ``step``, ``go_back`` or ``key``. argument: of that operation.
        kinds: of the state keys to answer with.
        lost: the way to where the copy stood in a process that is gone; None for one that is here, and where the operation needs none.
        dropped: numbers of the copies that nobody needs any more.
    """

    world: int
    kind: str
    argument: Any
    kinds: tuple[str, ...] = ()
    lost: WayBack | None = None
    dropped: tuple[int, ...] = ()


def main() -> None:
    """Serve until the other end closes."""
    atexit.register(_end_group)  # registered first, so it comes after what libraries have registered
    connection = Connection(int(sys.argv[1]))
    threading.Thread(target=_end_with_driver, args=(connection.fileno(), os.getppid()), daemon=True).start()
    try:
        connection.send("started")
        family, reasons = open_family(*connection.recv())
        connection.send(reasons)
        if family is not None:
            _serve(connection, family)
    except (EOFError, ConnectionError):
        return


def open_family(pickled: bytes | None, constructor: bytes | None) -> tuple[Environment | None, list[str]]:
    """The family from its pickle, or else from its class and configuration; if neither works, None and the reasons."""
    reasons = []
    if pickled is not None:
        try:
            return pickle.loads(pickled), []
        except Exception as error:
            reasons.append(f"its pickle cannot be read ({_one_line(error)})")
    if constructor is not None:
        try:
            kind, config = pickle.loads(constructor)
            return kind(config), []
        except Exception as error:
            reasons.append(f"it cannot be made from its class and configuration ({_one_line(error)})")
    return None, reasons or ["neither it nor its configuration can be pickled"]


class Workshop:
    """The live copies of one family."""

    def __init__(self, family: Environment) -> None:
        self._family = family
        self._live: dict[int, Live] = {}

    def carry_out(self, order: Order) -> Any:
        """What the operation gives; raises whatever the environment raises."""
        for number in order.dropped:
            self._live.pop(number, None)
        live = self._live.get(order.world)
        if live is None:
            live = self._live[order.world] = Live(self._family)
        if order.lost is not None:
            live.go_back(order.lost, verify=True)
        if order.kind == "reset":
            task, seed = order.argument
            return live.reset(task, seed, order.kinds)
        if order.kind == "step":
            return live.step(order.argument, order.kinds)
        if order.kind == "key":
            return live.key(order.argument)
        return live.go_back(order.argument)

    def clear(self) -> None:
        """Let all copies go, then what they share."""
        self._live.clear()
        self._family.close()


def _serve(connection: Connection, family: Environment) -> None:
    workshop = Workshop(family)
    try:
        while True:
            connection.send_bytes(_answer(workshop, connection.recv_bytes()))
    finally:
        workshop.clear()


def _answer(workshop: Workshop, message: bytes) -> bytes:
    try:
        value = workshop.carry_out(pickle.loads(message))
    except (Exception, SystemExit) as error:
        return _pickled_error(error)
    try:
        return pickle.dumps((True, value), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        refusal = DataError(f"what the environment answered cannot be sent to another process: {_one_line(error)}", fix="rollout.environment_workers=0")
        return _pickled_error(refusal)


def _pickled_error(error: BaseException) -> bytes:
    """Class, arguments, attributes and traceback: the exception is made again without its constructor, whose arguments may be others."""
    said = traceback.format_exc()
    parts = (type(error), error.args, {name: value for name, value in vars(error).items() if name != "__notes__"})
    try:
        data = pickle.dumps((False, (parts, said)), pickle.HIGHEST_PROTOCOL)
        remade(*pickle.loads(data)[1])
        return data
    except Exception:
        return pickle.dumps((False, ((RuntimeError, (_one_line(error),), {}), said)), pickle.HIGHEST_PROTOCOL)


def remade(parts: tuple[type[BaseException], tuple[Any, ...], dict[str, Any]], said: str) -> BaseException:
    """The exception again, with the traceback that it had in the worker as a note."""
    kind, arguments, attributes = parts
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    vars(error).update(attributes)
    if isinstance(error, StopIteration):  # a coroutine may not raise it
        error = RuntimeError("coroutine raised StopIteration")
    error.add_note(f"in an environment worker:\n{said}")
    return error


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _end_with_driver(descriptor: int, parent: int) -> None:
    """Wait until the other end is closed or the parent is another; the main thread gets a moment to end by itself, if no command keeps it."""
    poll = select.poll()
    poll.register(descriptor, 0)  # hang-ups and errors are always reported
    while not poll.poll(_PARENT_CHECK_MS) and os.getppid() == parent:
        continue
    threading.Event().wait(_GRACE_SECONDS)
    _end_group()


def _end_group() -> None:
    """End this process with the programs that environments have started."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    if os.getpgrp() == os.getpid():  # the group is this worker's own
        os.killpg(os.getpgrp(), signal.SIGKILL)
