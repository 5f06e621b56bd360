"""Prompt templates: versioned ways to turn a :class:`PromptContext` into chat messages, whatever the environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from threespo_bench.contracts.environment import Message, PromptContext
from threespo_bench.errors import UsageError, suggest

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Template:
    """A way to write prompts.

    Attributes:
        version: changes with every change of a rendered text; recorded with each run.
        lists_admissible: whether the admissible commands are listed unless told otherwise.
        history_length: how many past turns are shown unless told otherwise. The ``compact`` ones show none: their memory says what they told, so
            that equal states of the world, reached and known alike, have equal prompts.
        max_new_tokens: length limit of a response unless the run sets one: a command, or a thought and a command.
        write: makes the text from the context, the length of the history and whether to list the admissible commands.
    """

    version: str
    lists_admissible: bool
    history_length: int
    max_new_tokens: int
    write: Callable[[PromptContext, int, bool], str]

    def render(self, context: PromptContext, history_length: int | None = None, list_admissible: bool | None = None) -> list[Message]:
        """The prompt for the present turn: one user message.

        Args:
            context: the episode so far.
            history_length: how many of the last turns (``compact``: of the last commands) are shown; None for the template's default.
            list_admissible: list the commands that would have an effect; None for the template's default.
        """
        listing = self.lists_admissible if list_admissible is None else list_admissible
        length = self.history_length if history_length is None else history_length
        return [{"role": "user", "content": self.write(context, length, listing)}]


def of_template(choices: Mapping[str, _Value], name: str) -> _Value:
    """What the template of that name has among ``choices``; raises UsageError for an unknown one."""
    try:
        return choices[name]
    except KeyError:
        raise UsageError(f"unknown prompt template {name!r}", suggest(name, choices)) from None
