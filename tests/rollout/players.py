"""Policies without a model, for real households: one that draws commands, one that knows the way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from threespo_bench.budget import Budget, Limits
from threespo_bench.contracts.engine import Generation, RolloutEngine, Sampling
from threespo_bench.contracts.environment import Environment, PromptContext, Task, Turn
from threespo_bench.contracts.sampler import RolloutContext
from threespo_bench.seeding import Streams
from threespo_envs.household.environment import HouseholdConfig, HouseholdEnvironment


class ReplayedHousehold(HouseholdEnvironment):
    """A household that cannot be put back, so that the host must replay."""

    can_restore = False

    def snapshot(self) -> Any:
        raise AssertionError("nobody may ask for a snapshot")

    def restore(self, snapshot: Any) -> Any:
        raise AssertionError("nobody may ask for it to be restored")


def household(kind: type[HouseholdEnvironment] = HouseholdEnvironment, **options: Any) -> HouseholdEnvironment:
    """Small houses whose prompts list the commands, which the policies below read."""
    return kind(HouseholdConfig(**{"receptacles_min": 6, "receptacles_max": 6, "train_tasks": 12, "eval_tasks": 12, "list_admissible": True, **options}))


class Player(RolloutEngine):
    """Answers with one token a word. Requests are answered in no particular order, like those of an engine that batches."""

    version = 0

    def __init__(self) -> None:
        self.requests: list[tuple[str, int, Sampling]] = []

    async def generate(self, messages: list[dict[str, str]], seed: int, sampling: Sampling, prefix: Sequence[int] = ()) -> Generation:
        prompt = messages[-1]["content"]
        self.requests.append((prompt, seed, sampling))
        for _ in range(seed % 3):
            await asyncio.sleep(0)
        text = self.answer(prompt, seed)
        words = text.split()
        ids = np.array([sum(map(ord, word)) % 997 for word in words], np.int32)
        return Generation(np.arange(len(prompt.split()), dtype=np.int32), ids, -0.5 * np.ones(len(ids), np.float32), text, self.version, finished=True)

    def encode(self, messages: list[dict[str, str]], response: str | None = None) -> np.ndarray:
        return np.array([len(word) for word in (messages[-1]["content"] if response is None else response).split()], np.int32)

    def answer(self, prompt: str, seed: int) -> str:
        raise NotImplementedError


class Drawing(Player):
    """Draws one of the listed commands; one answer in eight is no command at all."""

    def answer(self, prompt: str, seed: int) -> str:
        commands = prompt.partition(" . new ")[0].removeprefix("can ").split(" , ")
        return "fly away now" if seed % 8 == 7 else commands[(seed // 8) % len(commands)]


class Knowing(Player):
    """Plays the stored solution of the given tasks, and looks around in all others."""

    def __init__(self, environment: HouseholdEnvironment, tasks: Iterable[Task], max_turns: int = 30) -> None:
        super().__init__()
        self._commands: dict[str, str] = {}
        live = environment.spawn()
        for task in tasks:
            observation, history = live.reset(task, 0), ()
            for command in live.load_game(task).walkthrough:
                prompt = live.render(PromptContext(task, history, observation, max_turns))[-1]["content"]
                self._commands[prompt] = command
                history = (*history, Turn(observation.text, command))
                observation = live.step(command).observation

    def answer(self, prompt: str, seed: int) -> str:
        return self._commands.get(prompt, "look")


def context(
    environment: Environment,
    engine: RolloutEngine,
    tasks: list[Task],
    iteration: int = 0,
    seed: int = 0,
    max_turns: int = 6,
    limits: Limits | None = None,
    **more: Any,
) -> RolloutContext:
    """One iteration."""
    budget = Budget(limits or Limits(env_steps=100_000))
    return RolloutContext(environment, engine, tasks, iteration, Streams(seed), budget, Sampling(), max_turns, anchor="state", **more)
