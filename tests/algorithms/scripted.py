"""A scripted environment and policy: a search tree drawn in advance, so that a search can be followed by hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from threespo_bench.budget import Budget, Limits
from threespo_bench.contracts.engine import Generation, RolloutEngine, Sampling
from threespo_bench.contracts.environment import Action, Environment, Observation, Step, Task
from threespo_bench.contracts.sampler import RolloutContext
from threespo_bench.seeding import Streams

Edges = dict[str, list[tuple[str, bool | None]]]
"""state -> children (state, outcome); outcome None goes on, True or False ends the episode."""


@dataclass
class ScriptedConfig:
    pass


class ScriptedEnvironment(Environment):
    """Walks the edges; the command is the number of the child."""

    Config = ScriptedConfig
    anchors = ("obs", "state")
    can_restore = True

    def __init__(self, edges: Edges, root: str) -> None:
        super().__init__(ScriptedConfig())
        self.edges, self.root, self.at = edges, root, root

    def tasks(self, split: str) -> list[Task]:
        return [Task("scripted", "scripted", split)]

    def spawn(self) -> ScriptedEnvironment:
        return ScriptedEnvironment(self.edges, self.root)

    def reset(self, task: Task, seed: int) -> Observation:
        self.at = self.root
        return Observation(self.at)

    def step(self, command: str) -> Step:
        self.at, outcome = self.edges[self.at][int(command)]
        return Step(Observation(self.at), float(bool(outcome)), outcome is not None, bool(outcome))

    def anchor(self, kind: str) -> str:
        return self.at

    def snapshot(self) -> str:
        return self.at

    def restore(self, snapshot: str) -> Observation:
        self.at = snapshot
        return Observation(self.at)

    def render(self, context) -> list[dict[str, str]]:
        return [{"role": "user", "content": context.observation.text}]

    def parse(self, response: str, observation: Observation) -> Action:
        return Action(response, True, None)


class ScriptedPolicy(RolloutEngine):
    """Answers the k-th request for a state with child k."""

    version = 0

    def __init__(self) -> None:
        self.asked: dict[str, int] = {}
        self.order: list[str] = []

    def encode(self, messages, response=None) -> np.ndarray:
        return np.zeros(1, np.int32)

    async def generate(self, messages, seed: int, sampling: Sampling, prefix=()) -> Generation:
        state = messages[0]["content"]
        k = self.asked.get(state, 0)
        if k == 0:
            self.order.append(state)
        self.asked[state] = k + 1
        return Generation(np.zeros(1, np.int32), np.array([k], np.int32), np.zeros(1, np.float32), str(k), self.version, True)


def context(environment: Environment, engine: RolloutEngine, anchor: str = "state", env_steps: int = 1000) -> RolloutContext:
    """One iteration on the environment's tasks."""
    return RolloutContext(
        environment, engine, environment.tasks("train"), 0, Streams(0), Budget(Limits(env_steps=env_steps)), Sampling(), max_turns=30, anchor=anchor
    )  # fmt: skip
