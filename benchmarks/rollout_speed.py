"""How fast rollouts generate: tokens per CPU-second of rollout=hf and rollout=vllm in turn, the use of shared prefixes, and what publishing weights costs.

    python benchmarks/rollout_speed.py [--python VLLM_ENVIRONMENT/bin/python] [--batches 1 16 64 256] [--repeat N] [--model FOLDER]

CPU time is that of this process and of the server's processes together, so other work on the machine changes it little; wall time is shown beside it.
Requests go the way that those of a run go: through the engine, with a seed and log-probabilities each.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from threespo_bench.contracts.engine import Sampling
from threespo_bench.contracts.rollout import OwnSampling, Rollout
from threespo_plugins.embedded.config import EmbeddedConfig
from threespo_plugins.embedded.engine import EmbeddedEngine
from threespo_plugins.models.household_tiny import path as household_tiny
from threespo_plugins.vllm_rollout.config import VllmConfig
from threespo_plugins.vllm_rollout.rollout import VllmRollout

TOKENS, PREFIX, CHILDREN = 64, 256, 32
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """CPU-seconds and seconds of one measurement, and the tokens that it generated."""

    cpu: float
    wall: float
    tokens: int = 0

    @property
    def rate(self) -> float:
        """Tokens per CPU-second."""
        return self.tokens / self.cpu


class Candidate:
    """An engine with one rollout, and the processes that belong to it."""

    def __init__(self, name: str, engine: EmbeddedEngine, processes: Callable[[], Sequence[int]]) -> None:
        self.name, self.engine, self._processes = name, engine, processes

    def measure(self, work: Callable[[], int]) -> Cost:
        """What ``work``, which returns a number of tokens, costs."""
        cpu, wall = self._cpu(), time.perf_counter()
        tokens = work()
        return Cost(self._cpu() - cpu, time.perf_counter() - wall, tokens)

    def generate(self, prompts: Sequence[str], seed: int, new_tokens: int = TOKENS) -> int:
        """Generated tokens of a response to each prompt, all asked at once."""

        async def ask() -> int:
            sampling = Sampling(1.0, new_tokens)
            chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
            return sum(
                len(answer.token_ids)
                for answer in await asyncio.gather(*(self.engine.rollout.generate(chat, seed + i, sampling) for i, chat in enumerate(chats)))
            )

        return asyncio.run(ask())

    def _cpu(self) -> float:
        return time.process_time() + sum(map(_cpu_seconds, self._processes()))


def prompts(number: int, length: int, seed: int, shared: int = 0) -> list[str]:
    """Texts of ``length`` words, the first ``shared`` of which are the same in all."""
    rng = np.random.default_rng(seed)
    words = np.array(["go", "to", "the", "desk", "shelf", "drawer", "open", "close", "take", "mug", "plate", "lamp", "look", "at", "in", "on", "1", "2", "3"])
    first = rng.choice(words, shared).tolist()
    return [" ".join([*first, *rng.choice(words, length - shared)]) for _ in range(number)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", help="interpreter of an environment with vLLM, for a server; without it vLLM works in this process")
    parser.add_argument("--model", default=household_tiny(), help="a Hugging Face folder; by default household-tiny")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args(arguments)
    options = VllmConfig(python=given.python)
    own = EmbeddedEngine(EmbeddedConfig(), given.model, 0, Rollout("hf", OwnSampling.Config(), OwnSampling))
    served = EmbeddedEngine(EmbeddedConfig(), given.model, 0, Rollout("vllm", options, VllmRollout))
    try:
        server = served._served._server
        candidates = [Candidate("hf", own, lambda: ()), Candidate("vllm", served, lambda: server.processes)]
        _generation(candidates, given.batches, given.repeat)
        _prefixes(candidates, given.repeat)
        _publication(candidates, given.repeat)
    finally:
        served.close()


def _generation(candidates: Sequence[Candidate], batches: Sequence[int], repeat: int) -> None:
    print(f"generated tokens per CPU-second (and per second), prompts of 16 words, at most {TOKENS} new tokens, median of {repeat}")
    for batch in batches:
        rates = {}
        for each in candidates:
            each.generate(prompts(batch, 16, 0), 0)
        for number in range(repeat):  # in turn, so that a busy machine is busy for both
            for each in candidates:
                texts = prompts(batch, 16, number + 1)
                rates.setdefault(each.name, []).append(each.measure(lambda each=each, texts=texts, number=number: each.generate(texts, 1000 * number)))
        _line(f"batch {batch}", rates, lambda cost: cost.rate, lambda cost: cost.tokens / cost.wall)


def _prefixes(candidates: Sequence[Candidate], repeat: int) -> None:
    print(f"CPU-seconds (and seconds) of {CHILDREN} responses of at most 16 tokens to prompts of {PREFIX + 8} words, median of {repeat}")
    for name, shared in (("no shared prefix", 0), (f"{PREFIX} words shared", PREFIX)):
        costs: dict[str, list[Cost]] = {}
        for number in range(repeat):
            for each in candidates:
                texts = prompts(CHILDREN, PREFIX + 8, 100 + number + shared, shared)
                each.generate(texts[:1], 0, 1)  # the state that the children come from was seen before
                costs.setdefault(each.name, []).append(each.measure(lambda each=each, texts=texts: each.generate(texts[1:], 1, 16)))
        _line(name, costs, lambda cost: cost.cpu, lambda cost: cost.wall)


def _publication(candidates: Sequence[Candidate], repeat: int) -> None:
    size = sum(parameter.numel() for parameter in candidates[0].engine._policy.model.parameters())
    print(f"CPU-seconds (and seconds) of a publication of {size:,} weights, median of {repeat}")
    costs: dict[str, list[Cost]] = {}
    for _ in range(repeat):
        for each in candidates:
            costs.setdefault(each.name, []).append(each.measure(each.engine.publish))
    _line("publication", costs, lambda cost: cost.cpu, lambda cost: cost.wall)


def _line(name: str, costs: dict[str, list[Cost]], value: Callable[[Cost], float], beside: Callable[[Cost], float]) -> None:
    middle = {who: (statistics.median(map(value, of)), statistics.median(map(beside, of))) for who, of in costs.items()}
    ratio = middle["vllm"][0] / middle["hf"][0] if middle["hf"][0] else float("nan")
    print(f"{name:18s}" + "  ".join(f"{who} {one:10.4g} ({two:.4g})" for who, (one, two) in middle.items()) + f"  vllm/hf {ratio:.2f}", flush=True)


def _cpu_seconds(process: int) -> float:
    try:
        with open(f"/proc/{process}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICK


if __name__ == "__main__":
    main()
