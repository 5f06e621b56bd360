"""vLLM behind HTTP: a server that is started and stopped here, or one that runs already."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from threespo_bench.contracts.rollout import Completion, ServerGone, Weights
from threespo_bench.errors import EngineError
from threespo_plugins.model_folder import vocabulary_size
from threespo_plugins.serving import remote
from threespo_plugins.serving.environments import interpreter
from threespo_plugins.serving.http import JsonClient, StatusError, served_model
from threespo_plugins.serving.remote import RemoteServer, resuming
from threespo_plugins.vllm_rollout import arguments
from threespo_plugins.vllm_rollout.config import VllmConfig
from threespo_plugins.vllm_rollout.tensors import for_vllm

GENERATE = "/inference/v1/generate"
SERVER_OPTIONS = ("--enable-scale-out", "--enable-prompt-tokens-details")
"""Tokens in, tokens out, with the label of the weights of each token; and the number of cached tokens."""
SERVER_ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1"}
"""The server takes new weights. Whoever reaches such a server can do so: it listens on this machine only."""
_MODULE = "vllm.entrypoints.openai.api_server"
_ALIVE = 10.0  # seconds that its web server may take on a busy machine
_SETTLE = 5.0  # seconds in which a server whose engine died says so


class _Server(RemoteServer):
    """vLLM's routes. Subclasses say what the model is called there, in ``_name``."""

    title = "vLLM"
    _name: str

    async def complete(self, prompt_ids: np.ndarray, seed: int, temperature: float, max_new_tokens: int) -> Completion:
        """See :meth:`RolloutServer.complete`."""
        sampling = arguments.sampling_parameters(self.model, seed, temperature, max_new_tokens)
        request = {"model": self._name, "token_ids": prompt_ids.tolist(), "sampling_params": sampling}
        while True:
            answer = await self._ask(GENERATE, request)
            choice = answer["choices"][0]
            if choice["finish_reason"] != "abort":  # given up for new weights: ask those
                return self._completion(choice, answer.get("usage") or {})

    def _tensors(self, weights: Weights) -> Iterator[tuple[str, Any]]:
        return for_vllm(weights, self.model.folder)

    def _load(self, folder: Path, version: int) -> None:
        self._post("/pause?mode=abort")
        with resuming(lambda: self._post("/resume")):
            self._post("/update_weight_version", {"new_version": self._labels.none})
            self._post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
            if not self._post("/reset_prefix_cache")["success"]:
                raise EngineError("vLLM did not drop what it cached of older weights")
            self._post("/update_weight_version", {"new_version": self._labels.of(version)})
            label = self._client.request_now("GET", "/weight_info").body["weight_version"]
            if label != self._labels.of(version):
                raise EngineError(f"vLLM reports weights {label} after version {version} was published")

    def _alive(self) -> bool:
        """Its web server says that the engine lives, also while that is busy or paused. One whose engine died waits for its connections to close."""
        return self._client.answers("/health", _ALIVE)

    def _healthy(self) -> bool:
        """It is well, or at least does not say within a few seconds that it is not."""
        deadline = time.monotonic() + _SETTLE
        while time.monotonic() < deadline:
            if not self._answers():
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


class OwnServer(_Server, remote.OwnServer):
    """One that is started here."""

    def start(self) -> None:
        """See :meth:`RolloutServer.start`."""
        self._name = self._labels.of(0).split(":")[0]  # tells this server from another that took the port
        super().start()
        self._post("/update_weight_version", {"new_version": self._labels.of(0)})

    def _command(self, port: int) -> list[str]:
        engine = arguments.command_options(arguments.engine_arguments(self.config, self.model))
        options = [*engine, "--host", "127.0.0.1", "--port", str(port), "--served-model-name", self._name]
        return [interpreter(self.config.python), "-m", _MODULE, *options, *SERVER_OPTIONS, "--disable-uvicorn-access-log"]

    def _environment(self) -> dict[str, str]:
        return {**arguments.environment(self.config, self.model), **SERVER_ENVIRONMENT}

    def _foreign(self) -> str | None:
        names = [each["id"] for each in self._client.request_now("GET", "/v1/models").body["data"]]
        return None if names == [self._name] else f"of {', '.join(names)}"


class RunningServer(_Server, remote.RunningServer):
    """One that runs already."""

    def _check(self) -> None:
        self._name = check_server(self.config, self.model.folder, self.model.max_context)["id"]


def check_server(config: VllmConfig, folder: Path, max_context: int = 0) -> dict[str, Any]:
    """What the server at ``rollout.url`` says about its model.

    Raises:
        EngineError: there is none, it is set up otherwise than needed, or its model is none like that in ``folder``.
    """
    client = JsonClient(config.url, timeout=30)
    where = f"rollout.url={config.url}"
    try:
        model = served_model(client)
    except ServerGone as error:
        raise EngineError(f"{where} cannot be reached: {error}", fix=f"start vLLM there: {serve_command(folder)}") from error
    except StatusError as error:
        raise EngineError(f"{where} is no vLLM server: {error}", fix=f"start vLLM there: {serve_command(folder)}") from error
    again = f"start it like this: {serve_command(folder)}"
    if (model.get("max_model_len") or max_context) < max_context:
        raise EngineError(f"{where} has a context of {model['max_model_len']} tokens, the run needs {max_context}", fix=f"engine.max_context, or {again}")
    size = vocabulary_size(folder)
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
