"""Reading a command from a model's response. Nothing here raises for any text.

The ``compact`` prompts teach short commands, which become the shop's own; a ``verl_agent`` response has the shop's own command between its tags.
Whether a response keeps to the output format and whether its command is admissible are two questions, answered separately.
"""

from __future__ import annotations

from threespo_bench.contracts.environment import Action, Observation
from threespo_envs import responses
from threespo_envs.templates import of_template
from threespo_envs.webshop.commands import expand
from threespo_envs.webshop.shop import read_command

REASONS = {**responses.REASONS, "unknown_command": "it is none of the commands that there are"}
"""Why a response is not well-formed: the reasons of :class:`Action`, by name."""

_TAIL = 20
"""Where there is no action, this many last characters are sent as the command: what verl-agent does in this environment."""


def parse(response: str, observation: Observation, template: str = "compact") -> Action:
    """Read the action in ``response``, which answers a prompt of ``template`` that showed ``observation``.

    Raises:
        UsageError: there is no such template. No response raises.
    """
    reader = of_template(_READERS, template)
    command, reason = reader(response, observation)
    return Action(command, well_formed=not reason, admissible=_admissible(command, observation), reason=reason)


def _admissible(command: str, observation: Observation) -> bool | None:
    """Nothing is listed where one can search: any words can be searched for there, and nothing else can be done."""
    if observation.admissible:
        return command in observation.admissible
    verb, words = read_command(command)
    return None if verb == "search" and words else False


def _read_compact(response: str, observation: Observation) -> responses.Reading:
    command, reason = responses.read_first_line(response, _TAIL)
    if reason:
        return command, reason
    expanded = expand(command, observation)
    return (expanded, "") if expanded else (command, "unknown_command")


def _read_verl_agent(response: str, observation: Observation) -> responses.Reading:
    return responses.read_thought_and_action(response, _TAIL)


_READERS = {"compact": _read_compact, "verl_agent": _read_verl_agent}
