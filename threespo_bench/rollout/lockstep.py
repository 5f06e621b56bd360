"""Order among episodes that wait for other processes, for an engine that makes one batch of everything that waits.

Where environments answer at once, all episodes that can ask for a response have asked when a batch is made. Where they answer after a while this keeps it
so: answers are handed out together, in the order of the questions, and nothing is generated while a step is under way. Batches, and the order in
which they were asked for, are then the same wherever environments live.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from threespo_bench.contracts.engine import Generation, RolloutEngine, Sampling
from threespo_bench.contracts.environment import Message

# Rounds of the event loop in which nobody asked for anything. A coroutine that was woken needs a few to pass through gather, task groups and its callers
# before it asks again.
QUIET_ROUNDS = 16


class Lockstep:
    """Hands out the answers of environments together and holds requests for responses until there is nothing else to wait for."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._events = 0
        self._forget()

    def began(self) -> int:
        """An environment was asked for something; the number of the question."""
        self._attach()
        self._events += 1
        self._under_way.add(self._events)
        return self._events

    def ended(self, number: int, deliver: Callable[[], None]) -> None:
        """The question is answered; ``deliver`` is called when all that are under way are."""
        self._under_way.discard(number)
        self._answered[number] = deliver
        if self._under_way:
            return
        answered = sorted(self._answered.items())
        self._answered.clear()
        for _, deliver_one in answered:
            deliver_one()
        self._events += 1
        self._watch()

    async def turn(self) -> None:
        """Wait until no step is under way and nobody asks for anything any more."""
        future = self._attach().create_future()
        self._held.append(future)
        self._events += 1
        self._watch()
        await future

    def _attach(self) -> asyncio.AbstractEventLoop:
        """Work with the running loop; what waited in another one waits no longer."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            self._forget()
        return loop

    def _forget(self) -> None:
        self._under_way: set[int] = set()
        self._answered: dict[int, Callable[[], None]] = {}
        self._held: list[asyncio.Future[None]] = []
        self._watching = False

    def _watch(self) -> None:
        if self._held and not self._watching and not self._under_way:
            self._watching = True
            asyncio.get_running_loop().call_soon(self._round, self._events, 0)

    def _round(self, seen: int, quiet: int) -> None:
        if self._under_way:
            self._watching = False  # goes on when they are answered
            return
        quiet = quiet + 1 if self._events == seen else 0
        if quiet < QUIET_ROUNDS:
            asyncio.get_running_loop().call_soon(self._round, self._events, quiet)
            return
        self._watching = False
        held, self._held = self._held, []
        for future in held:
            if not future.done():  # the others were cancelled
                future.set_result(None)


class GatheredRollout(RolloutEngine):
    """A rollout engine whose requests wait for their turn."""

    def __init__(self, inner: RolloutEngine, lockstep: Lockstep) -> None:
        self._inner, self._lockstep = inner, lockstep

    @property
    def version(self) -> int:  # type: ignore[override]
        """That of the engine."""
        return self._inner.version

    async def generate(self, messages: list[Message], seed: int, sampling: Sampling, prefix: Sequence[int] = ()) -> Generation:
        """See :meth:`RolloutEngine.generate`."""
        await self._lockstep.turn()
        return await self._inner.generate(messages, seed, sampling, prefix)

    def encode(self, messages: list[Message], response: str | None = None) -> np.ndarray:
        """See :meth:`RolloutEngine.encode`."""
        return self._inner.encode(messages, response)
