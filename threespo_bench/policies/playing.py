"""One episode, step by step, for people to watch or to take part in."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

import numpy as np

from threespo_bench.contracts.engine import Generation
from threespo_bench.contracts.environment import Action, Task
from threespo_bench.policies.opened import OpenedPolicy
from threespo_bench.rollout.batching import make_batch
from threespo_bench.rollout.episode import Episode, PlayedTurn
from threespo_bench.seeding import Streams

_THOUGHT = re.compile(r"<think>(.*?)(?:</think>|$)", re.DOTALL)


@dataclass(frozen=True)
class Seen:
    """A state before a step: the number of the turn from 0, what is seen, what can be done, and the algorithm's score of the state in words, if it has one."""

    number: int
    observation: str
    admissible: tuple[str, ...]
    score: str | None


@dataclass(frozen=True)
class Shown:
    """A step.

    Attributes:
        thought: what stands between think tags. response: the whole answer; None for a command that a person typed.
        command: what was carried out. verdict: ``valid``, ``not admissible``, or what was wrong with the form.
    """

    thought: str
    response: str | None
    command: str
    verdict: str
    reward: float


class Player:
    """Plays one task with the sampling noise of an evaluation with this seed, so that it is the episode that was evaluated."""

    def __init__(self, policy: OpenedPolicy, task: Task, seed: int, loop: asyncio.Runner) -> None:
        self._policy, self._task, self._streams, self._loop = policy, task, Streams(seed), loop
        self._episode = Episode(policy.environment, policy.max_turns, policy.anchor, policy.workers)
        loop.run(self._episode.start(task, self._streams.integer("evaluation/reset", task.key)))
        self._turns: list[PlayedTurn] = []

    @property
    def ended(self) -> bool:
        """The task or the step limit ended it."""
        return self._episode.ended

    @property
    def won(self) -> bool:
        """It ended well."""
        return bool(self._turns) and self._turns[-1].success

    @property
    def turns(self) -> list[PlayedTurn]:
        """What was played so far."""
        return self._turns

    def look(self) -> Seen:
        """The present state."""
        state = self._episode.state
        return Seen(len(self._turns), state.observation.text, state.observation.admissible, self._score(state.anchor))

    def step(self, typed: str = "") -> Shown:
        """The policy's step, or the command that a person ``typed``."""
        if typed:
            nothing = Generation(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32), typed, -1, True)
            admissible = self._episode.state.observation.admissible
            turn = self._loop.run(self._episode.act(nothing, Action(typed, True, typed in admissible if admissible else None)))
        else:
            seed = self._streams.integer("evaluation/sample", self._task.key, len(self._turns))
            generation = self._loop.run(self._policy.engine.rollout.generate(self._episode.prompt(), seed, self._policy.sampling))
            turn = self._loop.run(self._episode.act(generation))
            self._policy.engine.learner.verify(make_batch([turn], [""], [""]))
        self._turns.append(turn)
        text = turn.generation.text
        thought = _THOUGHT.search(text)
        return Shown(thought[1].strip() if thought and not typed else "", None if typed else text, turn.action.command, _verdict(turn.action), turn.reward)

    def result(self) -> str:
        """How it ended, in words."""
        last = self._turns[-1]
        how = "won" if last.success else "step limit reached" if last.truncated else "lost"
        score = "" if last.score is None else f", score {last.score:.2f}"
        return f"{how} after {len(self._turns)} turns, return {sum(turn.reward for turn in self._turns):g}{score}, last seen: {last.next_observation}"

    def _score(self, key: str) -> str | None:
        """What an algorithm that scores states makes of the present one (:meth:`state_report`, as 3SPO has it)."""
        report = getattr(self._policy.algorithm, "state_report", None)
        return None if report is None else report(self._task.key, key, not self._turns)


def _verdict(action: Action) -> str:
    if not action.well_formed:
        return f"bad form: {action.reason}" if action.reason else "bad form"
    return "not admissible" if action.admissible is False else "valid"
