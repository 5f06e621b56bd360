"""What is read in observations, and what a memory makes of them."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threespo_envs.alfred.game import Game
from threespo_envs.alfred.memory import Memory, Reading, Wish, read, read_wish
from threespo_envs.alfred.world import World
from threespo_envs.household.generator import SENTENCES, Shape, household_game

START = (
    "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see a desk 1, a fridge 1, "
    "and a shelf 1.\n\nYour task is to: put a hot apple in shelf."
)

READINGS = {
    START: Reading("start", place="put a hot apple in shelf", things=("desk 1", "fridge 1", "shelf 1")),
    "Nothing happens.": Reading("nothing"),
    "You arrive at desk 1. On the desk 1, you see nothing.": Reading("place", place="desk 1", things=(), arrived=True),
    "You arrive at desk 1. On the desk 1, you see a pen 2, and a pen 1.": Reading("place", place="desk 1", things=("pen 2", "pen 1"), arrived=True),
    "You arrive at fridge 1. The fridge 1 is closed.": Reading("place", place="fridge 1", door="closed", arrived=True),
    "You arrive at fridge 1. The fridge 1 is open. In it, you see a egg 1.": Reading("place", place="fridge 1", things=("egg 1",), door="open", arrived=True),
    "You open the fridge 1. The fridge 1 is open. In it, you see nothing.": Reading("place", place="fridge 1", things=(), door="open"),
    "The fridge 1 is closed.": Reading("place", place="fridge 1", door="closed"),
    "On the desk 1, you see a pen 1.": Reading("place", place="desk 1", things=("pen 1",)),
    "You close the fridge 1.": Reading("close", place="fridge 1"),
    "You pick up the pen 1 from the desk 1.": Reading("take", place="desk 1", thing="pen 1"),
    "You move the pen 1 to the desk 1.": Reading("move", place="desk 1", thing="pen 1"),
    "You heat the egg 1 using the microwave 1.": Reading("heat", place="microwave 1", thing="egg 1"),
    "You cool the egg 1 using the fridge 1.": Reading("cool", place="fridge 1", thing="egg 1"),
    "You clean the egg 1 using the sinkbasin 2.": Reading("clean", place="sinkbasin 2", thing="egg 1"),
    "You sliced the apple 1 with the knife 2.": Reading("sliced", place="knife 2", thing="apple 1"),
    "You turn on the desklamp 1.": Reading("use", thing="desklamp 1"),
    "You are carrying: a pen 1.": Reading("carrying", thing="pen 1"),
    "You are not carrying anything.": Reading("carrying"),
    "This is a hot and clean sliced egg 1.": Reading("examined", thing="egg 1", states=("hot", "clean", "sliced")),
    "This is a cold egg 1.": Reading("examined", thing="egg 1", states=("cool",)),
    "There's nothing special about pen 1.": Reading("examined", thing="pen 1"),
    "This is a normal mug 1. In it, you see nothing.": Reading("other"),
    "You are facing the desk 1, and drawer 1. Next to it, you see nothing.": Reading("other"),
    "You are in the middle of a room. Looking quickly around you, you see nothing.": Reading("other"),
    "A text of another game.": Reading("other"),
}


@pytest.mark.parametrize("text", READINGS)
def test_readings(text: str) -> None:
    assert read(text) == READINGS[text]


def test_an_errand() -> None:
    memory = Memory.of([START])
    assert memory.sentence == "put a hot apple in shelf"
    assert memory.places == ("desk 1", "fridge 1", "shelf 1")
    assert (memory.at, memory.holding, memory.contents) == ("", "", {})

    memory.add("You arrive at fridge 1. The fridge 1 is closed.")
    assert (memory.at, memory.doors, memory.contents) == ("fridge 1", {"fridge 1": "closed"}, {})

    memory.add("You open the fridge 1. The fridge 1 is open. In it, you see a apple 1, and a egg 1.")
    assert memory.doors == {"fridge 1": "open"}
    assert memory.contents == {"fridge 1": ("apple 1", "egg 1")}

    memory.add("You pick up the apple 1 from the fridge 1.")
    assert (memory.holding, memory.taken_from) == ("apple 1", "fridge 1")
    assert memory.contents == {"fridge 1": ("egg 1",)}

    memory.add("You cool the apple 1 using the fridge 1.")
    assert memory.states == {"apple 1": ("cool",)}
    memory.add("You heat the apple 1 using the microwave 1.")
    assert memory.states == {"apple 1": ("hot",)}
    memory.add("You clean the apple 1 using the sinkbasin 1.")
    assert memory.states == {"apple 1": ("clean", "hot")}

    memory.add("Nothing happens.")
    assert memory.failed
    assert memory.holding == "apple 1"

    memory.add("You arrive at shelf 1. On the shelf 1, you see nothing.")
    assert not memory.failed
    memory.add("You move the apple 1 to the shelf 1.")
    assert (memory.holding, memory.taken_from) == ("", "")
    assert memory.contents == {"fridge 1": ("egg 1",), "shelf 1": ("apple 1",)}
    assert memory.states == {"apple 1": ("clean", "hot")}

    memory.add("You move the pen 1 to the desk 1.")  # which shares a spot with the shelf and was never looked at
    assert memory.contents["desk 1"] == ("pen 1",)
    assert memory.searched == {"fridge 1", "shelf 1"}

    memory.add("You close the fridge 1.")
    assert memory.doors == {"fridge 1": "closed"}
    memory.add("There's nothing special about apple 1.")
    assert memory.states == {"apple 1": ()}


def agrees(memory: Memory, world: World) -> bool:
    """All that the memory believes is true."""
    game = world.game
    index = {item.name: i for items in (game.receptacles, game.things) for i, item in enumerate(items)}
    held = "" if world.holding is None else game.things[world.holding].name
    here = {game.receptacles[i].name for i in world.receptacles_here()}
    return (
        memory.holding == held
        and (memory.at in here if memory.at else not here)
        and all({index[thing] for thing in things} <= set(world.contents(index[place])) for place, things in memory.contents.items())
        and all({index[thing] for thing in memory.contents[place]} == set(world.contents(index[place])) for place in memory.searched)
        and all((door == "open") == world.is_open(index[place]) for place, door in memory.doors.items())
        and all({"lit": "toggled"}.get(state, state) in world.thing_states(index[thing]) for thing, states in memory.states.items() for state in states)
    )


def test_a_memory_of_a_household_is_true() -> None:
    for seed in range(60):
        world = World(household_game(Shape(6, 9), "train", seed))
        memory = Memory.of([world.observation])
        rng = Random(seed)
        for _ in range(80):
            memory.add(world.step(rng.choice([*world.admissible(), "take fork 9 from bed 9"])))
            assert agrees(memory, world)


def test_a_memory_of_a_real_game_is_true(some_games: list[Game]) -> None:
    for seed, game in enumerate(some_games):
        if len({thing for thing, _ in game.inside}) < len(game.inside):
            continue  # the few games that have a thing in two places are not as they look
        world = World(game)
        memory = Memory.of([world.observation])
        rng = Random(seed)
        for _ in range(60):
            memory.add(world.step(rng.choice(world.admissible())))
            assert agrees(memory, world)


def test_every_text_of_the_engine_is_known(transcripts: list[dict[str, Any]]) -> None:
    unread = ("You are facing", "You are in the middle", "This is a normal")
    for episode in transcripts[::10]:
        for step in episode["steps"]:
            assert read(step["obs"]).kind != "other" or step["obs"].startswith(unread)


def test_wishes() -> None:
    verbs = {
        "pick_and_place_simple": "put",
        "look_at_obj_in_light": "look",
        "pick_clean_then_place_in_recep": "clean",
        "pick_heat_then_place_in_recep": "heat",
        "pick_cool_then_place_in_recep": "cool",
        "pick_two_obj_and_place": "two",
    }
    for task_type, templates in SENTENCES.items():
        for template in templates:
            assert read_wish(template.format(thing="mug", place="desk")) == Wish(verbs[task_type], "mug", "desk")
    assert read_wish("put a clean plate on the table please") is None
    assert read_wish("") is None


@pytest.mark.parametrize("split", ["train", "valid_train", "valid_seen", "valid_unseen"])
def test_wishes_of_real_games(split: str, shared_data: Callable[..., Path]) -> None:
    with lzma.open(shared_data("alfworld", f"{split}.jsonl.xz"), "rt", encoding="utf-8") as lines:
        for record in map(json.loads, lines):
            kind, thing, _, place, _ = record["id"].partition("/")[0].split("-")
            wish = read_wish(record["task"].strip().rstrip("."))
            assert wish is not None, record["task"]
            assert (wish.thing, wish.place) == (thing.lower(), place.lower())
            assert wish.verb in kind or (wish.verb, kind) == ("put", "pick_and_place_simple")


@given(st.lists(st.one_of(st.sampled_from(list(READINGS)), st.text(max_size=40)), max_size=10))
def test_no_text_raises(texts: list[str]) -> None:
    memory = Memory.of(texts)
    assert isinstance(memory.failed, bool)
