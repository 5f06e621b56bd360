"""A server that keeps connections open and answers nothing any more is found; one that is only slow is left alone."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from threespo_bench.contracts.rollout import ServerGone
from threespo_bench.errors import EngineError
from threespo_plugins.serving import http, pulse
from threespo_plugins.serving.http import JsonClient
from threespo_plugins.serving.pulse import Pulse
from threespo_plugins.serving.remote import resuming


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "LOOK", 0.05)
    monkeypatch.setattr(http, "LOOK", 0.05)


def of(alive: Callable[[], bool]) -> Pulse:
    return Pulse(alive, lambda: ServerGone("it is gone"))


async def never() -> None:
    await asyncio.Event().wait()


def test_all_that_wait_learn_of_it() -> None:
    asked: list[bool] = []

    async def wait() -> list[object]:
        watch = of(lambda: asked.append(True) or False)
        found = await asyncio.gather(*(watch.guard(never()) for _ in range(3)), return_exceptions=True)
        return [*found, len(asyncio.all_tasks())]

    *errors, tasks = asyncio.run(asyncio.wait_for(wait(), 30))
    assert [type(error) for error in errors] == [ServerGone] * 3
    assert len(asked) == pulse.MISSES and tasks == 2, "wait_for and its coroutine"


def test_a_slow_answer_of_a_server_that_is_well() -> None:
    asked: list[bool] = []

    async def slow() -> str:
        while len(asked) < 3 * pulse.MISSES:
            await asyncio.sleep(0.01)
        return "done"

    assert asyncio.run(asyncio.wait_for(of(lambda: asked.append(True) or True).guard(slow()), 30)) == "done"


def test_a_server_that_misses_once_and_one_that_answers_others_meanwhile() -> None:
    asked: list[bool] = []

    def alive() -> bool:
        asked.append(True)
        return len(asked) % pulse.MISSES == 0

    async def wait() -> str:
        watch = of(alive)

        async def slow() -> str:
            while len(asked) < 4 * pulse.MISSES:
                await asyncio.sleep(0.01)
            return "done"

        return await watch.guard(slow())

    assert asyncio.run(asyncio.wait_for(wait(), 30)) == "done"

    async def others() -> str:
        watch, answers = of(lambda: False), 0

        async def at_once() -> None:
            return None

        async def slow() -> str:
            while answers < 40:
                await asyncio.sleep(0.01)
            return "done"

        request = asyncio.create_task(watch.guard(slow()))
        while answers < 40:
            await watch.guard(at_once())
            answers += 1
            await asyncio.sleep(0.01)
        return await request

    assert asyncio.run(asyncio.wait_for(others(), 30)) == "done"


def test_who_cancels_a_request_gets_no_other_error() -> None:
    async def cancel() -> None:
        request = asyncio.create_task(of(lambda: True).guard(never()))
        await asyncio.sleep(0.01)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request

    asyncio.run(cancel())


def test_what_a_request_raises_comes_through() -> None:
    async def fail() -> None:
        raise EngineError("no such model")

    with pytest.raises(EngineError, match="no such model"):
        asyncio.run(of(lambda: True).guard(fail()))


@pytest.fixture
def silent() -> Iterator[JsonClient]:
    """The client of a server that takes requests and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken: list[socket.socket] = []

        def take() -> None:
            try:
                while True:
                    taken.append(listener.accept()[0])
            except OSError:
                pass

        thread = threading.Thread(target=take)
        thread.start()
        yield JsonClient(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=60)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in taken:
            connection.close()


def test_a_request_that_blocks(silent: JsonClient) -> None:
    asked: list[bool] = []
    with pytest.raises(ServerGone, match="does not answer /pause, and does not say that it is well"):
        silent.request_now("POST", "/pause", alive=lambda: asked.append(True) or False)
    assert len(asked) == pulse.MISSES
    with pytest.raises(ServerGone, match="did not answer /pause in time"):
        silent.request_now("POST", "/pause", timeout=0.3, alive=lambda: True)


@pytest.mark.parametrize(("error", "calls"), [(None, 1), (KeyboardInterrupt(), 1), (EngineError("refused"), 1), (ServerGone("gone"), 0)])
def test_the_first_error_counts(error: BaseException | None, calls: int) -> None:
    """Ctrl-C during a publication is no reason to start the server again."""
    called: list[bool] = []

    def resume() -> None:
        called.append(True)
        if error is not None:
            raise ServerGone("gone as well")

    def publish() -> None:
        with resuming(resume):
            if error is not None:
                raise error

    if error is None:
        publish()
    else:
        with pytest.raises(type(error)) as caught:
            publish()
        assert caught.value is error
    assert len(called) == calls
