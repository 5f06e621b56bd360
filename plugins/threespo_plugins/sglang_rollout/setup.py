"""Whether an SGLang server that runs already is set up as needed, and has a model like ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from threespo_bench.contracts.rollout import ServerGone
from threespo_bench.errors import EngineError
from threespo_plugins.model_folder import vocabulary_size
from threespo_plugins.serving.http import JsonClient, StatusError, served_model
from threespo_plugins.sglang_rollout import arguments, compatibility
from threespo_plugins.sglang_rollout.config import SglangConfig

_INFO = ("/server_info", "/get_server_info")
"""The second is the older name, by which a server that is too old can still say so."""
_SAME = 1e-3  # nats


def check_server(config: SglangConfig, folder: Path, max_context: int = 0) -> None:
    """Ask the server at ``rollout.url`` what it is; three tokens are generated.

    Raises:
        EngineError: there is none, it is set up otherwise than needed, or its model is none like that in ``folder``.
    """
    client = JsonClient(config.url, timeout=30)
    where, again = f"rollout.url={config.url}", f"start it like this: {serve_command(folder, max_context)}"
    try:
        info = server_info(client)
        resume(client)
        model = served_model(client, timeout=30)
    except ServerGone as error:
        raise EngineError(f"{where} cannot be reached: {error}", fix=again) from error
    except StatusError as error:
        raise EngineError(f"{where} is no SGLang server: {error}", fix=again) from error
    if not info.get("enable_deterministic_inference"):
        raise EngineError(f"{where} ignores the seeds of requests: it runs without --enable-deterministic-inference", fix=again)
    needed = max_context + arguments.SPARE if 0 < max_context < arguments.UNLIMITED else 0
    if (model.get("max_model_len") or needed) < needed:
        raise EngineError(f"{where} has a context of {model['max_model_len']} tokens, the run needs {needed}", fix=f"engine.max_context, or {again}")
    size = vocabulary_size(folder)
    try:
        prompt = [size * (i + 1) // 9 for i in range(8)]  # the first token may be padding, which makes all others equally probable
        known = [_embeds(client, prompt, token) for token in (size - 1, size)]
        plain, cold = _highest(client, prompt, 1.0), _highest(client, prompt, 0.5)
    except (StatusError, ServerGone, LookupError, TypeError) as error:
        raise EngineError(f"{where} does not take tokens as it should: {error}", fix=again) from error
    if known != [True, False]:
        raise EngineError(f"{where} serves {model.get('id')}, whose vocabulary is not of {size} tokens as that of the model in {folder}", fix=again)
    if abs(plain - cold) > _SAME:
        raise EngineError(f"{where} gives log-probabilities after temperature: it runs without SGLANG_RETURN_ORIGINAL_LOGPROB=1", fix=again)


def server_info(client: JsonClient) -> dict[str, Any]:
    """What a server says about itself, from whichever route it has.

    Raises:
        EngineError: it is too old. StatusError: it is no SGLang server. ServerGone: there is none.
    """
    try:
        answer = client.request_now("GET", _INFO[0], timeout=10)
    except StatusError as error:
        if error.status != 404:
            raise
        answer = client.request_now("GET", _INFO[1], timeout=10)
    if not isinstance(answer.body, dict) or "version" not in answer.body:
        raise StatusError(f"{client.url}{_INFO[0]} does not say which version it is", answer.status)
    compatibility.check_version(answer.body["version"], f"at {client.url}")
    return answer.body


def resume(client: JsonClient) -> None:
    """Let the server generate: a run that was killed while it handed over weights left it paused. Raises EngineError if it does not."""
    client.request_now("POST", "/continue_generation", {}, timeout=30)


def serve_command(folder: Path, max_context: int = 0) -> str:
    """The command that starts a server which ``rollout.url`` can name."""
    variables = " ".join(f"{name}={value}" for name, value in arguments.SERVER_ENVIRONMENT.items())
    context = f" --context-length {max_context + arguments.SPARE}" if 0 < max_context < arguments.UNLIMITED else ""
    return f"{variables} python -m sglang.launch_server --model-path {folder} {' '.join(arguments.SERVER_OPTIONS)}{context}"


def _embeds(client: JsonClient, prompt: list[int], token: int) -> bool:
    """The model knows a token. The ids of a prompt are not checked in every version, those of a bias are."""
    try:
        _ask(client, prompt, 0.0, logit_bias={str(token): 0.0})
    except StatusError as error:
        if error.status == 400 and "logit_bias" in str(error):
            return False
        raise
    return True


def _highest(client: JsonClient, prompt: list[int], temperature: float) -> float:
    """The log-probability of the most probable token."""
    return _ask(client, prompt, temperature)["meta_info"]["output_top_logprobs"][0][0][0]


def _ask(client: JsonClient, prompt: list[int], temperature: float, **sampling: Any) -> dict[str, Any]:
    parameters = arguments.sampling_parameters((), 0, temperature, 1) | sampling
    request = {"input_ids": prompt, "sampling_params": parameters, "return_logprob": True, "top_logprobs_num": 1}
    return client.request_now("POST", "/generate", request).body
