"""Examples for a supervised warm start: prompts with the commands of a searching expert that now and then wanders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from threespo_bench.contracts.environment import PromptContext, Turn
from threespo_bench.errors import UsageError, suggest
from threespo_envs.alfred.memory import Memory
from threespo_envs.demonstration import Demonstration, episode_generator, with_thought
from threespo_envs.household.environment import HouseholdEnvironment
from threespo_envs.household.expert import Searcher, oracle_plan

SPLIT = "demonstrations"
EXPERTS = ("searcher", "oracle")
_IDLE = ("examine", "help", "inventory", "look")
"""Verbs a detour never uses: they change nothing."""


def demonstrations(
    environment: HouseholdEnvironment, count: int, seed: int, detour: float, max_turns: int, hesitation: float = 0.0, expert: str = "searcher"
) -> Iterator[Demonstration]:
    """The turns of ``count`` episodes in the split of that name, which no other split shares a room or a game with.

    Args:
        environment: gives the games and the prompts.
        count: number of episodes.
        seed: decides which games, the expert's search and the detours.
        detour: the chance that a turn's command is drawn from the admissible ones and not the expert's. It is carried out, but
            the example teaches what the expert would have done: a model taught so can find its way back.
        hesitation: the chance that a turn's command is an idle one: at a closed door to examine it, with something in hand to take stock of
            it, else to look around. It is carried out and taught: a model taught so knows how to do everything, but wastes turns.
        expert: ``searcher`` plays by what it has read, ``oracle`` knows where everything is and goes straight there: a model taught by it
            knows what to do with things, but not how to look for them.

    Raises:
        UsageError: there is no such expert.
    """
    if expert not in EXPERTS:
        raise UsageError(f"there is no expert {expert!r}", suggest(expert, EXPERTS))
    live = cast(HouseholdEnvironment, environment.spawn())
    for index in range(count):
        yield from _episode(live, seed, index, count, detour, max_turns, hesitation, expert)


def _episode(
    live: HouseholdEnvironment, seed: int, index: int, count: int, detour: float, max_turns: int, hesitation: float, expert: str
) -> Iterator[Demonstration]:
    # Seeds take blocks of games, so that examples of different seeds are of different games.
    task = live.task(SPLIT, seed * count + index)
    rng = episode_generator(seed, index)
    searcher = Searcher(int(rng.integers(1 << 62)))
    memory = Memory()
    observation = live.reset(task, seed=0)
    history: tuple[Turn, ...] = ()
    for turn in range(max_turns):
        memory.add(observation.text)
        plan = oracle_plan(live.world) if expert == "oracle" else []
        lesson = command = plan[0] if plan else searcher.act(memory)
        chance = rng.random()
        if chance < detour:
            ways = [other for other in observation.admissible if not other.startswith(_IDLE)]
            command = ways[int(rng.random() * len(ways))]
        elif chance < detour + hesitation:
            lesson = command = _idle_command(memory)
        messages = live.render(PromptContext(task, history, observation, max_turns))
        yield Demonstration(messages, as_response(lesson, live.config.template), task.key, turn, wasted=chance < detour + hesitation)
        history += (Turn(observation.text, command),)
        step = live.step(command)
        if step.terminated:
            return
        observation = step.observation


def _idle_command(memory: Memory) -> str:
    """What a hesitant agent does instead of acting."""
    if memory.doors.get(memory.at) == "closed":
        return f"examine {memory.at}"
    return "inventory" if memory.holding else "look"


def as_response(command: str, template: str) -> str:
    """The command in the form that the template asks for."""
    if template == "verl_agent":
        return with_thought(command)
    return command
