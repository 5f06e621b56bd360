"""Coroutines that go on at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from threespo_bench.rollout.concurrency import in_order, stop, together


def test_results_are_in_the_order_of_the_coroutines() -> None:
    async def answer(number: int) -> int:
        await asyncio.sleep(0.01 * (3 - number))
        return number

    for run in (together, in_order):
        assert asyncio.run(run(answer(number) for number in range(3))) == [0, 1, 2]
        assert asyncio.run(run([])) == []


@pytest.mark.parametrize("cancelled", [False, True])
def test_the_first_error_and_a_cancellation_end_all_and_wait_for_their_ends(cancelled: bool) -> None:
    ended = []

    async def wait(number: int) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)  # what it takes to let go of something
            ended.append(number)

    async def fail() -> None:
        await asyncio.sleep(60 if cancelled else 0.01)
        raise KeyError("first")

    async def main() -> None:
        task = asyncio.create_task(together([wait(0), fail(), wait(1)]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if cancelled:
            task.cancel()
        with pytest.raises(asyncio.CancelledError if cancelled else KeyError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert sorted(ended) == [0, 1]


@pytest.mark.parametrize(("run", "raised"), [(together, 2), (in_order, 1)])
def test_which_error_is_raised(run: Callable[..., Any], raised: int) -> None:
    async def fail(number: int) -> int:
        await asyncio.sleep((0.0, 0.1, 0.0, 60)[number])
        if number:
            raise ValueError(number)
        return number

    async def main() -> None:
        with pytest.raises(ValueError, match=str(raised)):
            await run(fail(number) for number in range(4))
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_what_has_ended_is_left_as_it_is() -> None:
    async def main() -> tuple[bool, int]:
        good = asyncio.create_task(asyncio.sleep(0, 7))
        waiting = asyncio.create_task(asyncio.sleep(60))
        await good
        await stop([good, waiting])
        return waiting.cancelled(), good.result()

    assert asyncio.run(main()) == (True, 7)
