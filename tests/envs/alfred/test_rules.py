"""The facts of the domain, one by one, on a small kitchen."""

from __future__ import annotations

import pytest

from tests.envs.alfred.games import APPLE, BENCH, COLD, COUNTER, FRIDGE, LAMP, MUG, PLACES, SINK, THINGS, kitchen, play
from threespo_envs.alfred import text
from threespo_envs.alfred.game import Goal, Receptacle, Thing
from threespo_envs.alfred.world import World


def test_first_observation_lists_all_places_and_look_there_lists_none() -> None:
    world = World(kitchen())
    assert world.observation == (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see "
        "a countertop 1, a fridge 1, a microwave 1, and a sinkbasin 1.\n\nYour task is to: put some apple on fridge."
    )
    assert world.step("look") == "You are in the middle of a room. Looking quickly around you, you see nothing."


@pytest.mark.parametrize("command", [" look", "look\n", "\tlook\u00a0", "look\u3000"])
def test_blanks_around_a_command_do_not_matter(command: str) -> None:
    assert World(kitchen()).step(command) != text.NOTHING_HAPPENS


@pytest.mark.parametrize(
    "command",
    [
        "",
        "Look",
        "go  to fridge 1",
        "go to fridge 1.",
        "go to fridge 2",
        "open fridge 1",
        "put apple 1 in/on fridge 1",
        "l\ud800k",
    ],
)
def test_anything_not_admissible_changes_nothing(command: str) -> None:
    world = World(kitchen())
    before = world.state
    assert world.step(command) == "Nothing happens."
    assert world.state == before


def test_commands_are_sorted_by_code_point_and_help_is_among_them() -> None:
    places = tuple(Receptacle(f"Shelf_bar_{i:02}", f"shelf {i}", "Shelf", i, openable=False) for i in range(12, 0, -1))
    world = World(kitchen(receptacles=places, inside=(), at_location=(), start_location=0))
    assert world.admissible() == tuple(sorted(world.admissible()))
    assert world.admissible().index("go to shelf 10") < world.admissible().index("go to shelf 2")
    assert set(world.admissible()) - set(world.admissible(with_help=False)) == {"help"}
    assert world.step("help").startswith("Available commands:\n  look:  ")


def test_several_receptacles_at_one_location() -> None:
    world = World(kitchen())
    assert play(world, "go to microwave 1") == "You arrive at microwave 1. The microwave 1 is closed."
    assert not {"go to microwave 1", "go to countertop 1"} & set(world.admissible())
    assert {"open microwave 1", "take apple 2 from countertop 1", "examine countertop 1"} <= set(world.admissible())
    assert world.step("look") == "You are facing the countertop 1, and microwave 1. Next to it, you see nothing."


def test_doors() -> None:
    world = World(kitchen())
    play(world, "go to fridge 1")
    assert "take apple 1 from fridge 1" not in world.admissible()
    assert play(world, "open fridge 1") == "You open the fridge 1. The fridge 1 is open. In it, you see a apple 1."
    assert world.opened == {FRIDGE}
    assert play(world, "close fridge 1") == "You close the fridge 1."
    assert play(world, "examine fridge 1") == "The fridge 1 is closed."
    assert world.step("close fridge 1") == "Nothing happens."


def test_only_the_held_thing_can_be_examined() -> None:
    world = World(kitchen())
    play(world, "go to countertop 1")
    assert world.step("examine apple 2") == "Nothing happens."
    play(world, "take apple 2 from countertop 1")
    assert world.step("examine apple 2") == "There's nothing special about apple 2."
    assert world.inventory_text() == "You are carrying: a apple 2." == world.step("inventory")


def test_one_hand() -> None:
    world = World(kitchen())
    assert world.step("inventory") == "You are not carrying anything."
    play(world, "go to countertop 1", "take mug 1 from countertop 1")
    assert world.holding == MUG
    assert not [command for command in world.admissible() if command.startswith("take")]


