"""An environment that waits in each step, in a module of its own so that other processes can import it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from threespo_bench.contracts.environment import Action, Environment, Observation, PromptContext, Step, Task


@dataclass
class SleepingConfig:
    """Attributes:
    delay: seconds that a step takes.
    """

    delay: float = 0.005


class Sleeping(Environment):
    """Each step waits."""

    Config = SleepingConfig
    can_restore = True

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"sleeping/{i:04d}", "sleeping", split) for i in range(64)]

    def spawn(self) -> Sleeping:
        return type(self)(self.config)

    def reset(self, task: Task, seed: int) -> Observation:
        self.count = 0
        return Observation("0")

    def step(self, command: str) -> Step:
        if self.config.delay:
            time.sleep(self.config.delay)
        self.count += 1
        return Step(Observation(str(self.count)), 0.0, terminated=False, success=False)

    def anchor(self, kind: str) -> str:
        return str(self.count)

    def snapshot(self) -> int:
        return self.count

    def restore(self, snapshot: int) -> Observation:
        self.count = snapshot
        return Observation(str(snapshot))

    def render(self, context: PromptContext) -> list[dict[str, str]]:
        return [{"role": "user", "content": context.observation.text}]

    def parse(self, response: str, observation: Observation) -> Action:
        return Action(response, True, None)
