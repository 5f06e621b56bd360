"""A world whose state is all that was ever done in it, and a policy that writes bits: what was restored, and from where, can be read off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from threespo_bench.budget import Budget, Limits
from threespo_bench.contracts.engine import Generation, RolloutEngine, Sampling
from threespo_bench.contracts.environment import Action, Environment, Observation, PromptContext, Step, Task
from threespo_bench.contracts.sampler import RolloutContext
from threespo_bench.seeding import Streams


@dataclass
class TrailConfig:
    """No options."""


class Trail(Environment):
    """Each command is appended to the trail; ``pays`` says what a trail pays when it is reached, ``ends`` whether it is over then."""

    Config = TrailConfig
    can_restore = True

    def __init__(self, pays: Callable[[str], float], ends: Callable[[str], bool]) -> None:
        super().__init__(TrailConfig())
        self.pays, self.ends, self.trail = pays, ends, ""

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"trail-{i}", "trail", split) for i in range(3)]

    def spawn(self) -> Trail:
        return type(self)(self.pays, self.ends)

    def reset(self, task: Task, seed: int) -> Observation:
        self.trail = task.key[-1] + ":"
        return Observation(self.trail)

    def step(self, command: str) -> Step:
        self.trail += command
        reward, over = self.pays(self.trail[2:]), self.ends(self.trail[2:])
        return Step(Observation(self.trail), reward, over, over and reward > 0)

    def anchor(self, kind: str) -> str:
        return self.trail

    def snapshot(self) -> str:
        return self.trail

    def restore(self, snapshot: str) -> Observation:
        assert self.trail[:1] == snapshot[0], "a snapshot can be restored where its task was started, and nowhere else"
        self.trail = snapshot
        return Observation(self.trail)

    def render(self, context: PromptContext) -> list[dict[str, str]]:
        return [{"role": "user", "content": context.observation.text}]

    def parse(self, response: str, observation: Observation) -> Action:
        return Action(response, True, None)


class ReplayedTrail(Trail):
    """The same, only without a way back but playing again."""

    can_restore = False

    def snapshot(self) -> Any:
        raise AssertionError("nobody may ask for a snapshot")


class Bits(RolloutEngine):
    """Writes ``width`` bits of the seed; ``probabilities`` are those of the tokens at each place of a response."""

    version = 0

    def __init__(self, width: int = 1, probabilities: Sequence[float] = (0.5,)) -> None:
        self.width, self.probabilities = width, probabilities
        self.requests: list[tuple[str, int, tuple[int, ...]]] = []
        self.waiting = self.most_waiting = 0

    def encode(self, messages: list[dict[str, str]], response: str | None = None) -> np.ndarray:
        return np.zeros(1, np.int32)

    async def generate(self, messages: list[dict[str, str]], seed: int, sampling: Sampling, prefix: Sequence[int] = ()) -> Generation:
        self.requests.append((messages[0]["content"], seed, tuple(prefix)))
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        await asyncio.sleep(0)
        self.waiting -= 1
        begun = len(prefix)
        new = bits(seed, self.width)[begun:]
        log_probs = np.log(np.resize(self.probabilities, self.width))[begun:].astype(np.float32)
        text = "".join(map(str, [*prefix, *new]))
        return Generation(np.zeros(1 + begun, np.int32), np.array(new, np.int32), log_probs, text, self.version, finished=True)


def bits(seed: int, width: int = 1) -> list[int]:
    """What :class:`Bits` writes."""
    return [seed >> place & 1 for place in range(width)]


def binary(length: int) -> dict[str, Callable[[str], Any]]:
    """Trails of ``length`` bits that pay the number they spell."""
    return {"pays": lambda trail: float(int(trail, 2)) if len(trail) >= length else 0.0, "ends": lambda trail: len(trail) >= length}


def iteration(environment: Environment, engine: RolloutEngine, tasks: int = 1, number: int = 0, max_turns: int = 10, seed: int = 0) -> RolloutContext:
    """One iteration on the first tasks."""
    budget = Budget(Limits(env_steps=100_000))
    return RolloutContext(
        environment, engine, environment.tasks("train")[:tasks], number, Streams(seed), budget, Sampling(), max_turns=max_turns, anchor="obs"
    )  # fmt: skip
