"""A rollout server for tests: a copy of the model in this process, with a cache of keys and values of prompts, token by token."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers

from threespo_bench.contracts.rollout import Completion, RolloutOptions, RolloutServer, ServerGone, Weights

BLOCK = 16


@dataclass
class TorchConfig(RolloutOptions):
    """Nothing of its own."""


class TorchServer(RolloutServer):
    """What a server is, in its simplest form. Subclasses break it."""

    Config = TorchConfig

    def start(self) -> None:
        self.net = transformers.AutoModelForCausalLM.from_pretrained(self.model.folder, dtype=torch.float32, attn_implementation="sdpa").eval()
        self.version, self.alive, self.running, self.starts = 0, True, 0, getattr(self, "starts", 0) + 1
        self.cache: dict[tuple[int, ...], Any] = {}

    async def complete(self, prompt_ids: np.ndarray, seed: int, temperature: float, max_new_tokens: int) -> Completion:
        self.running += 1
        try:
            while True:
                version = self.version
                answer = await self.attempt(prompt_ids.tolist(), seed, temperature, max_new_tokens, lambda version=version: version != self.version)
                if answer is not None:
                    return answer
        finally:
            self.running -= 1

    def publish(self, weights: Weights, version: int) -> None:
        self.require_alive()
        self.load(weights)
        self.forget()
        self.version = version

    def close(self) -> None:
        self.alive = False

    def load(self, weights: Weights) -> None:
        own = dict(self.net.named_parameters())
        with torch.no_grad():
            for name, tensor in weights.tensors():
                own[name].copy_(tensor)

    def forget(self) -> None:
        self.cache.clear()

    def require_alive(self) -> None:
        if not self.alive:
            raise ServerGone("the server was ended")

    def generator(self, seed: int) -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    def stops(self, token: int) -> bool:
        return token in self.model.stop_ids

    def log_probs(self, logits: torch.Tensor, temperature: float) -> torch.Tensor:
        return logits.log_softmax(-1)

    def draw(self, logits: torch.Tensor, temperature: float, generator: torch.Generator) -> int:
        if temperature == 0:
            return int(logits.argmax())
        return int(torch.multinomial((logits.double() / temperature).softmax(-1), 1, generator=generator))

    def answered_version(self) -> int:
        return self.version

    async def attempt(self, prompt: list[int], seed: int, temperature: float, max_new_tokens: int, outdated: Callable[[], bool]) -> Completion | None:
        """One response, or None if new weights came meanwhile."""
        self.require_alive()
        known, read, cached = self.prefill(prompt)
        generator, tokens, log_probs, pending = self.generator(seed), [], [], prompt[read:]
        while True:
            with torch.no_grad():
                logits = self.net(input_ids=torch.tensor([pending]), past_key_values=known, use_cache=True).logits[0, -1]
            token = self.draw(logits, temperature, generator)
            tokens.append(token)
            log_probs.append(float(self.log_probs(logits, temperature)[token]))
            if self.stops(token) or len(tokens) == max_new_tokens:
                return Completion(np.array(tokens, np.int32), np.array(log_probs, np.float32), self.answered_version(), token in self.model.stop_ids, cached)
            pending = [token]
            await asyncio.sleep(0)
            self.require_alive()
            if outdated():
                return None

    def prefill(self, prompt: list[int]) -> tuple[Any, int, int]:
        """Keys and values of the whole blocks of a prompt (at least one token is left to read), the tokens they are of, and how many were known before."""
        blocks = (len(prompt) - 1) // BLOCK * BLOCK
        key = tuple(prompt[:blocks])
        if not blocks:
            return transformers.DynamicCache(), 0, 0
        if key in self.cache:
            return copy.deepcopy(self.cache[key]), blocks, blocks
        known = transformers.DynamicCache()
        with torch.no_grad():
            self.net(input_ids=torch.tensor([prompt[:blocks]]), past_key_values=known, use_cache=True)
        self.cache[key] = copy.deepcopy(known)
        return known, blocks, 0
