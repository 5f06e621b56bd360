"""One live copy of an environment and what an episode asks of it: here, or in another process where this module is imported too."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from threespo_bench.contracts.environment import Environment, Observation, Step, Task, Turn
from threespo_bench.errors import DataError


@dataclass(frozen=True, slots=True)
class EpisodeState:
    """A state an episode can go back to: immutable, cheap, and valid for any episode of the same task."""

    task: Task
    seed: int
    world: Any
    history: tuple[Turn, ...]
    observation: Observation
    anchor: str
    ended: bool


class Reached(NamedTuple):
    """Where an operation has led: what the environment answered, its snapshot (None if it cannot), and the state's keys by kind."""

    answer: Any
    snapshot: Any
    keys: dict[str, str]


class WayBack(NamedTuple):
    """How to get to a state: by its snapshot, or else by the commands, at whose end ``observation`` must be seen."""

    task: Task
    seed: int
    snapshot: Any
    commands: tuple[str, ...]
    observation: Observation


def way_back(state: EpisodeState, environment: Environment) -> WayBack:
    """The way to a state. Where there are snapshots no commands are needed."""
    commands = () if environment.can_restore else tuple(turn.command for turn in state.history)
    return WayBack(state.task, state.seed, state.world, commands, state.observation)


class Live:
    """A live copy of an environment, with the task that was started in it."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment.spawn()
        self._begun: tuple[Task, int] | None = None
        if type(environment).close is not Environment.close:
            weakref.finalize(self, _close, self.environment)

    def reset(self, task: Task, seed: int, kinds: Sequence[str]) -> Reached:
        """Start ``task``."""
        return self._reached(self._reset(task, seed), kinds)

    def step(self, command: str, kinds: Sequence[str]) -> Reached:
        """Carry out one command."""
        return self._reached(self.environment.step(command), kinds)

    def go_back(self, way: WayBack, verify: bool = False) -> None:
        """Stand where ``way`` leads. ``verify``: what a snapshot shows must be what was seen then, as it always must be for commands.

        Raises:
            DataError: the environment answered differently this time.
        """
        environment = self.environment
        if environment.can_restore:
            if self._begun != (way.task, way.seed):  # a snapshot belongs to a task, which the live copy must have loaded
                self._reset(way.task, way.seed)
            observation = environment.restore(way.snapshot)
            if verify and observation != way.observation:
                raise DataError(f"{type(environment).__name__} shows something else after restore() in another process: {way.task.key} cannot go on there")
            return
        observation = self._reset(way.task, way.seed)
        for command in way.commands:
            observation = environment.step(command).observation
        if observation != way.observation:
            raise DataError(
                f"{type(environment).__name__} is not deterministic: replaying {len(way.commands)} commands of {way.task.key} gave another observation",
                fix="give the environment snapshot() and restore(), or make reset(task, seed) repeatable",
            )

    def key(self, kind: str) -> str:
        """The present state's key."""
        return self.environment.anchor(kind)

    def _reset(self, task: Task, seed: int) -> Observation:
        self._begun = task, seed
        return self.environment.reset(task, seed)

    def _reached(self, answer: Observation | Step, kinds: Sequence[str]) -> Reached:
        environment = self.environment
        return Reached(answer, environment.snapshot() if environment.can_restore else None, {kind: environment.anchor(kind) for kind in kinds})


class World(ABC):
    """A live copy, wherever it is. ``state`` is where the episode stands when it asks."""

    environment: Environment
    """The one to render prompts and to read responses with."""

    @abstractmethod
    async def reset(self, task: Task, seed: int, kinds: Sequence[str]) -> Reached:
        """See :meth:`Live.reset`."""

    @abstractmethod
    async def step(self, state: EpisodeState, command: str, kinds: Sequence[str]) -> Reached:
        """See :meth:`Live.step`."""

    @abstractmethod
    async def go_back(self, state: EpisodeState) -> None:
        """See :meth:`Live.go_back`."""

    @abstractmethod
    async def key(self, state: EpisodeState, kind: str) -> str:
        """See :meth:`Live.key`."""


class LocalWorld(World):
    """A live copy in this process. It answers at once: nothing is ever waited for."""

    def __init__(self, environment: Environment) -> None:
        self._live = Live(environment)
        self.environment = self._live.environment

    async def reset(self, task: Task, seed: int, kinds: Sequence[str]) -> Reached:
        return self._live.reset(task, seed, kinds)

    async def step(self, state: EpisodeState, command: str, kinds: Sequence[str]) -> Reached:
        return self._live.step(command, kinds)

    async def go_back(self, state: EpisodeState) -> None:
        self._live.go_back(way_back(state, self.environment))

    async def key(self, state: EpisodeState, kind: str) -> str:
        return self._live.key(kind)


def _close(environment: Environment) -> None:
    """Let a live copy go. What it raises then is nobody's concern any more."""
    with suppress(Exception):
        environment.close()
