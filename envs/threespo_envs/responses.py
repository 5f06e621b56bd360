"""Reading a command from a model's response, whatever the environment. Nothing here raises for any text.

The environments decide what a command means and whether it is admissible; here it is found, and it is said whether the response keeps to the format.
"""

from __future__ import annotations

import re

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
"""Why a response is not well-formed: the reasons of :class:`~threespo_bench.contracts.environment.Action`, by name."""

_CJK = re.compile("[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003134f]")

Reading = tuple[str, str]
"""The command, and the reason why the response is not well-formed (empty if it is)."""


def clean_command(raw: str) -> str:
    """A command as the environments want it: lower case, single spaces."""
    return " ".join(raw.lower().split())


def read_thought_and_action(response: str, tail: int) -> Reading:
    """One thinking part, then one action. An action inside the thinking part is a thought and not an action.

    Args:
        response: the text.
        tail: where there is no action, this many last characters are the command: what verl-agent does, and as good as no command.
    """
    text = response.lower()
    if not text.strip():
        return "", "empty_response"
    before, opened, rest = text.partition(THINK)
    if not opened:
        # Some chat templates write the opening tag themselves, so that the response begins within the thinking part.
        before, rest = "", text
    thought, closed, answer = rest.partition(END_THINK)
    if opened and not closed:
        return clean_command(text[-tail:]), "unclosed_think"
    if not closed:
        answer = thought
    command, reason = _first_action(answer)
    early_command, early_reason = _first_action(before)
    if reason == "no_action_tag":
        return (early_command, "action_before_think") if not early_reason else (clean_command(text[-tail:]), reason)
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


def read_first_line(response: str, tail: int) -> Reading:
    """The first line with a text, after the thinking part if there is one. Action tags around it are accepted, also only one of them.

    Args:
        response: the text.
        tail: where the thinking part does not end, this many last characters are the command.
    """
    text = response.lower()
    if THINK in text and END_THINK not in text:
        return clean_command(text[-tail:]), "unclosed_think"
    answer = text.rpartition(END_THINK)[2]
    opened = ACTION in answer
    if opened:
        answer = answer.partition(ACTION)[2].partition(END_ACTION)[0]
    for line in answer.splitlines():
        command = clean_command(line.replace(END_ACTION, " "))
        if command:
            return command, "cjk_characters" if _CJK.search(command) else ""
    return "", "empty_action" if opened else "empty_response"
