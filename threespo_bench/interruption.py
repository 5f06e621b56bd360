"""Being asked to stop, and noticing that nothing moves any more."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from types import FrameType
from typing import Any

from threespo_bench.contracts.engine import Engine, Generation, Sampling
from threespo_bench.contracts.environment import Message
from threespo_bench.errors import EngineError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """While active, the first Ctrl-C or SIGTERM asks the run to stop at the end of the iteration; the second stops it at once.

    Outside the main thread Python delivers no signals, and this does nothing.

    Args:
        announce: called once when the user asks, with a line to show; in a thread, because the signal may have interrupted a write.
    """

    def __init__(self, announce: Callable[[str], None]) -> None:
        self._announce = announce
        self._former: dict[int, Any] = {}
        self._wake: SimpleQueue[bool] = SimpleQueue()  # its put() may be called from a signal handler
        self._thread = threading.Thread(target=self._announce_when_asked, name="threespo-stop", daemon=True)
        self.asked = False

    def __enter__(self) -> StopRequest:
        self._thread.start()
        if threading.current_thread() is threading.main_thread():
            self._former = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._wake.put(False)
        self._thread.join()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._wake.put(True)

    def _announce_when_asked(self) -> None:
        if self._wake.get():
            self._announce("stopping at the end of this iteration, with a checkpoint; once more stops at once, back to the last checkpoint")


_LONG_WORK = ("update", "update_critic", "score", "values", "value_logits", "embed")
"""Methods of the learner that answer nobody while they run."""


class Watchdog:
    """Says so when no response and no environment step came for a while, and ends a run in which none comes for very long.

    The check runs in a thread, so that it also sees a plugin that blocks the event loop; it ends the wait by an alarm in the main thread.

    Args:
        announce: gets a line about every wait longer than ``warn_after`` seconds.
        where: tells what is being waited for.
        limit: seconds after which the run fails.
    """

    def __init__(self, announce: Callable[[str], None], where: Callable[[], str], limit: float, warn_after: float = 300.0) -> None:
        self._announce, self._where, self._warn_after, self._limit = announce, where, warn_after, limit
        self._moved, self._updating = time.monotonic(), False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._former: Any = None

    def moved(self) -> None:
        """Something happened."""
        self._moved = time.monotonic()

    def watch(self, engine: Engine) -> None:
        """Count every response as a movement, those of evaluations too; the learner's work may take as long as it takes."""
        rollout, learner = engine.rollout, engine.learner
        generate = rollout.generate

        async def observed(messages: list[Message], seed: int, sampling: Sampling, prefix: Sequence[int] = ()) -> Generation:
            generation = await generate(messages, seed, sampling, prefix)
            self.moved()
            return generation

        def timed(work: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                self._updating = True
                try:
                    return work(*arguments)
                finally:
                    self.moved()
                    self._updating = False

            return call

        rollout.generate = observed  # type: ignore[method-assign]
        for name in _LONG_WORK:
            setattr(learner, name, timed(getattr(learner, name)))

    def __enter__(self) -> Watchdog:
        self.moved()
        if threading.current_thread() is threading.main_thread():
            self._former = signal.signal(signal.SIGALRM, self._alarm)
        self._thread = threading.Thread(target=self._watch, name="threespo-watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self._former is not None:
            signal.signal(signal.SIGALRM, self._former)

    def _watch(self) -> None:
        said = 0.0
        while not self._ended.wait(min(self._warn_after, self._limit) / 4):
            waited = time.monotonic() - self._moved
            if waited < self._warn_after or self._updating:
                said = 0.0
            elif waited >= self._limit and self._former is not None:
                # Again at every look: an exception raised inside a callback of the event loop is swallowed by the loop.
                signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)  # type: ignore[arg-type]
            elif waited - said >= self._warn_after:
                said = waited
                self._announce(f"nothing has moved for {waited:.0f} s while {self._where()}; the run fails after {self._limit:.0f} s")

    def _alarm(self, number: int, frame: FrameType | None) -> None:
        if time.monotonic() - self._moved < self._limit:  # somebody else's alarm
            if callable(self._former):
                self._former(number, frame)
            return
        raise EngineError(f"nothing has moved for {self._limit:.0f} s while {self._where()}: an environment, the engine or a scorer hangs")
