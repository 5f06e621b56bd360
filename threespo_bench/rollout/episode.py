"""One live episode: the environment, the history the prompt is made of, and the step limit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from threespo_bench.contracts.engine import Generation
from threespo_bench.contracts.environment import Action, Environment, Message, Observation, PromptContext, Task, Turn
from threespo_bench.errors import DataError


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """One turn as it happened: one model call and one environment step.

    Attributes:
        step_id: 0-based index in its trajectory.
        observation, next_observation: texts before and after.
        anchor, next_anchor: state keys before and after.
        action: what was read from the response.
        truncated: the step limit ended the episode here (and the environment did not).
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
    next_prompt_ids: np.ndarray | None = None


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


class Episode:
    """Plays one task. The step limit is the host's: the turn that reaches it without an ending is ``truncated``.

    Args:
        environment: the family; the episode spawns its own live copy.
        max_turns: the step limit. anchor: the kind of state key to record.
    """

    def __init__(self, environment: Environment, max_turns: int, anchor: str) -> None:
        self._environment = environment.spawn()
        self._max_turns, self._anchor_kind = max_turns, anchor
        self._state: EpisodeState

    def start(self, task: Task, seed: int) -> None:
        """Begin ``task``."""
        observation = self._environment.reset(task, seed)
        self._state = EpisodeState(task, seed, self._snapshot(), (), observation, self._anchor(), ended=False)

    @property
    def state(self) -> EpisodeState:
        """The present state, to come back to with :meth:`restore`."""
        return self._state

    @property
    def ended(self) -> bool:
        """The task ended or the step limit was reached."""
        return self._state.ended

    def key(self, kind: str) -> str:
        """The present state's key of another kind than the recorded one."""
        return self._state.anchor if kind == self._anchor_kind else self._environment.anchor(kind)

    def prompt(self) -> list[Message]:
        """The prompt of the present turn."""
        state = self._state
        return self._environment.render(PromptContext(state.task, state.history, state.observation, self._max_turns))

    def act(self, generation: Generation, action: Action | None = None) -> PlayedTurn:
        """Read the action from a response (unless it is given), carry it out, and go on to the next state."""
        before = self._state
        if action is None:
            action = self._environment.parse(generation.text, before.observation)
        step = self._environment.step(action.command)
        if not (isinstance(step.reward, Real) and math.isfinite(step.reward)):
            name = type(self._environment).__name__
            raise DataError(f"{name} gave the reward {step.reward!r} for the command {action.command!r} in {before.task.key}: not a finite number")
        history = (*before.history, Turn(before.observation.text, action.command))
        truncated = len(history) >= self._max_turns and not step.terminated
        self._state = EpisodeState(before.task, before.seed, self._snapshot(), history, step.observation, self._anchor(), ended=step.terminated or truncated)
        return PlayedTurn(
            task=before.task,
            step_id=len(before.history),
            generation=generation,
            action=action,
            observation=before.observation.text,
            next_observation=step.observation.text,
            anchor=before.anchor,
            next_anchor=self._state.anchor,
            reward=step.reward,
            terminated=step.terminated,
            truncated=truncated,
            success=step.success,
        )

    def restore(self, state: EpisodeState) -> None:
        """Go back to ``state``: by the environment's snapshot, or else by playing the same commands again, verified.

        Raises:
            DataError: the environment answered differently this time, so going back is not possible.
        """
        if self._environment.can_restore:
            self._environment.restore(state.world)
        else:
            self._replay(state)
        self._state = state

    def _replay(self, state: EpisodeState) -> None:
        observation = self._environment.reset(state.task, state.seed)
        for turn in state.history:
            observation = self._environment.step(turn.command).observation
        if observation != state.observation:
            raise DataError(
                f"{type(self._environment).__name__} is not deterministic: replaying {len(state.history)} commands of {state.task.key} "
                "gave another observation",
                fix="give the environment snapshot() and restore(), or make reset(task, seed) repeatable",
            )

    def _snapshot(self) -> Any:
        return self._environment.snapshot() if self._environment.can_restore else None

    def _anchor(self) -> str:
        return self._environment.anchor(self._anchor_kind)
