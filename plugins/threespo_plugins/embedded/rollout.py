"""The rollout engine of the embedded engine: chat prompts in, sampled responses out, batched over everything that waits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from threespo_bench.contracts.engine import Generation, RolloutEngine, Sampling
from threespo_bench.contracts.environment import Message
from threespo_bench.errors import EngineError, UsageError
from threespo_plugins.embedded.generation import Request, Response, generate
from threespo_plugins.embedded.policy import Policy
from threespo_plugins.embedded.prompts import PromptEncoder
from threespo_plugins.embedded.scheduler import BatchScheduler

_Chat = tuple[list[Message], int, Sampling, tuple[int, ...]]


class EmbeddedRollout(RolloutEngine):
    """Generates with the learner's own weights.

    Since the weights are shared, a change of them is visible at once; generating between an update and ``publish`` is refused,
    because those tokens would carry the version of other weights.
    """

    gathers = True

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._encoder = PromptEncoder(policy.tokenizer)
        self._scheduler: BatchScheduler[_Chat, Generation] = BatchScheduler(self._answer)

    @property
    def version(self) -> int:  # type: ignore[override]
        """The policy version that generations carry."""
        return self._policy.version

    async def generate(self, messages: list[Message], seed: int, sampling: Sampling, prefix: Sequence[int] = ()) -> Generation:
        """See :meth:`RolloutEngine.generate`. Temperature 0 takes the most probable token."""
        check_request(self._policy, sampling, prefix)
        return await self._scheduler.submit((messages, seed, sampling, tuple(int(token) for token in prefix)))

    def encode(self, messages: list[Message], response: str | None = None) -> np.ndarray:
        """See :meth:`RolloutEngine.encode`. A response is rendered by the chat template, as the model was taught to write it."""
        return self._encoder.encode([messages])[0] if response is None else self._encoder.encode_response(messages, response)

    def _answer(self, chats: Sequence[_Chat]) -> list[Generation | Exception]:
        check_published(self._policy)
        prompts = self._encoder.encode([messages for messages, *_ in chats])
        prompts = [np.append(prompt, np.array(prefix, np.int32)) if prefix else prompt for prompt, (*_, prefix) in zip(prompts, chats, strict=True)]
        answers: list[Generation | Exception] = [too_long(self._policy, prompt) for prompt in prompts]  # replaced below where it fits
        fitting = [i for i, prompt in enumerate(prompts) if len(prompt) < self._policy.limit]
        # Rows of similar length share a forward pass, so that little of it is padding.
        fitting.sort(key=lambda i: (len(prompts[i]), i))
        for start in range(0, len(fitting), self._policy.config.max_batch):
            rows = fitting[start : start + self._policy.config.max_batch]
            responses = generate(self._policy, [self._request(prompts[i], chats[i]) for i in rows])
            for i, answer in zip(rows, self._generations([prompts[i] for i in rows], [chats[i] for i in rows], responses), strict=True):
                answers[i] = answer
        return answers

    def _request(self, prompt: np.ndarray, chat: _Chat) -> Request:
        _, seed, sampling, prefix = chat
        return Request(prompt, seed, sampling.temperature, min(sampling.max_new_tokens - len(prefix), self._policy.limit - len(prompt)))

    def _generations(self, prompts: Sequence[np.ndarray], chats: Sequence[_Chat], responses: Sequence[Response]) -> list[Generation]:
        tokens = [[*prefix, *response.token_ids.tolist()] for (*_, prefix), response in zip(chats, responses, strict=True)]
        texts = self._policy.tokenizer.backend_tokenizer.decode_batch(tokens, skip_special_tokens=True)
        return [
            Generation(prompt, response.token_ids, response.log_probs, text, self._policy.version, response.finished)
            for prompt, response, text in zip(prompts, responses, texts, strict=True)
        ]


def check_request(policy: Policy, sampling: Sampling, prefix: Sequence[int]) -> None:
    """Raises UsageError for a request that cannot be answered whatever the prompt is."""
    if sampling.temperature < 0 or sampling.max_new_tokens < 1:
        raise UsageError(f"{sampling} is out of range: temperature must be >= 0 and max_new_tokens >= 1")
    if len(prefix) >= sampling.max_new_tokens:
        raise UsageError(f"a prefix of {len(prefix)} tokens leaves no room in a response of {sampling.max_new_tokens}")
    if not set(prefix).isdisjoint(policy.stops):
        raise UsageError("the prefix holds a token that ends responses: there is nothing to go on from")


def check_published(policy: Policy) -> None:
    """Raises EngineError between an update and ``publish``."""
    if policy.unpublished:
        raise EngineError("the weights were updated but not published: call publish() before generating")


def too_long(policy: Policy, prompt: np.ndarray) -> EngineError:
    """The error for a prompt that does not fit."""
    return EngineError(
        f"a prompt of {len(prompt)} tokens does not fit the model's context of {policy.limit} tokens",
        fix="shorten the prompt (history, observation), or take a model with a longer context",
    )
