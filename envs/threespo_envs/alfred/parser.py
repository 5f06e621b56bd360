"""Reading a command from a model's response. Nothing here raises for any text.

Whether a response keeps to the output format and whether its command is admissible are two questions, answered separately.
"""

from __future__ import annotations

from collections.abc import Callable

from threespo_bench.contracts.environment import Action, Observation
from threespo_envs.responses import ACTION, END_ACTION, END_THINK, REASONS, THINK, Reading, clean_command, read_first_line, read_thought_and_action
from threespo_envs.templates import of_template

__all__ = ["ACTION", "END_ACTION", "END_THINK", "REASONS", "THINK", "Reading", "clean_command", "parse"]

_TAIL = 30
"""Where there is no action, this many last characters are sent as the command: what verl-agent does, and as good as no command."""

_READERS: dict[str, Callable[[str, int], Reading]] = {"compact": read_first_line, "verl_agent": read_thought_and_action}


def parse(response: str, observation: Observation, template: str = "compact") -> Action:
    """Read the action in ``response``, which answers a prompt of ``template`` that showed ``observation``.

    Raises:
        UsageError: there is no such template. No response raises.
    """
    reader = of_template(_READERS, template)
    command, reason = reader(response, _TAIL)
    admissible = command in observation.admissible if observation.admissible else None
    return Action(command, well_formed=not reason, admissible=admissible, reason=reason)
