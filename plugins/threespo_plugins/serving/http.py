"""JSON over HTTP/1.1: many requests at once over connections that are kept open, and single ones that block.

Connections are plain sockets, so they belong to no event loop. A request that is cancelled closes its connection, which is how a server learns of it.
"""

from __future__ import annotations

import asyncio
import json
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

from threespo_bench.contracts.rollout import ServerGone
from threespo_bench.errors import EngineError, UsageError
from threespo_plugins.serving.pulse import LOOK, MISSES

_CHUNK = 1 << 18


@dataclass(frozen=True)
class Answer:
    """A response: its status, its headers by lower-case name, and its body as JSON says it (None where there is none, text where it is no JSON)."""

    status: int
    headers: dict[str, str]
    body: Any


class StatusError(EngineError):
    """The server answered with an error; ``status`` is the code."""

    def __init__(self, message: str, status: int, fix: str = "") -> None:
        super().__init__(message, fix)
        self.status = status


class JsonClient:
    """Talks to one server.

    Args:
        url: ``http://host:port``, with a path in front of all others if there is one.
        timeout: seconds until a request counts as lost.
        connections: requests at the same time; further ones wait here.
        headers: sent with every request.

    Raises:
        UsageError: the url is none.
    """

    def __init__(self, url: str, timeout: float = 600.0, connections: int = 256, headers: dict[str, str] | None = None) -> None:
        self.url, self._timeout, self._connections = url, timeout, connections
        self._host, self._port, self._path = split_url(url)
        self._headers = {"Host": f"{self._host}:{self._port}", "Content-Type": "application/json", **(headers or {})}
        self._idle: list[socket.socket] = []
        self._turn: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None

    async def request(self, method: str, path: str, payload: Any = None) -> Answer:
        """Ask, and wait for the whole answer.

        Raises:
            ServerGone: there is no server, it went away, or the time is over.
            StatusError: it answered with an error.
        """
        loop = asyncio.get_running_loop()
        if self._turn is None or self._turn[0] is not loop:
            self._turn = loop, asyncio.Semaphore(self._connections)
        message = self._message(method, path, payload)
        async with self._turn[1]:
            try:
                async with asyncio.timeout(self._timeout):
                    answer = await self._exchange(loop, message)
            except TimeoutError as error:
                raise ServerGone(f"{self.url} did not answer {path} within {self._timeout:g} s") from error
            except (OSError, ValueError) as error:
                raise ServerGone(f"{self.url} does not answer: {error or type(error).__name__}") from error
        return _checked(answer, self.url, path)

    def request_now(self, method: str, path: str, payload: Any = None, timeout: float | None = None, alive: Callable[[], bool] | None = None) -> Answer:
        """The same, blocking, over a connection of its own. ``alive`` is asked while no answer comes; a server that is not is gone."""
        timeout = self._timeout if timeout is None else timeout
        connection = HTTPConnection(self._host, self._port, timeout=timeout)
        try:
            connection.request(method, self._path + path, None if payload is None else json.dumps(payload), self._headers)
            if alive is not None:
                self._wait(connection, path, timeout, alive)
            response = connection.getresponse()
            answer = Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, _parsed(response.read()))
        except TimeoutError as error:
            raise ServerGone(f"{self.url} did not answer {path} in time") from error
        except (OSError, HTTPException) as error:
            raise ServerGone(f"{self.url} does not answer: {error or type(error).__name__}") from error
        finally:
            connection.close()
        return _checked(answer, self.url, path)

    def _wait(self, connection: HTTPConnection, path: str, timeout: float, alive: Callable[[], bool]) -> None:
        """Return once something of the answer is there. Raises TimeoutError, or ServerGone."""
        deadline, missed = time.monotonic() + timeout, 0
        while not select.select([connection.sock], [], [], max(min(LOOK, deadline - time.monotonic()), 0.0))[0]:
            if time.monotonic() >= deadline:
                raise TimeoutError
            missed = 0 if alive() else missed + 1
            if missed == MISSES:
                raise ServerGone(f"{self.url} does not answer {path}, and does not say that it is well")

    def answers(self, path: str, timeout: float = 2.0) -> bool:
        """A GET of ``path`` is answered without an error."""
        try:
            self.request_now("GET", path, timeout=timeout)
        except EngineError:
            return False
        return True

    def close(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            self._idle.pop().close()

    def _message(self, method: str, path: str, payload: Any) -> bytes:
        body = b"" if payload is None else json.dumps(payload, separators=(",", ":")).encode()
        headers = "".join(f"{name}: {value}\r\n" for name, value in self._headers.items())
        return f"{method} {self._path}{path} HTTP/1.1\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body

    async def _exchange(self, loop: asyncio.AbstractEventLoop, message: bytes) -> Answer:
        while True:
            used = bool(self._idle)
            connection = self._idle.pop() if used else await self._connect(loop)
            reader = _Reader(loop, connection)
            try:
                await loop.sock_sendall(connection, message)
                answer = await reader.answer()
            except OSError:
                connection.close()
                if used and not reader.received:  # the server had closed it as idle
                    continue
                raise
            except BaseException:  # cancelled: the server has to know
                connection.close()
                raise
            if answer.headers.get("connection", "").lower() == "close":
                connection.close()
            else:
                self._idle.append(connection)
            return answer

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> socket.socket:
        families = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        for number, (family, kind, protocol, _, address) in enumerate(families, 1):
            connection = socket.socket(family, kind, protocol)
            try:
                connection.setblocking(False)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await loop.sock_connect(connection, address)
            except BaseException as error:
                connection.close()
                if isinstance(error, OSError) and number < len(families):
                    continue
                raise
            return connection
        raise ConnectionError(f"{self._host} has no address")


@dataclass
class _Reader:
    """Reads one answer from a socket."""

    loop: asyncio.AbstractEventLoop
    connection: socket.socket
    received: bytearray = field(default_factory=bytearray)

    async def answer(self) -> Answer:
        """Raises OSError when the connection ends, ValueError for what is no HTTP."""
        start, *lines = (await self._until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        version, status, *_ = start.split(" ")
        if not version.startswith("HTTP/1."):
            raise ValueError(f"{start[:40]!r} is no HTTP")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if headers.get("transfer-encoding", "").lower() == "chunked":
            parts = []
            while size := int((await self._until(b"\r\n")).split(b";")[0], 16):
                parts.append((await self._exactly(size + 2))[:-2])
            await self._until(b"\r\n")
            body = b"".join(parts)
        else:
            body = await self._exactly(int(headers.get("content-length", 0)))
        return Answer(int(status), headers, _parsed(body))

    async def _until(self, mark: bytes) -> bytes:
        searched = 0
        while (end := self.received.find(mark, searched)) < 0:
            searched = max(len(self.received) - len(mark) + 1, 0)
            await self._more()
        return self._take(end + len(mark))[: -len(mark)]

    async def _exactly(self, size: int) -> bytes:
        while len(self.received) < size:
            await self._more()
        return self._take(size)

    def _take(self, size: int) -> bytes:
        taken = bytes(self.received[:size])
        del self.received[:size]
        return taken

    async def _more(self) -> None:
        data = await self.loop.sock_recv(self.connection, _CHUNK)
        if not data:
            raise ConnectionResetError("the connection was closed")
        self.received += data


def served_model(client: JsonClient, timeout: float = 10.0) -> dict[str, Any]:
    """The first model of ``/v1/models``; its ``id`` is a string and its ``max_model_len``, where there is one, a number.

    Raises:
        ServerGone: there is no server. StatusError: it answered with an error, or with something else.
    """
    answer = client.request_now("GET", "/v1/models", timeout=timeout)
    try:
        model = answer.body["data"][0]
        if isinstance(model["id"], str) and isinstance(model.get("max_model_len") or 0, int):
            return model
    except (LookupError, TypeError, AttributeError):
        pass
    raise StatusError(f"{client.url}/v1/models answered {_reason(answer.body, 80) if answer.body else 'nothing'}, which is no list of models", answer.status)


def split_url(url: str) -> tuple[str, int, str]:
    """Host, port and leading path of ``http://host:port/path``. Raises UsageError for anything else."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"rollout.url={url} cannot be read: {error}", fix="http://HOST:PORT") from error
    if parts.scheme != "http" or not host or parts.username is not None or parts.query or parts.fragment:
        raise UsageError(f"rollout.url={url} is out of range: must be http://HOST:PORT")
    return host, port or 80, parts.path.rstrip("/")


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except ValueError:
        return body.decode(errors="replace")


def _checked(answer: Answer, url: str, path: str) -> Answer:
    if not 200 <= answer.status < 300:  # no redirection is followed: a server with a model answers itself
        raise StatusError(f"{url}{path} answered {answer.status}: {_reason(answer.body)}", answer.status)
    return answer


def _reason(body: Any, limit: int = 300) -> str:
    """The message in an error's body, in one line."""
    while isinstance(body, dict):
        body = next((body[key] for key in ("error", "message", "detail") if key in body), json.dumps(body))
    return " ".join(str(body or "no reason given").split())[:limit]
