"""Coroutines that go on at the same time, none of which outlives the others."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")


async def together(coroutines: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """The results of all, in their order; the first error ends the others."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await stop(tasks)


async def in_order(coroutines: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """As :func:`together`, but the error is that of the first coroutine which has one, and not of whichever fails first; those before it end."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return [await task for task in tasks]
    finally:
        await stop(tasks)


async def stop(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel what still runs, and wait until it has ended."""
    for task in tasks:
        if not task.cancelling():  # twice would end what it does to end
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
