"""An HTTP server that speaks what ``rollout=sglang`` needs of SGLang's protocol, in both generations that are known (0.5.12, 0.5.23), over a tiny model.

Routes, fields, statuses and messages are those of the source text of the two versions, failures included. It takes the options that the plugin gives
SGLang and no others, and reads the variables that SGLang reads:

    python -m tests.plugins.sglang.contract_server --model-path FOLDER --port PORT ...
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.plugins.sglang.engine import Engine, Refused, Setup


class ContractServer(ThreadingHTTPServer):
    """Serves until it is closed; ``calls`` has what was posted, in order."""

    daemon_threads, request_queue_size = True, 128

    def __init__(self, setup: Setup, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.setup, self.engine, self.calls = setup, Engine(setup), list[tuple[str, Any]]()
        self.die = lambda: None  # what the fault "die" does beside closing the connection

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        pass


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ContractServer

    def do_GET(self) -> None:
        engine, setup, path = self.server.engine, self.server.setup, self.path
        if path in ("/health", "/health_generate"):
            self.answer(503 if "unhealthy" in setup.faults else 200)
        elif path == "/get_server_info" or (path == "/server_info" and "old" not in setup.faults):
            own = {"version": setup.version, "enable_deterministic_inference": setup.deterministic, "skip_tokenizer_init": True, "internal_states": [{}]}
            self.answer(200, own | ({"frontend": "python"} if setup.version >= "0.5.23" else {}))
        elif path in ("/model_info", "/get_model_info"):
            newer = {"served_model_name": str(engine.folder), "load_format": "safetensors"} if setup.version >= "0.5.23" else {}
            self.answer(200, {"model_path": str(engine.folder), "is_generation": True, "weight_version": engine.label} | newer)
        elif path == "/v1/models":
            self.answer(200, {"object": "list", "data": [{"id": str(setup.folder), "object": "model", "max_model_len": setup.context}]})
        else:
            self.answer(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size)) if size else None
        parts = urlsplit(self.path)
        self.server.calls.append((self.path, body))
        route = ROUTES.get(parts.path)
        if route is None:
            self.answer(404, {"detail": "Not Found"})
            return
        if body is None and parts.path != "/flush_cache":
            self.answer(422, {"detail": [{"loc": ["body"], "msg": "Field required"}]})
            return
        try:
            if f"fails:{parts.path}" in self.server.setup.faults:
                raise Refused("it broke", 500)
            route(self, body, parse_qs(parts.query))
        except Refused as error:
            self.answer(error.status, {"error": {"message": str(error)}})
        except SystemExit:
            self.server.die()
            self.close_connection = True

    def generate(self, body: dict[str, Any], _: Any) -> None:
        body.setdefault("rid", uuid.uuid4().hex)
        answer = self.server.engine.generate(body)
        self.answer(200, {"text": "", "output_ids": [token for _, token, _ in answer["output_token_logprobs"]], "meta_info": answer})

    def update(self, body: dict[str, Any], _: Any) -> None:
        success, message = self.server.engine.update(body)
        status = 200 if success or "refuses_with_200" in self.server.setup.faults else 400
        self.answer(status, {"success": success, "message": message, "num_paused_requests": 0})

    def rename(self, body: dict[str, Any], _: Any) -> None:
        if body.get("abort_all_requests", True):
            self.server.engine.abort("", everything=True)
        self.server.engine.label = body["new_version"]
        self.answer(200, {"success": True, "message": f"Weight version updated to {body['new_version']}", "new_version": body["new_version"]})

    def flush(self, _: Any, query: dict[str, list[str]]) -> None:
        done = self.server.engine.flush(float(query.get("timeout", ["0"])[0]))
        self.answer(200 if done else 400, "Cache flushed.\n" if done else "Flush cache failed.\n")

    def pause(self, body: dict[str, Any], _: Any) -> None:
        self.server.engine.pause(body.get("mode", "abort"))
        self.answer(200, {"message": "Generation paused successfully.", "status": "ok"})

    def resume(self, *_: Any) -> None:
        self.server.engine.resume()
        self.answer(200, {"message": "Generation continued successfully.", "status": "ok"})

    def abort(self, body: dict[str, Any], _: Any) -> None:
        self.server.engine.abort(body.get("rid") or "", bool(body.get("abort_all")))
        self.answer(200)

    def answer(self, status: int, body: object = "") -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


ROUTES = {
    "/generate": Handler.generate,
    "/update_weights_from_disk": Handler.update,
    "/update_weight_version": Handler.rename,
    "/flush_cache": Handler.flush,
    "/pause_generation": Handler.pause,
    "/continue_generation": Handler.resume,
    "/abort_request": Handler.abort,
}


def main() -> None:
    """As ``python -m sglang.launch_server``; three variables say what it plays: a version, faults, and a start that fails."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("model-path", "dtype", "device", "random-seed", "host", "max-running-requests", "grammar-backend", "log-level-http"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--context-length", type=int, default=1024)
    parser.add_argument("--weight-version", default="default")
    parser.add_argument("--max-total-tokens", type=int)
    parser.add_argument("--attention-backend")
    for name in ("skip-tokenizer-init", "enable-deterministic-inference", "disable-radix-cache", "disable-overlap-schedule", "disable-cuda-graph"):
        parser.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args()
    if fault := os.environ.get("CONTRACT_SERVER_START"):
        raise SystemExit(f"RuntimeError: {fault}")
    original = os.environ.get("SGLANG_RETURN_ORIGINAL_LOGPROB") in ("1", "true")
    version = os.environ.get("CONTRACT_SERVER_VERSION", "0.5.23")
    setup = Setup(Path(options.model_path), options.context_length, version, options.enable_deterministic_inference, original, options.weight_version)
    setup.faults |= set(filter(None, os.environ.get("CONTRACT_SERVER_FAULTS", "").split(",")))
    server = ContractServer(setup, options.port)
    server.die = lambda: os._exit(1)
    print(f"listening on {server.url}", flush=True)
    server.serve_forever(0.02)


def serve(setup: Setup) -> tuple[ContractServer, threading.Thread]:
    """A server in a thread of this process."""
    server = ContractServer(setup)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    return server, thread


if __name__ == "__main__":
    main()
