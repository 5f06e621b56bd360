"""SGLang behind HTTP: a server that is started and stopped here, or one that runs already.

The routes are the same in the two generations of its protocol that are known, of 0.5.12 and of 0.5.23. The newer one names the weights of each span of
tokens, the older one those that the server had when it answered; since all that is under way is given up before weights change, one label is enough.
``/begin_weight_update`` and ``/end_weight_update`` of the newer one frame updates from tensors; an update from disk needs neither.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from threespo_bench.contracts.rollout import Completion, Weights
from threespo_bench.errors import EngineError
from threespo_plugins.serving import remote
from threespo_plugins.serving.environments import interpreter
from threespo_plugins.serving.http import JsonClient, StatusError
from threespo_plugins.serving.remote import RemoteServer, resuming
from threespo_plugins.sglang_rollout import arguments
from threespo_plugins.sglang_rollout.setup import check_server, resume

_MODULE = "sglang.launch_server"
_IDLE = 60  # seconds in which requests that were given up have to be over
_ABORT = 5.0  # seconds for the server to take note of a cancelled request


class _Server(RemoteServer):
    """SGLang's routes."""

    title = "SGLang"
    health_seconds = 30.0  # it generates a token to say that it is well, and gives that 20 s

    async def complete(self, prompt_ids: np.ndarray, seed: int, temperature: float, max_new_tokens: int) -> Completion:
        """See :meth:`RolloutServer.complete`."""
        sampling = arguments.sampling_parameters(self.model.stop_ids, seed, temperature, max_new_tokens)
        while True:
            name = uuid.uuid4().hex
            request = {"rid": name, "input_ids": prompt_ids.tolist(), "sampling_params": sampling, "return_logprob": True}
            try:
                answer = (await self._ask("/generate", request))["meta_info"]
            except asyncio.CancelledError:
                await self._abort(name)
                raise
            if answer["finish_reason"]["type"] != "abort":  # given up for new weights: ask those
                return self._completion(answer, max_new_tokens)

    def _load(self, folder: Path, version: int) -> None:
        self._post("/pause_generation", {"mode": "abort"})
        with resuming(lambda: resume(self._client)):
            self._change("/update_weight_version", {"new_version": self._labels.none, "abort_all_requests": False})
            # The cache is dropped by a request of its own, which waits until nothing is under way; the update would fail or, in 0.5.12, end the server.
            update = {"model_path": str(folder), "load_format": "safetensors", "flush_cache": False, "weight_version": self._labels.of(version)}
            self._change("/update_weights_from_disk", update)
            try:
                self._post(f"/flush_cache?timeout={_IDLE}")
            except StatusError as error:
                self._change("/update_weight_version", {"new_version": self._labels.none, "abort_all_requests": False})
                raise EngineError(f"SGLang did not drop what it cached of older weights: {error}") from error
            label = self._label()
            if label != self._labels.of(version):
                raise EngineError(f"SGLang reports weights {label} after version {version} was published")

    def _change(self, path: str, payload: dict[str, Any]) -> None:
        """Raises EngineError if the server says that it did not do it, by whatever status."""
        body = self._post(path, payload)
        if not isinstance(body, dict) or body.get("success") is not True:
            message = body.get("message") if isinstance(body, dict) else body
            raise EngineError(f"SGLang refused {path}: {' '.join(str(message or 'no reason given').split())[:300]}")

    def _label(self) -> str:
        return self._client.request_now("GET", "/model_info").body["weight_version"]

    async def _abort(self, name: str) -> None:
        """By itself the server notices only every few seconds that a connection was closed."""
        client = JsonClient(self._client.url, _ABORT)  # of its own: the others may all be in use
        with suppress(EngineError):
            await client.request("POST", "/abort_request", {"rid": name})
        client.close()

    def _completion(self, answer: dict[str, Any], max_new_tokens: int) -> Completion:
        tokens = np.array([token for _, token, *_ in answer["output_token_logprobs"]], np.int32)
        finished = answer["finish_reason"]["type"] == "stop"
        if finished and tokens[-1] not in self.model.stop_ids:
            raise EngineError(f"SGLang ended a response at token {tokens[-1]}, which is none of the run's stop tokens {self.model.stop_ids}")
        if not finished and len(tokens) < max_new_tokens:
            raise EngineError(
                f"SGLang cut a response after {len(tokens)} of {max_new_tokens} tokens", fix="more rollout.kv_cache_tokens, or a longer --context-length"
            )
        spans = answer.get("weight_versions") or [{"version": answer["weight_version"]}]
        return Completion(
            token_ids=tokens,
            log_probs=np.array([log_prob for log_prob, *_ in answer["output_token_logprobs"]], np.float32),
            version=self._labels.version(span["version"] for span in spans),
            finished=finished,
            cached_tokens=answer.get("cached_tokens") or 0,
        )


class OwnServer(_Server, remote.OwnServer):
    """One that is started here."""

    def _command(self, port: int) -> list[str]:
        options = arguments.server_options(self.config, self.model)
        place = ["--host", "127.0.0.1", "--port", str(port), "--weight-version", self._labels.of(0)]
        return [interpreter(self.config.python), "-m", _MODULE, *options, *place]

    def _environment(self) -> dict[str, str]:
        return arguments.environment(self.model)

    def _foreign(self) -> str | None:
        label = self._label()
        return None if label == self._labels.of(0) else f"with weights {label}"


class RunningServer(_Server, remote.RunningServer):
    """One that runs already."""

    def _check(self) -> None:
        check_server(self.config, self.model.folder, self.model.max_context)

    def restart(self, weights: Weights, version: int) -> None:
        """It is not ours to start: wait until it is there again. A server that was left paused does not say that it is well."""
        with suppress(EngineError):
            resume(self._client)
        super().restart(weights, version)