def test_states_are_told_in_the_grammars_order() -> None:
    world = World(kitchen())
    play(world, "go to countertop 1", "take knife 1 from countertop 1", "slice apple 2 with knife 1", "move knife 1 to countertop 1")
    play(world, "take apple 2 from countertop 1")
    assert play(world, "examine apple 2") == "This is a sliced apple 2."
    play(world, "go to microwave 1" if "go to microwave 1" in world.admissible() else "look")
    assert play(world, "heat apple 2 with microwave 1", "examine apple 2") == "This is a hot sliced apple 2."
    assert play(world, "go to sinkbasin 1", "clean apple 2 with sinkbasin 1", "examine apple 2") == "This is a hot and clean sliced apple 2."
    assert play(world, "go to fridge 1", "cool apple 2 with fridge 1", "examine apple 2") == "This is a cool and clean sliced apple 2."
    assert world.thing_states(APPLE) == {"clean", "cool", "sliced"}


@pytest.mark.parametrize(
    ("marks", "told"),
    [
        ("", "There's nothing special about egg 1."),
        ("clean", "This is a clean egg 1."),
        ("hot", "This is a hot egg 1."),
        ("cool", "This is a cold egg 1."),
        ("sliced", "This is a sliced egg 1."),
        ("lit", "This egg 1 is on."),
        ("lit sliced", "This egg 1 is on."),
        ("lit hot", "This is a hot egg 1."),
        ("hot clean", "This is a hot and clean egg 1."),
        ("cool clean", "This is a cool and clean egg 1."),
        ("clean sliced", "This is a clean sliced egg 1."),
        ("hot sliced", "This is a hot sliced egg 1."),
        ("cool sliced", "This is a cool sliced egg 1."),
        ("hot clean sliced", "This is a hot and clean sliced egg 1."),
        ("cool clean sliced", "This is a cool and clean sliced egg 1."),
    ],
)
def test_texts_of_states(marks: str, told: str) -> None:
    words = marks.split()
    flags = {name: name in words for name in ("clean", "hot", "cool", "sliced", "lit")}
    assert text.thing("egg 1", **flags) == told


def test_appliances_work_with_their_doors_closed() -> None:
    world = World(kitchen())
    play(world, "go to countertop 1", "take apple 2 from countertop 1")
    assert play(world, "heat apple 2 with microwave 1") == "You heat the apple 2 using the microwave 1."
    assert world.opened == frozenset()


def test_a_vessel_never_tells_its_state() -> None:
    world = World(kitchen(within=((APPLE, MUG), (MUG, MUG))))
    play(world, "go to countertop 1", "take mug 1 from countertop 1", "go to sinkbasin 1", "clean mug 1 with sinkbasin 1")
    assert play(world, "examine mug 1") == "This is a normal mug 1. In it, you see a apple 2."


def test_a_lamp_is_always_turned_on_and_stays_on() -> None:
    world = World(kitchen(Goal("look_at_obj_in_light", "Apple", "DeskLamp")))
    play(world, "go to countertop 1", "take apple 2 from countertop 1")
    assert not world.won
    assert play(world, "use desklamp 1") == "You turn on the desklamp 1."
    assert world.won
    assert play(world, "use desklamp 1") == "You turn on the desklamp 1."
    assert world.won
    assert world.step("examine desklamp 1") == "Nothing happens."
    play(world, "go to fridge 1")
    assert not world.won
    assert world.thing_states(LAMP) == {"toggled"}


def test_the_game_goes_on_after_a_win_and_a_win_can_be_undone() -> None:
    world = World(kitchen(Goal("pick_and_place_simple", "Apple", "SinkBasin")))
    play(world, "go to countertop 1", "take apple 2 from countertop 1", "go to sinkbasin 1")
    assert not world.won
    play(world, "move apple 2 to sinkbasin 1")
    assert world.won
    play(world, "take apple 2 from sinkbasin 1")
    assert not world.won


