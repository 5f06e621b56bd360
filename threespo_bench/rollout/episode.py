"""One live episode: the environment, the history the prompt is made of, and the step limit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np

from threespo_bench.contracts.engine import Generation
from threespo_bench.contracts.environment import Action, Environment, Message, PromptContext, Task, Turn
from threespo_bench.errors import DataError
from threespo_bench.rollout.world import EpisodeState, LocalWorld, World

if TYPE_CHECKING:
    from threespo_bench.rollout.environment_workers import EnvironmentWorkers


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """One turn as it happened: one model call and one environment step.

    Attributes:
        step_id: 0-based index in its trajectory.
        observation, next_observation: texts before and after.
        anchor, next_anchor: state keys before and after.
        action: what was read from the response.
        truncated: the step limit ended the episode here (and the environment did not).
        score: how well the task ended, from 0 to 1, where the environment says so.
        next_prompt_ids: (P,) int32, the prompt that the episode would have gone on with, where a sampler keeps it.
    """

    task: Task
    step_id: int
    generation: Generation
    action: Action
    observation: str
    next_observation: str
    anchor: str
    next_anchor: str
    reward: float
    terminated: bool
    truncated: bool
    success: bool
    score: float | None = None
    next_prompt_ids: np.ndarray | None = None


class Episode:
    """Plays one task. The step limit is the host's: the turn that reaches it without an ending is ``truncated``.

    Args:
        environment: the family; the episode has a live copy of its own.
        max_turns: the step limit. anchor: the kind of state key to record.
        workers: the processes in which episodes live; None for this one, where nothing that is awaited here takes any time.
    """

    def __init__(self, environment: Environment, max_turns: int, anchor: str, workers: EnvironmentWorkers | None = None) -> None:
        self._world: World = LocalWorld(environment) if workers is None else workers.world()
        self._environment = self._world.environment
        self._max_turns, self._anchor_kind = max_turns, anchor
        self._kinds: tuple[str, ...] = (anchor,)
        self._keys: dict[str, str] = {}
        self._state: EpisodeState

    async def start(self, task: Task, seed: int) -> None:
        """Begin ``task``."""
        observation, snapshot, self._keys = await self._world.reset(task, seed, self._kinds)
        self._state = EpisodeState(task, seed, snapshot, (), observation, self._keys[self._anchor_kind], ended=False)

    @property
    def state(self) -> EpisodeState:
        """The present state, to come back to with :meth:`restore`."""
        return self._state

    @property
    def ended(self) -> bool:
        """The task ended or the step limit was reached."""
        return self._state.ended

    async def key(self, kind: str) -> str:
        """The present state's key of another kind than the recorded one. A kind that was asked for comes with every step from then on."""
        if kind not in self._kinds:
            self._kinds = (*self._kinds, kind)
        if kind not in self._keys:
            self._keys[kind] = await self._world.key(self._state, kind)
        return self._keys[kind]

    def prompt(self) -> list[Message]:
        """The prompt of the present turn."""
        state = self._state
        return self._environment.render(PromptContext(state.task, state.history, state.observation, self._max_turns))

    async def act(self, generation: Generation, action: Action | None = None) -> PlayedTurn:
        """Read the action from a response (unless it is given), carry it out, and go on to the next state."""
        before = self._state
        if action is None:
            action = self._environment.parse(generation.text, before.observation)
        step, snapshot, self._keys = await self._world.step(before, action.command, self._kinds)
        reward: object = step.reward  # of somebody's environment
        if not (isinstance(reward, Real) and math.isfinite(reward)):
            name = type(self._environment).__name__
            raise DataError(f"{name} gave the reward {step.reward!r} for the command {action.command!r} in {before.task.key}: not a finite number")
        history = (*before.history, Turn(before.observation.text, action.command))
        truncated = len(history) >= self._max_turns and not step.terminated
        anchor = self._keys[self._anchor_kind]
        self._state = EpisodeState(before.task, before.seed, snapshot, history, step.observation, anchor, ended=step.terminated or truncated)
        return PlayedTurn(
            task=before.task,
            step_id=len(before.history),
            generation=generation,
            action=action,
            observation=before.observation.text,
            next_observation=step.observation.text,
            anchor=before.anchor,
            next_anchor=anchor,
            reward=step.reward,
            terminated=step.terminated,
            truncated=truncated,
            success=step.success,
            score=step.score,
        )

    async def restore(self, state: EpisodeState) -> None:
        """Go back to ``state``, of this or any other episode: by the environment's snapshot, or else by playing the same commands again, verified.

        Raises:
            DataError: the environment answered differently this time, so going back is not possible.
        """
        await self._world.go_back(state)
        self._state, self._keys = state, {self._anchor_kind: state.anchor}
