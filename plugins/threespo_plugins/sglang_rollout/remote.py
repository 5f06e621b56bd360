"""SGLang behind HTTP: a server that is started and stopped here, or one that runs already.

The routes are the same in the two generations of its protocol that are known, of 0.5.12 and of 0.5.23. The newer one names the weights of each span of
tokens, the older one those that the server had when it answered; since all that is under way is given up before weights change, one label is enough.
``/begin_weight_update`` and ``/end_weight_update`` of the newer one frame updates from tensors; an update from disk needs neither.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
import uuid
from abc import abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from threespo_bench.contracts.rollout import Completion, RolloutServer, ServedModel, ServerGone, Weights
from threespo_bench.errors import EngineError, StorageError
from threespo_plugins.serving.http import JsonClient, StatusError
from threespo_plugins.serving.process import ServerProcess, free_port
from threespo_plugins.serving.weights import StoredWeights, WeightsFolder
from threespo_plugins.sglang_rollout import arguments, compatibility
from threespo_plugins.sglang_rollout.config import SglangConfig
from threespo_plugins.sglang_rollout.setup import check_server, resume
from threespo_plugins.vllm_rollout.labels import Labels

_MODULE = "sglang.launch_server"
_IDLE = 60  # seconds in which requests that were given up have to be over
_HEALTH = 30.0  # SGLang generates a token to say that it is well, and gives that 20 s
_ABORT = 5.0  # seconds for the server to take note of a cancelled request


class _Server(RolloutServer):
    """Generation and weights over HTTP. Subclasses say where the server is, in ``_client``."""

    _client: JsonClient

    def __init__(self, config: SglangConfig, model: ServedModel) -> None:
        super().__init__(config, model)
        self._labels = Labels()
        self._folder: WeightsFolder | None = None

    async def complete(self, prompt_ids: np.ndarray, seed: int, temperature: float, max_new_tokens: int) -> Completion:
        """See :meth:`RolloutServer.complete`."""
        sampling = arguments.sampling_parameters(self.model.stop_ids, seed, temperature, max_new_tokens)
        while True:
            name = uuid.uuid4().hex
            request = {"rid": name, "input_ids": prompt_ids.tolist(), "sampling_params": sampling, "return_logprob": True}
            try:
                answer = (await self._client.request("POST", "/generate", request)).body["meta_info"]
            except StatusError as error:
                if error.status >= 500 and not await asyncio.to_thread(self._healthy):
                    raise ServerGone(f"SGLang's engine died: {error}") from error
                raise
            except asyncio.CancelledError:
                await self._abort(name)
                raise
            if answer["finish_reason"]["type"] != "abort":  # given up for new weights: ask those
                return self._completion(answer, max_new_tokens)

    def publish(self, weights: Weights, version: int) -> None:
        """See :meth:`RolloutServer.publish`. Requests under way are given up, and :meth:`complete` asks them again."""
        if self._folder is None:
            self._folder = WeightsFolder(self.config.weights_folder)
        with self._folder.holding(weights.tensors(), self.model.dtype) as folder:
            self._load(folder, version)

    def close(self) -> None:
        """See :meth:`RolloutServer.close`."""
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def _load(self, folder: Path, version: int) -> None:
        """Let the server read the weights in ``folder``. If that fails, what it generates carries no version."""
        self._post("/pause_generation", {"mode": "abort"})
        try:
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
        finally:
            resume(self._client)

    def _change(self, path: str, payload: dict[str, Any]) -> None:
        """Raises EngineError if the server says that it did not do it, by whatever status."""
        body = self._post(path, payload)
        if not isinstance(body, dict) or body.get("success") is not True:
            message = body.get("message") if isinstance(body, dict) else body
            raise EngineError(f"SGLang refused {path}: {' '.join(str(message or 'no reason given').split())[:300]}")

    def _label(self) -> str:
        return self._client.request_now("GET", "/model_info").body["weight_version"]

    def _post(self, path: str, payload: Any = None) -> Any:
        try:
            return self._client.request_now("POST", path, payload).body
        except StatusError as error:
            if error.status >= 500 and not self._healthy():
                raise ServerGone(f"SGLang's engine died: {error}") from error
            raise

    def _healthy(self) -> bool:
        return self._client.answers("/health", _HEALTH)

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

    @abstractmethod
    def start(self) -> None:
        """See :meth:`RolloutServer.start`."""


class OwnServer(_Server):
    """A server in an environment of its own, which lives no longer than this process."""

    def __init__(self, config: SglangConfig, model: ServedModel) -> None:
        super().__init__(config, model)
        self._process: ServerProcess | None = None
        self._log: Path | None = None
        self._well = False

    def start(self) -> None:
        """See :meth:`RolloutServer.start`."""
        self._well = False
        port = free_port()
        self._folder = WeightsFolder(self.config.weights_folder)
        if self._log is None:
            self._log = Path(self.config.log) if self.config.log else Path(tempfile.mkstemp(prefix="threespo-sglang-", suffix=".log")[1])
        options = arguments.server_options(self.config, self.model)
        place = ["--host", "127.0.0.1", "--port", str(port), "--weight-version", self._labels.of(0)]
        self._process = ServerProcess(
            "SGLang",
            [compatibility.interpreter(self.config.python), "-m", _MODULE, *options, *place],
            self._log,
            {**arguments.environment(self.model), "PYTHONPATH": None},
            remove=(self._folder.path,),
        )
        self._client = JsonClient(f"http://127.0.0.1:{port}", self.config.request_seconds, self.config.max_num_seqs)
        self._process.start()
        self._process.wait(self._healthy, self.config.startup_seconds, _say)
        label = self._label()
        if label != self._labels.of(0):  # it tells this server from another that took the port
            raise EngineError(f"another server, with weights {label}, took the port {port} of SGLang", fix="try again")
        self._well = True

    def publish(self, weights: Weights, version: int) -> None:
        """See :meth:`RolloutServer.publish`."""
        try:
            super().publish(weights, version)
        except (OSError, StorageError) as error:
            if self._folder is not None and self._folder.path.is_dir():
                raise
            raise ServerGone("SGLang has ended, and its folder for weights with it") from error

    @property
    def processes(self) -> list[int]:
        """Ids of the server's processes, its main process first."""
        return self._process.ids if self._process is not None else []

    def restart(self, weights: Weights, version: int) -> None:
        """See :meth:`RolloutServer.restart`."""
        self._well = False  # its output is worth keeping
        _say(f"SGLang is gone and is started again (what it said: {self._log})")
        super().restart(weights, version)

    def close(self) -> None:
        """See :meth:`RolloutServer.close`."""
        if self._process is not None:
            if self._well and self._process.alive and self._log is not None and not self.config.log:
                self._log.unlink(missing_ok=True)
            self._process.close()
            self._client.close()
            self._process = self._log = None
        super().close()


class RunningServer(_Server):
    """A server that somebody started, on the same file system."""

    def __init__(self, config: SglangConfig, model: ServedModel) -> None:
        super().__init__(config, model)
        self._client = JsonClient(config.url, config.request_seconds, config.max_num_seqs)

    def start(self) -> None:
        """See :meth:`RolloutServer.start`."""
        check_server(self.config, self.model.folder, self.model.max_context)
        self.publish(StoredWeights(self.model.folder), 0)

    def restart(self, weights: Weights, version: int) -> None:
        """It is not ours to start: wait until it is there again."""
        deadline = time.monotonic() + self.config.startup_seconds
        _say(f"waiting for the server at {self.config.url} to come back")
        with suppress(EngineError):
            resume(self._client)
        while not self._healthy():
            if time.monotonic() > deadline:
                raise EngineError(
                    f"rollout.url={self.config.url} did not come back within {self.config.startup_seconds:g} s", fix="start it, and resume the run"
                )
            time.sleep(0.5)
        self.start()
        self.publish(weights, version)

    def close(self) -> None:
        """See :meth:`RolloutServer.close`. The server goes on, with the weights that it got last."""
        self._client.close()
        super().close()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
