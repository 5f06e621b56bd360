"""An address where no Ray cluster answers is refused at once, with one line."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from threespo_bench.errors import EngineError
from threespo_plugins import ray_address
from threespo_plugins.ray_address import check_ray_address

Serve = Callable[[bytes | None], str]
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a listener that answers the first thing that is said to it with some bytes, or with nothing, and then waits; its address."""
    listeners, threads = [], []

    def answer(listener: socket.socket, said: bytes | None) -> None:
        with listener.accept()[0] as connection:
            connection.recv(1000)
            if said is not None:
                connection.sendall(said)
                return
            connection.recv(1)  # until the other end closes

    def start(said: bytes | None) -> str:
        listeners.append(socket.create_server(("127.0.0.1", 0)))
        threads.append(threading.Thread(target=answer, args=(listeners[-1], said)))
        threads[-1].start()
        return f"127.0.0.1:{listeners[-1].getsockname()[1]}"

    yield start
    for thread in threads:
        thread.join()
    for listener in listeners:
        listener.close()


def refused(address: str) -> str:
    with pytest.raises(EngineError) as caught:
        check_ray_address(address, "start it")
    assert caught.value.fix == "start it" and "\n" not in str(caught.value)
    return str(caught.value)


def free() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_nothing_listens_there(scheme: str) -> None:
    address = scheme + free()
    assert refused(address).startswith(f"cannot join the Ray cluster {address}: ") and "refused" in refused(address)


def test_what_is_no_address_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused("127.0.0.1:99999").endswith("there is no port 99999")
    assert refused("127.0.0.1:0").endswith("there is no port 0")
    assert "cannot join the Ray cluster a..b:6379" in refused("a..b:6379")

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert refused("head:6379").endswith("Name or service not known")


@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n", b"", b"\0\0"], ids=["web server", "ssh", "nothing", "too little"]
)
def test_something_else_listens_there(serve: Serve, said: bytes) -> None:
    address = serve(said)
    assert refused(address) == f"cannot join the Ray cluster {address}: what listens there is no Ray cluster"


def test_something_that_hangs(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_address, "_SECONDS", 0.2)
    assert refused(serve(None)).endswith(": timed out")


def test_a_service_that_speaks_as_those_of_ray(serve: Serve) -> None:
    check_ray_address(serve(SETTINGS + b"more"), "start it")
    check_ray_address("ray://" + serve(SETTINGS), "start it")


def test_one_that_speaks_with_its_certificate_only(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USE_TLS", "1")
    check_ray_address(serve(b""), "start it")


def test_the_cluster_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    check_ray_address("auto", "start it")  # Ray looks for it
    monkeypatch.setenv("RAY_ADDRESS", place := free())
    assert refused("auto").startswith(f"cannot join the Ray cluster auto, which is RAY_ADDRESS={place}: ")