def test_a_thing_in_two_receptacles_is_taken_from_the_one_named() -> None:
    goal = Goal("pick_heat_then_place_in_recep", "Apple", "CounterTop")
    inside = ((APPLE, COUNTER), (APPLE, SINK))
    world = World(kitchen(goal, inside=inside, at_location=((APPLE, BENCH),)))
    play(world, "go to sinkbasin 1", "take apple 2 from sinkbasin 1", "go to microwave 1", "heat apple 2 with microwave 1")
    assert world.won, "it is still on the counter, too"
    assert world.contents(COUNTER) == (APPLE,)
    assert world.holding == APPLE


def test_two_things_must_be_in_the_same_receptacle() -> None:
    world = World(kitchen(Goal("pick_two_obj_and_place", "Apple", "Fridge")))
    play(world, "go to countertop 1", "take apple 2 from countertop 1", "go to fridge 1", "open fridge 1")
    assert not world.won
    play(world, "move apple 2 to fridge 1")
    assert world.won


@pytest.mark.parametrize(
    ("task_type", "able"),
    [("pick_clean_then_place_in_recep", "cleanable"), ("pick_heat_then_place_in_recep", "heatable"), ("pick_cool_then_place_in_recep", "coolable")],
)
def test_goals_with_a_state_need_a_thing_that_can_have_it(task_type: str, able: str) -> None:
    state = {"cleanable": "clean", "heatable": "hot", "coolable": "cool"}[able]
    for can, wins in ((True, True), (False, False)):
        things = (Thing("Apple_bar_a", "apple 1", "Apple", pickupable=True, **{able: can}),)
        game = kitchen(Goal(task_type, "Apple", "Fridge"), things=things, inside=((0, FRIDGE),), at_location=((0, COLD),), states=((0, state),))
        assert World(game).won is wins


def test_slicing_goes_by_location_and_needs_no_open_door() -> None:
    world = World(kitchen())
    play(world, "go to countertop 1", "take knife 1 from countertop 1", "go to fridge 1")
    assert play(world, "slice apple 1 with knife 1") == "You sliced the apple 1 with the knife 1."
    assert "slice apple 1 with knife 1" in world.admissible()


def test_next_to_a_place_is_told_what_was_moved_between_neighbours() -> None:
    places = tuple(Receptacle(f"Shelf_bar_{i}", f"shelf {3 - i}", "Shelf", BENCH, openable=False) for i in range(3))
    game = kitchen(
        receptacles=places,
        can_contain=frozenset({("Shelf", "Apple")}),
        inside=((APPLE, 0),),
        at_location=((APPLE, BENCH),),
        start_location=BENCH,
    )
    world = World(game)
    assert world.observation.split("\n\n")[1] == "You are facing the shelf 3, shelf 2, and shelf 1. Next to it, you see nothing."
    play(world, "take apple 2 from shelf 3", "move apple 2 to shelf 2")
    assert play(world, "look").endswith("Next to it, you see a apple 2.")
    play(world, "take apple 2 from shelf 2", "move apple 2 to shelf 1")
    assert play(world, "look").endswith("Next to it, you see a apple 2, and a apple 2.")
    play(world, "take apple 2 from shelf 1", "move apple 2 to shelf 3")
    assert play(world, "look").endswith("Next to it, you see a apple 2, and a apple 2.")


def test_dead_ends_exist() -> None:
    world = World(kitchen(can_contain=frozenset()))
    play(world, "go to countertop 1", "take apple 2 from countertop 1")
    for place in PLACES:
        world.step(f"go to {place.name}")
        world.step(f"open {place.name}")
        assert not [command for command in world.admissible() if command.startswith("move")]


def test_lists_follow_the_ids_so_numbers_run_down() -> None:
    world = World(kitchen(inside=tuple((i, COUNTER) for i in reversed(range(len(THINGS))))))
    assert play(world, "examine countertop 1" if "examine countertop 1" in world.admissible() else "go to countertop 1").endswith(
        "you see a apple 2, a apple 1, a desklamp 1, a knife 1, and a mug 1."
    )
