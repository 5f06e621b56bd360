"""vLLM behind HTTP: a server that is started and stopped here, or one that runs already."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from abc import abstractmethod
from pathlib import Path
from typing import Any

import numpy as np

from threespo_bench.contracts.rollout import Completion, RolloutServer, ServedModel, ServerGone, Weights
from threespo_bench.errors import EngineError
from threespo_plugins.serving.http import JsonClient, StatusError
from threespo_plugins.serving.process import ServerProcess, free_port
from threespo_plugins.serving.weights import StoredWeights, WeightsFolder
from threespo_plugins.vllm_rollout import arguments, compatibility
from threespo_plugins.vllm_rollout.config import VllmConfig
from threespo_plugins.vllm_rollout.labels import Labels
from threespo_plugins.vllm_rollout.tensors import for_vllm

GENERATE = "/inference/v1/generate"
SERVER_OPTIONS = ("--enable-scale-out", "--enable-prompt-tokens-details")
"""Tokens in, tokens out, with the label of the weights of each token; and the number of cached tokens."""
SERVER_ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1"}
"""The server takes new weights. Whoever reaches such a server can do so: it listens on this machine only."""
_MODULE = "vllm.entrypoints.openai.api_server"
_SETTLE = 5.0  # seconds in which a server whose engine died says so


class _Server(RolloutServer):
    """Generation and weights over HTTP. Subclasses say where the server is, in ``_client`` and ``_name``."""

    _client: JsonClient
    _name: str

    def __init__(self, config: VllmConfig, model: ServedModel) -> None:
        super().__init__(config, model)
        self._labels = Labels()
        self._folder: WeightsFolder | None = None

    async def complete(self, prompt_ids: np.ndarray, seed: int, temperature: float, max_new_tokens: int) -> Completion:
        """See :meth:`RolloutServer.complete`."""
        sampling = arguments.sampling_parameters(self.model, seed, temperature, max_new_tokens)
        request = {"model": self._name, "token_ids": prompt_ids.tolist(), "sampling_params": sampling}
        while True:
            try:
                answer = (await self._client.request("POST", GENERATE, request)).body
            except StatusError as error:
                if error.status >= 500 and not await asyncio.to_thread(self._healthy):
                    raise ServerGone(f"vLLM's engine died: {error}") from error
                raise
            choice = answer["choices"][0]
            if choice["finish_reason"] != "abort":  # given up for new weights: ask those
                return self._completion(choice, answer.get("usage") or {})

    def publish(self, weights: Weights, version: int) -> None:
        """See :meth:`RolloutServer.publish`. Requests under way are given up, and :meth:`complete` asks them again."""
        if self._folder is None:
            self._folder = WeightsFolder(self.config.weights_folder)
        with self._folder.holding(for_vllm(weights, self.model.folder), self.model.dtype) as folder:
            self._load(folder, version)

    def close(self) -> None:
        """See :meth:`RolloutServer.close`."""
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def _load(self, folder: Path, version: int) -> None:
        """Let the server read the weights in ``folder``. If that fails, what it generates carries no version."""
        self._post("/pause?mode=abort")
        try:
            self._post("/update_weight_version", {"new_version": self._labels.none})
            self._post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
            if not self._post("/reset_prefix_cache")["success"]:
                raise EngineError("vLLM did not drop what it cached of older weights")
            self._post("/update_weight_version", {"new_version": self._labels.of(version)})
            label = self._client.request_now("GET", "/weight_info").body["weight_version"]
            if label != self._labels.of(version):
                raise EngineError(f"vLLM reports weights {label} after version {version} was published")
        finally:
            self._post("/resume")

    def _post(self, path: str, payload: Any = None) -> Any:
        try:
            return self._client.request_now("POST", path, payload).body
        except StatusError as error:
            if error.status >= 500 and not self._healthy():
                raise ServerGone(f"vLLM's engine died: {error}") from error
            raise

    def _healthy(self) -> bool:
        """It is well, or at least does not say within a few seconds that it is not."""
        deadline = time.monotonic() + _SETTLE
        while time.monotonic() < deadline:
            if not self._client.answers("/health"):
                return False
            time.sleep(0.5)
        return True

    def _completion(self, choice: dict[str, Any], usage: dict[str, Any]) -> Completion:
        details = usage.get("prompt_tokens_details") or {}
        return Completion(
            token_ids=np.array(choice["token_ids"], np.int32),
            log_probs=np.array([token["logprob"] for token in choice["logprobs"]["content"]], np.float32),
            version=self._labels.version(span["version"] for span in choice["weight_versions"] or ()),
            finished=choice["finish_reason"] == "stop",
            cached_tokens=details.get("cached_tokens") or 0,
        )

    @abstractmethod
    def start(self) -> None:
        """See :meth:`RolloutServer.start`."""


class OwnServer(_Server):
    """A server in an environment of its own, which lives no longer than this process."""

    def __init__(self, config: VllmConfig, model: ServedModel) -> None:
        super().__init__(config, model)
        self._process: ServerProcess | None = None
        self._log: Path | None = None
        self._well = False

    def start(self) -> None:
        """See :meth:`RolloutServer.start`."""
        self._well = False
        port = free_port()
        self._name = self._labels.of(0).split(":")[0]  # tells this server from another that took the port
        self._folder = WeightsFolder(self.config.weights_folder)
        if self._log is None:
            self._log = Path(self.config.log) if self.config.log else Path(tempfile.mkstemp(prefix="threespo-vllm-", suffix=".log")[1])
        engine = arguments.engine_arguments(self.config, self.model)
        options = [*arguments.command_options(engine), "--host", "127.0.0.1", "--port", str(port), "--served-model-name", self._name]
        self._process = ServerProcess(
            "vLLM",
            [str(Path(self.config.python).expanduser()), "-m", _MODULE, *options, *SERVER_OPTIONS, "--disable-uvicorn-access-log"],
            self._log,
            {**arguments.environment(self.config, self.model), **SERVER_ENVIRONMENT, "PYTHONPATH": None},
            remove=(self._folder.path,),
        )
        self._client = JsonClient(f"http://127.0.0.1:{port}", self.config.request_seconds, self.config.max_num_seqs)
        self._process.start()
        self._process.wait(lambda: self._client.answers("/health"), self.config.startup_seconds, _say)
        names = [each["id"] for each in self._client.request_now("GET", "/v1/models").body["data"]]
        if names != [self._name]:
            raise EngineError(f"another server, of {', '.join(names)}, took the port {port} of vLLM", fix="try again")
        self._post("/update_weight_version", {"new_version": self._labels.of(0)})
        self._well = True

    @property
    def processes(self) -> list[int]:
        """Ids of the server's processes, its main process first."""
        return self._process.ids if self._process is not None else []

    def restart(self, weights: Weights, version: int) -> None:
        """See :meth:`RolloutServer.restart`."""
        self._well = False  # its output is worth keeping
        _say(f"vLLM is gone and is started again (what it said: {self._log})")
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

    def __init__(self, config: VllmConfig, model: ServedModel) -> None:
        super().__init__(config, model)
        self._client = JsonClient(config.url, config.request_seconds, config.max_num_seqs)

    def start(self) -> None:
        """See :meth:`RolloutServer.start`."""
        self._name = check_server(self.config, self.model.folder, self.model.max_context)["id"]
        self.publish(StoredWeights(self.model.folder), 0)

    def restart(self, weights: Weights, version: int) -> None:
        """It is not ours to start: wait until it is there again."""
        deadline = time.monotonic() + self.config.startup_seconds
        _say(f"waiting for the server at {self.config.url} to come back")
        while not self._client.answers("/health"):
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


