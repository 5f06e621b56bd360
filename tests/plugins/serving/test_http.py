"""The HTTP client against a server of the standard library."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from threespo_bench.contracts.rollout import ServerGone
from threespo_bench.errors import UsageError
from threespo_plugins.serving.http import Answer, JsonClient, StatusError, served_model, split_url
from threespo_plugins.serving.process import free_port


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 0.4  # seconds after which an idle connection is closed

    def do_GET(self) -> None:
        self.send(200, {"path": self.path})

    def do_POST(self) -> None:
        payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        if self.path == "/echo":
            self.send(200, payload)
        elif self.path == "/who":
            self.send(200, self.client_address[1])
        elif self.path == "/chunked":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for part in (b"[1,", b"2]"):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                time.sleep(0.02)
            self.wfile.write(b"0\r\n\r\n")
        elif self.path == "/elsewhere":
            self.send(302, None)
        elif self.path == "/wrong":
            self.send(400, {"error": {"message": "no such\nmodel"}})
        elif self.path == "/drop":
            self.close_connection = True
        elif self.path == "/slow":
            server.busy += 1
            self.connection.settimeout(5)
            try:
                if not self.connection.recv(1):
                    server.dropped += 1
            except OSError:
                pass
            self.close_connection = True

    def send(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("X-Version", "7")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 128
    busy = dropped = 0

    def handle_error(self, *_: object) -> None:  # clients that go away are what is tested
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def client(server: Server) -> Iterator[JsonClient]:
    client = JsonClient(f"http://127.0.0.1:{server.server_port}/", timeout=5)
    yield client
    client.close()


def ask(client: JsonClient, path: str, *payloads: object) -> list:
    async def all_of_them() -> list:
        return await asyncio.gather(*(client.request("POST", path, payload) for payload in payloads))

    return [answer.body for answer in asyncio.run(all_of_them())]


def test_many_requests_at_once_get_their_own_answers(client: JsonClient) -> None:
    payloads = [{"number": i, "text": "ü" * i * 1000} for i in range(40)]
    assert ask(client, "/echo", *payloads) == payloads
    assert client.request_now("GET", "/health").body == {"path": "/health"}
    assert client.request_now("GET", "/health").headers["x-version"] == "7"


def test_connections_are_kept_over_event_loops(client: JsonClient) -> None:
    assert ask(client, "/who", 1) == ask(client, "/who", 1)


def test_no_more_connections_than_allowed(server: Server) -> None:
    client = JsonClient(f"http://127.0.0.1:{server.server_port}", connections=3)
    assert len(set(ask(client, "/who", *range(30)))) == 3
    client.close()


def test_a_connection_that_the_server_closed_as_idle_is_replaced(client: JsonClient) -> None:
    first = ask(client, "/who", 1)
    time.sleep(1)
    assert ask(client, "/who", 1) != first


def test_chunked_answers(client: JsonClient) -> None:
    assert ask(client, "/chunked", 1, 2) == [[1, 2]] * 2


def test_an_error_carries_the_reason_in_one_line(client: JsonClient) -> None:
    for call in (lambda: ask(client, "/wrong", 1), lambda: client.request_now("POST", "/wrong", 1)):
        with pytest.raises(StatusError, match=r"answered 400: no such model$") as caught:
            call()
        assert caught.value.status == 400
    assert ask(client, "/echo", 1) == [1]


def test_a_server_that_goes_away(client: JsonClient) -> None:
    with pytest.raises(ServerGone, match="does not answer: the connection was closed"):
        ask(client, "/drop", 1)
    gone = JsonClient(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(ServerGone, match="does not answer"):
        ask(gone, "/echo", 1)
    with pytest.raises(ServerGone, match="does not answer"):
        gone.request_now("GET", "/health")
    assert not gone.answers("/health") and client.answers("/health")


def test_a_server_that_hangs(server: Server) -> None:
    client = JsonClient(f"http://127.0.0.1:{server.server_port}", timeout=0.2)
    with pytest.raises(ServerGone, match=r"did not answer /slow within 0.2 s"):
        ask(client, "/slow", 1)


def test_the_server_learns_of_a_cancelled_request(client: JsonClient, server: Server) -> None:
    async def cancel() -> None:
        task = asyncio.ensure_future(client.request("POST", "/slow", 1))
        while not server.busy:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while not server.dropped:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(cancel(), 4))
    assert ask(client, "/echo", 1) == [1]


@pytest.mark.parametrize("url", ["localhost:8000", "https://host:1", "http://", "http://host:port", "http://me@host:1", "http://host:1?key=2"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(UsageError, match=r"rollout\.url"):
        split_url(url)


def test_parts_of_a_url() -> None:
    assert split_url("http://[::1]:30000/v1/") == ("::1", 30000, "/v1") and split_url("http://host") == ("host", 80, "")


GARBAGE = [
    None,
    "<html>\n<h1>It works</h1></html>",
    [1],
    {},
    {"data": []},
    {"data": ["x"]},
    {"data": [{"foo": 1}]},
    {"data": [{"id": "m", "max_model_len": "8"}]},
]


@pytest.mark.parametrize("body", GARBAGE, ids=str)
def test_what_is_no_list_of_models(client: JsonClient, monkeypatch: pytest.MonkeyPatch, body: object) -> None:
    monkeypatch.setattr(client, "request_now", lambda *_, **__: Answer(200, {}, body))
    with pytest.raises(StatusError, match=r"/v1/models answered .+, which is no list of models") as caught:
        served_model(client)
    assert "\n" not in str(caught.value)


def test_a_list_of_models(client: JsonClient, monkeypatch: pytest.MonkeyPatch) -> None:
    model = {"id": "m", "max_model_len": 8}
    monkeypatch.setattr(client, "request_now", lambda *_, **__: Answer(200, {}, {"data": [model]}))
    assert served_model(client) == model


def test_a_redirection_is_an_error(client: JsonClient) -> None:
    with pytest.raises(StatusError, match="answered 302"):
        ask(client, "/elsewhere", {})
    with pytest.raises(StatusError, match="answered 302"):
        client.request_now("POST", "/elsewhere", {})
