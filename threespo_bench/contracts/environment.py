"""What an environment plugin offers: tasks, text observations, actions, and a way back to any state.

An environment object is both the configured family of tasks and one live episode of it; :meth:`Environment.spawn` makes further
live episodes that share the loaded data. The step limit, the history and the bookkeeping of an episode belong to the host
(:mod:`threespo_bench.rollout.episode`), so a plugin describes its world and nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Task:
    """One repeatable task.

    Attributes:
        key: identity that is the same in every run and process (game path, generator seed ...); the ``task_key`` of its turns.
        kind: the type of task, by which success is broken down.
        split: the split it belongs to.
        payload: whatever the environment needs to start it; opaque to the host, picklable.
    """

    key: str
    kind: str
    split: str
    payload: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Observation:
    """What the agent sees: the text, and the commands that would have an effect now (empty if the environment cannot list them)."""

    text: str
    admissible: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """The answer to one action. ``terminated`` (the task ended), ``success`` (it ended well) and truncation (the host's) are three things.

    Attributes:
        score: how well the task ended, from 0 to 1, beside ``success``; None where the environment has no such measure.
    """

    observation: Observation
    reward: float
    terminated: bool
    success: bool
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Action:
    """What was read from a response.

    Attributes:
        command: the text sent to the environment (always a string; may be empty).
        well_formed: the response kept to the output format.
        admissible: the command is one of the observation's admissible commands. Where it lists none: None, or False for a command that the environment
            knows to be none.
        reason: why the response is not well-formed (a short stable name), empty if it is.
    """

    command: str
    well_formed: bool
    admissible: bool | None
    reason: str = ""

    @property
    def valid(self) -> bool:
        """Well-formed and, where that is known, admissible."""
        return self.well_formed and self.admissible is not False


@dataclass(frozen=True, slots=True)
class Turn:
    """A past turn as the prompt shows it: what was seen and the command that was sent (never the reasoning)."""

    observation: str
    command: str


@dataclass(frozen=True, slots=True)
class PromptContext:
    """All that a prompt may be made of.

    Attributes:
        task: the task being played.
        history: the past turns of this episode, oldest first.
        observation: the present observation.
        max_turns: the step limit of the episode.
    """

    task: Task
    history: tuple[Turn, ...]
    observation: Observation
    max_turns: int


Message = dict[str, str]
"""One chat message: ``{"role": ..., "content": ...}``."""


class Environment(ABC):
    """Base of all environments. Subclasses set ``Config`` (a dataclass) and are constructed with an instance of it.

    Attributes:
        Config: dataclass of options; the field names are the keys under ``env.`` on the command line.
        anchors: the kinds of state key that :meth:`anchor` can compute; the first is the default.
        can_restore: :meth:`snapshot` and :meth:`restore` work. Otherwise the host replays the action prefix.
        max_turns: the step limit of an episode unless the run sets one.
        max_new_tokens: the length limit of a response unless the run sets one; a property where it depends on the prompt template.
    """

    Config: ClassVar[type]
    anchors: ClassVar[tuple[str, ...]] = ("obs",)
    can_restore: ClassVar[bool] = False
    max_turns: int = 30
    max_new_tokens: int = 16

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of ``split``, sorted by key. Raises UsageError for an unknown split and DataError for unreadable data."""

    @abstractmethod
    def spawn(self) -> Environment:
        """Another live episode over the same loaded data; cheap."""

    @abstractmethod
    def reset(self, task: Task, seed: int) -> Observation:
        """Start ``task``. Equal (task, seed) give equal episodes."""

    @abstractmethod
    def step(self, command: str) -> Step:
        """Carry out one command. Never raises for any text."""

    def anchor(self, kind: str) -> str:
        """The key of the present state, by which turns are grouped; without the task, which the host adds. ``obs`` is the observation's text."""
        raise NotImplementedError(f"{type(self).__name__} has no anchor {kind!r}")

    def snapshot(self) -> Any:
        """The present state as an immutable, picklable value, valid in any process that has the same task."""
        raise NotImplementedError(f"{type(self).__name__} cannot snapshot")

    def restore(self, snapshot: Any) -> Observation:
        """Go back to a snapshot of this or any other live episode of the same environment; returns the observation made then."""
        raise NotImplementedError(f"{type(self).__name__} cannot restore")

    @abstractmethod
    def render(self, context: PromptContext) -> list[Message]:
        """The prompt for the present turn: made of ``context`` and the options only, because the live episode may be in another process."""

    @abstractmethod
    def parse(self, response: str, observation: Observation) -> Action:
        """Read an action from a response, by the observation and the options only (see :meth:`render`). Never raises."""

    def close(self) -> None:
        """Let go of what is held outside Python's memory: of a live episode, when nobody needs it any more; of the family, at the end. Never raises."""

    def digest(self) -> str:
        """A digest of the data and versions that tasks, observations and prompts depend on; recorded in the manifest."""
        return ""
