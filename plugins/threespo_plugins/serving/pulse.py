"""Whether a server that has something to answer is still there: one whose engine died may keep connections open and answer nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from threespo_bench.contracts.rollout import ServerGone

LOOK = 5.0
"""Seconds without an answer after which the server is asked whether it is well."""
MISSES = 2
"""So often in a row it may not say so."""

Result = TypeVar("Result")


class Pulse:
    """Looks after requests that wait for a server.

    Args:
        alive: asks the server whether it is well; blocks.
        gone: the error for requests whose server is not.
    """

    def __init__(self, alive: Callable[[], bool], gone: Callable[[], ServerGone]) -> None:
        self._alive, self._gone = alive, gone
        self._waiting: set[asyncio.Task[Any]] = set()
        self._given_up: set[asyncio.Task[Any]] = set()
        self._answers = 0
        self._looking: asyncio.Task[None] | None = None

    async def guard(self, request: Coroutine[Any, Any, Result]) -> Result:
        """What the request gives.

        Raises:
            ServerGone: no request was answered for a while, and the server did not say that it is well. What the request raises.
        """
        task = asyncio.create_task(request)
        self._waiting.add(task)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        try:
            return await task
        except asyncio.CancelledError:
            if task in self._given_up:
                raise self._gone() from None
            raise
        finally:
            self._answers += 1
            self._waiting.discard(task)
            self._given_up.discard(task)
            if not self._waiting and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    async def _look(self) -> None:
        missed = 0
        while True:
            answers = self._answers
            await asyncio.sleep(LOOK)
            if answers == self._answers and not await asyncio.to_thread(self._alive) and answers == self._answers:
                missed += 1
            else:
                missed = 0
            if missed == MISSES:
                self._given_up |= self._waiting
                for task in self._waiting:
                    task.cancel()
                return
