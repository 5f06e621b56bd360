"""The goal key: what a state means for the goal, the same over all tasks of a type."""

from __future__ import annotations

from random import Random

import pytest

from tests.envs.alfred.games import SIMPLE, kitchen, play
from threespo_envs.alfred.anchors import goal_key
from threespo_envs.alfred.game import Goal
from threespo_envs.alfred.world import World
from threespo_envs.household.generator import TASK_TYPES, Shape, household_game


def keys_along(goal: Goal, *commands: str) -> list[str]:
    """The key at the start and after each command, without the task type."""
    world = World(kitchen(goal))
    keys = [goal_key(world)]
    for command in commands:
        play(world, command)
        keys.append(goal_key(world))
    assert all(key.startswith(goal.task_type + " ") for key in keys)
    return [key.removeprefix(goal.task_type + " ") for key in keys]


def test_put() -> None:
    assert keys_along(SIMPLE, "go to countertop 1", "take apple 2 from countertop 1", "go to fridge 1", "open fridge 1") == [
        "middle empty",
        "place empty sees",
        "place ready",
        "target-closed ready",
        "target ready sees",  # another apple is there already; the made-up kitchen is won at the start
    ]


def test_heat_tells_treated_from_untreated() -> None:
    goal = Goal("pick_heat_then_place_in_recep", "Apple", "SinkBasin")
    assert keys_along(
        goal,
        "go to countertop 1",
        "take apple 2 from countertop 1",
        "heat apple 2 with microwave 1",
        "go to fridge 1",
        "cool apple 2 with fridge 1",
        "go to sinkbasin 1",
    ) == [
        "middle empty",
        "appliance empty sees",
        "appliance wanted",
        "appliance ready",
        "place-closed ready",
        "place-closed wanted",
        "target wanted",
    ]


def test_two_counts_what_was_delivered() -> None:
    goal = Goal("pick_two_obj_and_place", "Apple", "SinkBasin")
    assert keys_along(
        goal, "go to countertop 1", "take apple 2 from countertop 1", "go to sinkbasin 1", "move apple 2 to sinkbasin 1", "go to fridge 1", "open fridge 1"
    ) == [
        "middle empty done0",
        "place empty sees done0",
        "place ready done0",
        "target ready done0",
        "target empty done1",
        "place-closed empty done1",
        "place empty sees done1",
    ]


def test_look_knows_the_lamp() -> None:
    goal = Goal("look_at_obj_in_light", "Apple", "DeskLamp")
    assert keys_along(goal, "go to fridge 1", "go to countertop 1", "use desklamp 1", "take knife 1 from countertop 1", "go to sinkbasin 1") == [
        "middle empty lamp-away",
        "place-closed empty lamp-away",
        "place empty sees lamp-here",
        "place empty sees lamp-here-lit",
        "place other sees lamp-here-lit",
        "place other lamp-away-lit",
    ]


def test_kinds_can_be_part_of_it() -> None:
    assert goal_key(World(kitchen()), kinds=True) == "pick_and_place_simple Apple Fridge middle empty"


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_keys_recur_over_tasks_and_hold_no_names(task_type: str) -> None:
    shape = Shape(task_types=(task_type,))
    keys: list[set[str]] = []
    for index in range(60):
        game = household_game(shape, "train", index)
        world = World(game)
        mine = {goal_key(world)}
        for command in game.walkthrough:
            play(world, command)
            mine.add(goal_key(world))
        keys.append(mine)
        assert not any(item.name in key or item.kind in key.split() for key in mine for item in (*game.receptacles, *game.things))
    assert len(set.union(*keys)) < 45
    assert any(len(mine & keys[0]) == len(keys[0]) for mine in keys[1:])


def test_equal_states_have_equal_keys() -> None:
    game = household_game(Shape(), "train", 5)
    world, twin = World(game), World(game)
    rng = Random(1)
    for _ in range(60):
        world.step(rng.choice(world.admissible()))
        twin.restore(world.snapshot())
        assert goal_key(twin) == goal_key(world)
