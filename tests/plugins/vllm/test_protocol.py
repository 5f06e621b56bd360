"""What is said to a vLLM server, and what its answers mean: against a server that plays one."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from threespo_bench.contracts.rollout import ServedModel, ServerGone
from threespo_bench.errors import EngineError
from threespo_plugins.serving.weights import StoredWeights
from threespo_plugins.vllm_rollout.config import VllmConfig
from threespo_plugins.vllm_rollout.remote import RunningServer, check_server


class Played(ThreadingHTTPServer):
    """State of the played server, and the faults that it shall have."""

    daemon_threads, request_queue_size = True, 64

    def __init__(self, vocabulary: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.vocabulary, self.label, self.calls, self.read = vocabulary, "default", [], {}
        self.reset, self.healthy, self.aborts, self.renames = True, True, 0, True
        self.fails: set[str] = set()

    def handle_error(self, *_: object) -> None:
        pass


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Played

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer({} if self.server.healthy else {"error": "dead"}, 200 if self.server.healthy else 503)
        elif self.path == "/v1/models":
            self.answer({"data": [{"id": "m", "max_model_len": 512}]})
        elif self.path == "/weight_info":
            self.answer({"weight_version": self.server.label})

    def do_POST(self) -> None:
        size = int(self.headers["Content-Length"])
        payload = json.loads(self.rfile.read(size)) if size else {}
        path = self.path.partition("?")[0]
        self.server.calls.append((self.path, payload))
        if path in self.server.fails:
            self.answer({"error": {"message": "it broke"}}, 500)
        elif path == "/inference/v1/generate":
            self.generate(payload)
        elif path == "/update_weight_version" and self.server.renames:
            self.server.label = payload["new_version"]
            self.answer({"success": True})
        elif path == "/collective_rpc":
            (file,) = Path(payload["kwargs"]["weights_path"]).iterdir()
            self.server.read = load_file(file)
            self.answer({"results": [None]})
        elif path == "/reset_prefix_cache":
            self.answer({"success": self.server.reset})
        else:
            self.answer({})

    def generate(self, payload: dict[str, Any]) -> None:
        sampling = payload["sampling_params"]
        if any(int(token) >= self.server.vocabulary for token in sampling.get("logit_bias", {})):
            self.answer({"error": {"message": "contain out-of-vocab token ids"}}, 400)
            return
        reason = "stop"
        if self.server.aborts:
            self.server.aborts -= 1
            reason = "abort"
        choice = {
            "token_ids": [5, 1],
            "finish_reason": reason,
            "logprobs": {"content": [{"token_id": 5, "logprob": -0.5}, {"token_id": 1, "logprob": -1.5}]},
            "weight_versions": [{"version": self.server.label, "start": 0, "end": 2}],
        }
        self.answer({"choices": [choice], "usage": {"prompt_tokens_details": {"cached_tokens": 3}}})

    def answer(self, body: object, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def played() -> Iterator[Played]:
    server = Played(400)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def rollout(played: Played, model: Path, tmp_path: Path) -> Iterator[RunningServer]:
    config = VllmConfig(url=f"http://127.0.0.1:{played.server_port}", weights_folder=str(tmp_path / "weights"))
    rollout = RunningServer(config, ServedModel(model, "float32", "cpu", 512, (1,), 0))
    yield rollout
    rollout.close()
    assert not any((tmp_path / "weights").glob("*")), "weights were left behind"


def ask(rollout: RunningServer) -> Any:
    return asyncio.run(rollout.complete(np.array([3, 4], np.int32), 2**63 - 1, 0.5, 6))


def test_a_request_and_its_answer(rollout: RunningServer, played: Played) -> None:
    rollout.start()
    answer = ask(rollout)
    assert answer.token_ids.tolist() == [5, 1] and answer.token_ids.dtype == np.int32
    assert answer.log_probs.tolist() == [-0.5, -1.5] and answer.log_probs.dtype == np.float32
    assert (answer.version, answer.finished, answer.cached_tokens) == (0, True, 3)
    path, payload = played.calls[-1]
    assert path == "/inference/v1/generate" and payload["token_ids"] == [3, 4]
    expected = {"seed": 2**63 - 1, "temperature": 0.5, "max_tokens": 6, "stop_token_ids": [1], "ignore_eos": True, "logprobs": 0, "detokenize": False}
    assert payload["sampling_params"] == expected


def test_a_publication_in_order(rollout: RunningServer, played: Played, model: Path) -> None:
    rollout.start()
    played.calls.clear()
    rollout.publish(StoredWeights(model), 4)
    paths = [path for path, _ in played.calls]
    assert paths == ["/pause?mode=abort", "/update_weight_version", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume"]
    assert played.calls[1][1]["new_version"].endswith(":none") and played.label.endswith(":4")
    assert ask(rollout).version == 4


def test_a_tied_output_layer_is_handed_over_too(rollout: RunningServer, played: Played) -> None:
    rollout.start()
    assert (played.read["lm_head.weight"] == played.read["model.embed_tokens.weight"]).all()


def test_what_is_given_up_for_new_weights_is_asked_again(rollout: RunningServer, played: Played) -> None:
    rollout.start()
    played.aborts = 2
    assert ask(rollout).token_ids.tolist() == [5, 1]


@pytest.mark.parametrize("path", ["/collective_rpc", "/reset_prefix_cache", "/update_weight_version"])
def test_a_publication_that_fails_leaves_no_version_and_a_server_that_answers(rollout: RunningServer, played: Played, model: Path, path: str) -> None:
    rollout.start()
    played.fails.add(path)
    with pytest.raises(EngineError, match="it broke"):
        rollout.publish(StoredWeights(model), 1)
    assert played.calls[-1][0] == "/resume"
    if path != "/update_weight_version":
        with pytest.raises(EngineError, match="stale weights"):
            ask(rollout)


def test_a_cache_that_is_not_dropped(rollout: RunningServer, played: Played, model: Path) -> None:
    rollout.start()
    played.reset = False
    with pytest.raises(EngineError, match="did not drop what it cached"):
        rollout.publish(StoredWeights(model), 1)


def test_a_server_that_keeps_reporting_another_version(rollout: RunningServer, played: Played, model: Path) -> None:
    rollout.start()
    played.renames = False
    with pytest.raises(EngineError, match="after version 1 was published"):
        rollout.publish(StoredWeights(model), 1)


def test_weights_that_another_program_put_there(rollout: RunningServer, played: Played) -> None:
    rollout.start()
    played.label = "default"
    with pytest.raises(EngineError, match="weights labelled default, not from published ones"):
        ask(rollout)


def test_an_engine_that_died_is_told_from_a_request_that_failed(rollout: RunningServer, played: Played) -> None:
    rollout.start()
    played.fails.add("/inference/v1/generate")
    played.healthy = False
    with pytest.raises(ServerGone, match="engine died"):
        ask(rollout)


def test_a_server_that_came_back_gets_the_published_weights(rollout: RunningServer, played: Played, model: Path) -> None:
    rollout.start()
    played.label, played.read = "default", {}
    rollout.restart(StoredWeights(model), 5)
    assert played.read and ask(rollout).version == 5


def test_another_model(played: Played, model: Path) -> None:
    config = VllmConfig(url=f"http://127.0.0.1:{played.server_port}")
    check_server(config, model)
    for vocabulary in (399, 401):
        played.vocabulary = vocabulary
        with pytest.raises(EngineError, match=r"serves m, whose vocabulary is not of 400 tokens"):
            check_server(config, model)


def test_a_context_that_is_too_short(played: Played, model: Path) -> None:
    with pytest.raises(EngineError, match="has a context of 512 tokens, the run needs 1024"):
        check_server(VllmConfig(url=f"http://127.0.0.1:{played.server_port}"), model, 1024)
