"""Generation by a rollout server beside the learner: what is text here is tokens there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from threespo_bench.contracts.engine import Generation, RolloutEngine, Sampling
from threespo_bench.contracts.environment import Message
from threespo_bench.contracts.rollout import Completion, RolloutServer, ServerGone, Weights
from threespo_bench.errors import EngineError
from threespo_plugins.embedded import checkpoint
from threespo_plugins.embedded.policy import Policy
from threespo_plugins.embedded.prompts import PromptEncoder
from threespo_plugins.embedded.rollout import check_published, check_request, too_long

RESTARTS = 3
"""How often in a row a server that is gone is started again before the run fails."""


class ServedRollout(RolloutEngine):
    """Generates with a server's copy of the published weights.

    A server that is gone is started again with them; what was asked of it is asked again. An answer of other weights than the published ones is refused.
    """

    def __init__(self, policy: Policy, server: RolloutServer) -> None:
        self._policy, self._server = policy, server
        self._encoder = PromptEncoder(policy.tokenizer)
        self._restarts = 0
        self._generation = 0  # counts restarts: who fails with an older one finds the server started again already
        self.version = policy.version
        self.gathers = server.gathers

    async def generate(self, messages: list[Message], seed: int, sampling: Sampling, prefix: Sequence[int] = ()) -> Generation:
        """See :meth:`RolloutEngine.generate`."""
        check_request(self._policy, sampling, prefix)
        check_published(self._policy)
        prompt = np.append(self._encoder.encode([messages])[0], np.array(prefix, np.int32)).astype(np.int32)
        if len(prompt) >= self._policy.limit:
            raise too_long(self._policy, prompt)
        room = min(sampling.max_new_tokens - len(prefix), self._policy.limit - len(prompt))
        answer = await self._complete(prompt, seed, sampling.temperature, room)
        if answer.version != self.version:
            raise EngineError(
                f"stale weights: the server answered with version {answer.version}, but version {self.version} is published",
                fix="another program may have changed the server's weights: give each run a server of its own",
            )
        text = self._policy.tokenizer.decode([*prefix, *answer.token_ids.tolist()], skip_special_tokens=True)
        return Generation(prompt, answer.token_ids, answer.log_probs, text, answer.version, answer.finished)

    def encode(self, messages: list[Message], response: str | None = None) -> np.ndarray:
        """See :meth:`RolloutEngine.encode`."""
        return self._encoder.encode([messages])[0] if response is None else self._encoder.encode_response(messages, response)

    def hand_over(self) -> None:
        """Give the server the policy's weights under the policy's version."""
        version = self._policy.version
        try:
            self._server.publish(PolicyWeights(self._policy), version)
        except ServerGone as error:
            self._restart(error, version)
        self.version = version

    def close(self) -> None:
        """Stop the server."""
        self._server.close()

    async def _complete(self, prompt: np.ndarray, seed: int, temperature: float, room: int) -> Completion:
        while True:
            generation, version = self._generation, self.version
            try:
                answer = await self._server.complete(prompt, seed, temperature, room)
            except ServerGone as error:
                if generation == self._generation:
                    self._restart(error, self.version)
                await asyncio.sleep(0)
                continue
            self._restarts = 0
            if answer.version != self.version and version != self.version:
                continue  # new weights were published in the meantime: what comes after a publication is theirs
            return answer

    def _restart(self, error: ServerGone, version: int) -> None:
        """Blocks the event loop on purpose: nobody can go on without the server."""
        self._restarts += 1
        if self._restarts > RESTARTS:
            raise EngineError(f"the rollout server was started {RESTARTS} times and is gone again: {error}", fix=error.fix) from error
        self._generation += 1
        self._server.restart(PolicyWeights(self._policy), version)


class PolicyWeights(Weights):
    """The present weights of a policy."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """See :meth:`Weights.tensors`."""
        yield from ((name, parameter.detach()) for name, parameter in self._policy.model.named_parameters())

    def write(self, folder: Path) -> None:
        """See :meth:`Weights.write`."""
        checkpoint.export(folder, self._policy.model, self._policy.tokenizer)
