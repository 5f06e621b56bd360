"""Reading a command from a model's response. Nothing here raises for any text.

Whether a response keeps to the output format and whether its command is admissible are two questions, answered separately.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from threespo_bench.contracts.environment import Action, Observation
from threespo_bench.errors import UsageError, suggest

THINK, END_THINK, ACTION, END_ACTION = "<think>", "</think>", "<action>", "</action>"

REASONS = {
    "empty_response": "there is no text, or none after the thinking part",
    "no_think_tag": "there is no thinking part",
    "unclosed_think": "the thinking part does not end",
    "no_action_tag": "there is no action after the thinking part",
    "unclosed_action": "the action does not end",
    "empty_action": "the action has no text",
    "action_before_think": "the only action comes before the thinking part",
    "multiple_actions": "there is more than one action; the first one after the thinking part is sent",
    "cjk_characters": "there are Chinese, Japanese or Korean characters",
}
"""Why a response is not well-formed: the reasons of :class:`Action`, by name."""

_TAIL = 30
"""Where there is no action, this many last characters are sent as the command: what verl-agent does, and as good as no command."""

_CJK = re.compile("[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003134f]")

Reading = tuple[str, str]
"""The command, and the reason why the response is not well-formed (empty if it is)."""


def parse(response: str, observation: Observation, template: str = "compact") -> Action:
    """Read the action in ``response``, which answers a prompt of ``template`` that showed ``observation``.

    Raises:
        UsageError: there is no such template. No response raises.
    """
    try:
        reader = _READERS[template]
    except KeyError:
        raise UsageError(f"unknown prompt template {template!r}", suggest(template, _READERS)) from None
    command, reason = reader(response)
    admissible = command in observation.admissible if observation.admissible else None
    return Action(command, well_formed=not reason, admissible=admissible, reason=reason)


def clean_command(raw: str) -> str:
    """A command as the engine wants it: lower case, single spaces."""
    return " ".join(raw.lower().split())


# ---- verl_agent


def _read_verl_agent(response: str) -> Reading:
    """One thinking part, then one action. An action inside the thinking part is a thought and not an action."""
    text = response.lower()
    if not text.strip():
        return "", "empty_response"
    before, opened, rest = text.partition(THINK)
    if not opened:
        # Some chat templates write the opening tag themselves, so that the response begins within the thinking part.
        before, rest = "", text
    thought, closed, answer = rest.partition(END_THINK)
    if opened and not closed:
        return clean_command(text[-_TAIL:]), "unclosed_think"
    if not closed:
        answer = thought
    command, reason = _first_action(answer)
    early_command, early_reason = _first_action(before)
    if reason == "no_action_tag":
        return (early_command, "action_before_think") if not early_reason else (clean_command(text[-_TAIL:]), reason)
    if reason:
        return command, reason
    if not opened or not closed:
        return command, "no_think_tag"
    if ACTION in before or answer.count(ACTION) > 1:
        return command, "multiple_actions"
    return command, "cjk_characters" if _CJK.search(response) else ""


def _first_action(text: str) -> Reading:
    _, opened, rest = text.partition(ACTION)
    if not opened:
        return "", "no_action_tag"
    inside, closed, _ = rest.partition(END_ACTION)
    if not closed:
        return clean_command(inside.partition("<")[0]), "unclosed_action"
    command = clean_command(inside)
    return command, "" if command else "empty_action"


# ---- compact


def _read_compact(response: str) -> Reading:
    """The first line with a text, after the thinking part if there is one. Action tags around it are accepted, also only one of them."""
    text = response.lower()
    if THINK in text and END_THINK not in text:
        return clean_command(text[-_TAIL:]), "unclosed_think"
    answer = text.rpartition(END_THINK)[2]
    opened = ACTION in answer
    if opened:
        answer = answer.partition(ACTION)[2].partition(END_ACTION)[0]
    for line in answer.splitlines():
        command = clean_command(line.replace(END_ACTION, " "))
        if command:
            return command, "cjk_characters" if _CJK.search(command) else ""
    return "", "empty_action" if opened else "empty_response"


_READERS: dict[str, Callable[[str], Reading]] = {"compact": _read_compact, "verl_agent": _read_verl_agent}
