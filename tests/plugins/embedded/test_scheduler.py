"""Requests that wait together form one batch; errors and cancellations reach the right coroutines."""

import asyncio

import pytest

from threespo_plugins.embedded.scheduler import BatchScheduler


def recording(batches):
    def work(requests):
        batches.append(list(requests))
        return [request * 2 for request in requests]

    return BatchScheduler(work)


def test_requests_that_wait_together_form_one_batch():
    batches = []
    scheduler = recording(batches)

    async def episode(start, turns):
        for turn in range(turns):
            await asyncio.sleep(0)  # episodes pass through other coroutines before they ask again
            assert await scheduler.submit(start + turn) == 2 * (start + turn)

    async def main():
        await asyncio.gather(episode(0, 3), episode(10, 2), episode(20, 3))

    asyncio.run(main())
    assert batches == [[0, 10, 20], [1, 11, 21], [2, 22]]


def test_nested_tasks_join_the_batch_of_their_neighbours():
    batches = []
    scheduler = recording(batches)

    async def tree(name, depth):
        await scheduler.submit(name)
        if depth:
            async with asyncio.TaskGroup() as group:
                group.create_task(tree(name + 1, depth - 1))
                group.create_task(tree(name + 2, depth - 1))

    async def main():
        await asyncio.gather(tree(0, 2), tree(100, 2))

    asyncio.run(main())
    assert [len(batch) for batch in batches] == [2, 4, 8]


def test_an_error_of_the_batch_reaches_everyone_who_waits_and_the_next_batch_works():
    failing = [True]

    def work(requests):
        if failing.pop():
            raise RuntimeError("no memory")
        return requests

    scheduler = BatchScheduler(work)

    async def main():
        results = await asyncio.gather(scheduler.submit(1), scheduler.submit(2), return_exceptions=True)
        assert [str(result) for result in results] == ["no memory", "no memory"]
        failing.append(False)
        assert await scheduler.submit(3) == 3

    asyncio.run(main())


def test_an_answer_that_is_an_error_reaches_only_its_own_coroutine():
    scheduler = BatchScheduler(lambda requests: [ValueError("odd") if request % 2 else request for request in requests])

    async def main():
        one, two = await asyncio.gather(scheduler.submit(1), scheduler.submit(2), return_exceptions=True)
        assert (str(one), two) == ("odd", 2)

    asyncio.run(main())


def test_cancelled_requests_leave_the_batch():
    batches = []
    scheduler = recording(batches)

    async def main():
        lost = asyncio.ensure_future(scheduler.submit(1))
        kept = asyncio.ensure_future(scheduler.submit(2))
        await asyncio.sleep(0)
        lost.cancel()
        assert await kept == 4
        with pytest.raises(asyncio.CancelledError):
            await lost
        only = asyncio.ensure_future(scheduler.submit(3))
        await asyncio.sleep(0)
        only.cancel()
        await asyncio.sleep(0.01)
        assert await scheduler.submit(4) == 8

    asyncio.run(main())
    assert batches == [[2], [4]]


def test_a_new_event_loop_does_not_inherit_requests():
    batches = []
    scheduler = recording(batches)

    async def abandoned():
        task = asyncio.ensure_future(scheduler.submit(1))
        await asyncio.sleep(0)
        assert not task.done()

    asyncio.run(abandoned())
    assert asyncio.run(scheduler.submit(2)) == 4
    assert batches == [[2]]
