"""One episode played from where it stands to its end, charged to the budget turn by turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from threespo_bench.contracts.engine import Sampling
from threespo_bench.contracts.environment import Task
from threespo_bench.contracts.sampler import RolloutContext
from threespo_bench.rollout.episode import Episode, PlayedTurn


async def begin(context: RolloutContext, task: Task) -> Episode:
    """An episode at the beginning of ``task``. All episodes of a task begin alike."""
    episode = Episode(context.environment, context.max_turns, context.anchor, context.workers)
    await episode.start(task, context.streams.integer("reset", task.key))
    return episode


async def play(context: RolloutContext, episode: Episode, seed_of: Callable[[int], int], sampling: Sampling | None = None) -> list[PlayedTurn]:
    """The turns from the present state of ``episode`` to its end.

    Args:
        context: the engine, the budget, the defaults. episode: started; it is at its end afterwards.
        seed_of: the seed of the n-th response, n counted from 0 at the present state.
        sampling: how tokens are drawn, if not as ``context.sampling`` says.
    """
    turns: list[PlayedTurn] = []
    while not episode.ended:
        turns.append(await play_turn(context, episode, seed_of(len(turns)), sampling))
    context.budget.charge(episodes=1)
    return turns


async def play_turn(context: RolloutContext, episode: Episode, seed: int, sampling: Sampling | None = None) -> PlayedTurn:
    """One turn: ask for a response, carry it out, charge it. Episodes are charged by whoever sees them end."""
    generation = await context.engine.generate(episode.prompt(), seed, sampling or context.sampling)
    turn = await episode.act(generation)
    context.budget.charge(env_steps=1, tokens=len(generation.token_ids), prompt_tokens=len(generation.prompt_ids))
    context.tick()
    if context.keep_next_prompt and turn.truncated:
        turn = with_next_prompt(context, episode, turn)
    return turn


def with_next_prompt(context: RolloutContext, episode: Episode, turn: PlayedTurn) -> PlayedTurn:
    """The turn with the prompt that its episode, which has just played it, would go on with."""
    return replace(turn, next_prompt_ids=context.engine.encode(episode.prompt()))
