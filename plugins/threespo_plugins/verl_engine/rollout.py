"""The rollout engine: chat prompts to tokens here, tokens to responses by verl's client of its rollout servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import numpy as np

from threespo_bench.contracts.engine import Generation, RolloutEngine, Sampling
from threespo_bench.contracts.environment import Message
from threespo_bench.errors import EngineError
from threespo_plugins.embedded.prompts import PromptEncoder
from threespo_plugins.embedded.rollout import check_published, check_request, too_long
from threespo_plugins.verl_engine.groups import RESUME, worker_errors
from threespo_plugins.verl_engine.policy import RemotePolicy

_SEED_BITS = 63
"""Servers take a seed as a signed number."""


class VerlRollout(RolloutEngine):
    """Generates with the servers' copies of the published weights; an answer of other weights is refused.

    Args:
        client: verl's ``LLMServerClient``. server: which servers, ``hf``, ``vllm`` or ``sglang``.
    """

    def __init__(self, policy: RemotePolicy, client: Any, server: str) -> None:
        self._policy, self._client, self._server = policy, client, server
        self._encoder = PromptEncoder(policy.tokenizer)

    @property
    def version(self) -> int:  # type: ignore[override]
        """The policy version that generations carry."""
        return self._policy.version

    async def generate(self, messages: list[Message], seed: int, sampling: Sampling, prefix: Sequence[int] = ()) -> Generation:
        """See :meth:`RolloutEngine.generate`. Temperature 0 takes the most probable token."""
        policy = self._policy
        check_request(policy, sampling, prefix)
        check_published(policy)
        prefix = [int(token) for token in prefix]
        prompt = np.append(self._encoder.encode([messages])[0], np.array(prefix, np.int32)).astype(np.int32)
        if len(prompt) >= policy.limit:
            raise too_long(policy, prompt)
        room = min(sampling.max_new_tokens - len(prefix), policy.limit - len(prompt))
        with worker_errors("rollout"):
            answer = await self._client.generate(uuid4().hex, prompt_ids=prompt.tolist(), sampling_params=self._parameters(seed, sampling.temperature, room))
        version = answer.extra_fields.get("global_steps")
        if version != policy.version:
            raise EngineError(f"stale weights: a rollout server answered with version {version}, but version {policy.version} is published", fix=RESUME)
        if answer.log_probs is None or len(answer.log_probs) != len(answer.token_ids):
            raise EngineError(f"the rollout server gave {len(answer.log_probs or ())} log-probabilities for {len(answer.token_ids)} tokens")
        tokens = np.array(answer.token_ids, np.int32)
        text = policy.tokenizer.decode([*prefix, *tokens.tolist()], skip_special_tokens=True)
        finished = len(tokens) > 0 and int(tokens[-1]) in policy.stops
        return Generation(prompt, tokens, np.array(answer.log_probs, np.float32), text, version, finished)

    def encode(self, messages: list[Message], response: str | None = None) -> np.ndarray:
        """See :meth:`RolloutEngine.encode`. A response is rendered by the chat template, as the model was taught to write it."""
        return self._encoder.encode([messages])[0] if response is None else self._encoder.encode_response(messages, response)

    def _parameters(self, seed: int, temperature: float, room: int) -> dict[str, Any]:
        parameters: dict[str, Any] = {"temperature": temperature, "max_tokens": room, "logprobs": True}
        if self._server == "hf":
            return parameters | {"seed": seed}
        stops = {"stop_token_ids": list(self._policy.stops), "top_p": 1.0, "top_k": -1}
        return parameters | stops | {"sampling_seed" if self._server == "sglang" else "seed": seed % 2**_SEED_BITS}
