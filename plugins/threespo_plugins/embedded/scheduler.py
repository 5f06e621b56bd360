"""Gathers requests that wait at the same time into one batch.

Episodes are plain coroutines that await one response each. A batch is due when no coroutine can run any further without a response:
the scheduler goes to the back of the event loop's queue again and again, and once the number of waiting requests has stayed the
same for several rounds, everything that could ask has asked. No clock is involved, so the same program forms the same batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Request = TypeVar("Request")
Answer = TypeVar("Answer")

# Rounds of the event loop without a new request. A coroutine that was woken by an answer needs a few to pass through gather,
# task groups and its callers before it asks again.
QUIET_ROUNDS = 16


class BatchScheduler(Generic[Request, Answer]):
    """Runs ``work`` on all requests that wait.

    Args:
        work: computes the answers of a batch, in order; an answer that is an exception is raised where the request was made.
            Runs in the event loop's thread and blocks it.
    """

    def __init__(self, work: Callable[[Sequence[Request]], Sequence[Answer | Exception]]) -> None:
        self._work = work
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[tuple[Request, asyncio.Future[Answer]]] = []

    async def submit(self, request: Request) -> Answer:
        """The answer to one request; an error of the batch is raised in every coroutine that waits for it."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # requests of a loop that was closed can never be answered
            self._loop, self._waiting = loop, []
        if not self._waiting:
            loop.call_soon(self._round, 0, 0)
        future: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((request, future))
        return await future

    def _round(self, seen: int, quiet: int) -> None:
        waiting = len(self._waiting)
        quiet = quiet + 1 if waiting == seen else 0
        if quiet < QUIET_ROUNDS:
            asyncio.get_running_loop().call_soon(self._round, waiting, quiet)
        else:
            self._run()

    def _run(self) -> None:
        batch = [(request, future) for request, future in self._waiting if not future.done()]  # the others were cancelled
        self._waiting = []
        if not batch:
            return
        try:
            answers = self._work([request for request, _ in batch])
        except Exception as error:
            for _, future in batch:
                future.set_exception(error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
