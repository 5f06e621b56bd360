"""Every word that a game, a household or a compact prompt can show is in the vocabulary."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from threespo_bench.contracts.environment import Observation, PromptContext, Task, Turn
from threespo_envs.alfred.game import Game
from threespo_envs.alfred.prompts import render
from threespo_envs.alfred.vocabulary import PLACES, THINGS, vocabulary
from threespo_envs.alfred.world import World
from threespo_envs.household import rooms
from threespo_envs.household.generator import Shape, household_game
from threespo_envs.words import split_words


def words_of_a_walk(game: Game, seed: int, turns: int) -> set[str]:
    """All words of the observations, commands and prompts of a random episode."""
    rng = random.Random(seed)
    world = World(game)
    task = Task(game.game_id, game.goal.task_type, "train")
    history: tuple[Turn, ...] = ()
    words: set[str] = set()
    for _ in range(turns):
        admissible = world.admissible()
        context = PromptContext(task, history, Observation(world.observation, admissible), 30)
        prompt = render(context, "compact", list_admissible=rng.random() < 0.5)[0]["content"]
        assert prompt.split() == split_words(prompt), "words are separated by single blanks"
        words.update(split_words(prompt), split_words(world.observation), *map(split_words, admissible))
        command = rng.choice([*admissible, "go to fridge 7"])
        history += (Turn(world.observation, command),)
        world.step(command)
    return words


def test_shape() -> None:
    words = vocabulary()
    assert list(words) == sorted(set(words))
    assert len(words) < 300
    assert all(split_words(word) == [word] for word in words)


def test_households() -> None:
    words: set[str] = set()
    for index in range(120):
        words |= words_of_a_walk(household_game(Shape(6, 30), "train", index), index, 25)
    assert words <= set(vocabulary())


def test_kinds_of_rooms() -> None:
    kinds = {kind for pair in rooms.can_contain() for kind in pair} | {rooms.LAMP}
    kinds |= {kind for plan in rooms.PLANS.values() for kind in (*plan.core, *(kind for kind, _, _ in plan.extras))}
    assert {kind.lower() for kind in kinds} <= {*PLACES, *THINGS}


def test_real_games(some_games: list[Game]) -> None:
    words: set[str] = set()
    for index, game in enumerate(some_games):
        words |= words_of_a_walk(game, index, 40)
    assert words <= set(vocabulary())


def test_transcripts(transcripts: list[dict[str, Any]]) -> None:
    texts: set[str] = set()
    for episode in transcripts[::5]:
        texts.update([episode["initial"]["obs"], *episode["initial"]["admissible"]], (step["obs"] for step in episode["steps"]))
    assert {word for text in texts for word in split_words(text)} <= set(vocabulary())


@pytest.mark.parametrize("split", ["valid_seen", "valid_unseen"])
def test_kinds_and_numbers_of_real_games(split: str, packed_games: Any, real_game: Callable[[str, str], Game]) -> None:
    known = set(vocabulary())
    for record in packed_games.records(split):
        game = real_game(split, record.game_id)
        names = [item.name for item in (*game.receptacles, *game.things)]
        assert {word for name in (*names, game.sentence) for word in split_words(name)} <= known
