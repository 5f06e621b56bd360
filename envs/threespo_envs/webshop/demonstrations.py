"""Examples for a supervised warm start: prompts with the commands of an expert that now and then goes astray or is hasty."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from threespo_bench.contracts.environment import Observation, PromptContext, Turn
from threespo_envs.demonstration import Demonstration, episode_generator, with_thought
from threespo_envs.webshop.commands import shorten
from threespo_envs.webshop.environment import WebShopEnvironment
from threespo_envs.webshop.expert import Searcher
from threespo_envs.webshop.memory import read
from threespo_envs.webshop.pages import BUY, label_of

SPLIT = "demonstrations"
_BUY = f"click[{label_of(BUY)}]"


def demonstrations(
    environment: WebShopEnvironment, count: int, seed: int, detour: float, max_turns: int, haste: float = 0.0, patience: int = 4
) -> Iterator[Demonstration]:
    """The turns of ``count`` episodes in a shop that no other split is played in.

    Args:
        environment: gives the shop and the prompts.
        count: number of episodes.
        seed: decides which goals and what is done instead of the expert's commands.
        detour: the chance that a turn's command is drawn from the clicks that are possible and not the expert's. It is carried out, but
            the example teaches what the expert would have done: a model taught so can find its way back.
        haste: the chance that a turn is played as a hasty customer would: from a list, any product of it is opened, and a product looked at is
            bought as it stands. It is carried out and taught: a model taught so knows how to do everything, but is not careful.
        patience: how many products the expert looks at.
    """
    live = environment.spawn()
    goals = len(live.shop(SPLIT).goals)
    for index in range(count):
        rng = episode_generator(seed, index)
        yield from _episode(live, int(rng.integers(goals)), rng, detour, max_turns, haste, patience)


def _episode(
    live: WebShopEnvironment, goal: int, rng: np.random.Generator, detour: float, max_turns: int, haste: float, patience: int
) -> Iterator[Demonstration]:
    task = live.task(SPLIT, goal)
    searcher = Searcher(max_turns, patience)
    observation = live.reset(task, seed=0)
    history: tuple[Turn, ...] = ()
    for turn in range(max_turns):
        lesson = command = searcher.act(observation)
        chance = rng.random()
        if chance < detour:
            ways = [other for other in observation.admissible if other != _BUY] or [command]
            command = ways[int(rng.random() * len(ways))]
        elif chance < detour + haste:
            lesson = command = _hasty_command(observation, rng) or command
        searcher.carried_out(command)
        messages = live.render(PromptContext(task, history, observation, max_turns))
        yield Demonstration(messages, as_response(lesson, observation, live.config.template), task.key, turn, wasted=chance < detour + haste)
        history += (Turn(observation.text, command),)
        step = live.step(command)
        if step.terminated:
            return
        observation = step.observation


def _hasty_command(observation: Observation, rng: np.random.Generator) -> str:
    """Open any product of a list, buy what one looks at; empty on other pages."""
    products = read(observation.text).products
    if products:
        return f"click[{products[int(rng.random() * len(products))].asin}]"
    return _BUY if _BUY in observation.admissible else ""


def as_response(command: str, observation: Observation, template: str) -> str:
    """The command in the form that the template asks for."""
    return shorten(command, observation) if template == "compact" else with_thought(command)