def check_server(config: VllmConfig, folder: Path, max_context: int = 0) -> dict[str, Any]:
    """What the server at ``rollout.url`` says about its model.

    Raises:
        EngineError: there is none, it is set up otherwise than needed, or its model is none like that in ``folder``.
    """
    client = JsonClient(config.url, timeout=30)
    where = f"rollout.url={config.url}"
    try:
        model = client.request_now("GET", "/v1/models", timeout=10).body["data"][0]
    except ServerGone as error:
        raise EngineError(f"{where} cannot be reached: {error}", fix=f"start vLLM there: {serve_command(folder)}") from error
    except (StatusError, LookupError, TypeError) as error:
        raise EngineError(f"{where} is no vLLM server: {error}", fix=f"start vLLM there: {serve_command(folder)}") from error
    again = f"start it like this: {serve_command(folder)}"
    if (model.get("max_model_len") or max_context) < max_context:
        raise EngineError(f"{where} has a context of {model['max_model_len']} tokens, the run needs {max_context}", fix=f"engine.max_context, or {again}")
    size = compatibility.vocabulary_size(folder)
    try:
        client.request_now("GET", "/weight_info")
        known = [_embeds(client, model["id"], token) for token in (size - 1, size)]
    except StatusError as error:
        raise EngineError(f"{where} does not take weights and tokens: {error}", fix=again) from error
    if known != [True, False]:
        raise EngineError(f"{where} serves {model['id']}, whose vocabulary is not of {size} tokens as that of the model in {folder}", fix=again)
    return model


def serve_command(folder: Path) -> str:
    """The command that starts a server which :class:`RunningServer` can use."""
    variables = " ".join(f"{name}={value}" for name, value in SERVER_ENVIRONMENT.items())
    wanted = "--logprobs-mode raw_logprobs --generation-config vllm"
    return f"{variables} python -m {_MODULE} --model {folder} {wanted} {' '.join(SERVER_OPTIONS)}"


def _embeds(client: JsonClient, model: str, token: int) -> bool:
    """The model knows a token. Token ids of a prompt are not checked where the server has no tokenizer, those of a bias always are."""
    sampling = {"max_tokens": 1, "temperature": 0.0, "detokenize": False, "logit_bias": {str(token): 1.0}}
    try:
        client.request_now("POST", GENERATE, {"model": model, "token_ids": [0], "sampling_params": sampling})
    except StatusError as error:
        if error.status == 400 and "vocab" in str(error):
            return False
        raise
    return True


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
