"""Small games made by hand, for facts that need no data, and how to play any game at random."""

from __future__ import annotations

from random import Random

from threespo_envs.alfred.game import Game, Goal, Receptacle, Thing
from threespo_envs.alfred.world import World

MIDDLE, BENCH, COLD, WET = 0, 1, 2, 3
"""Locations: nowhere, the counter with the microwave on it, the fridge, the sink."""

PLACES = (
    Receptacle("CounterTop_bar_a", "countertop 1", "CounterTop", BENCH, openable=False),
    Receptacle("Fridge_bar_a", "fridge 1", "Fridge", COLD, openable=True),
    Receptacle("Microwave_bar_a", "microwave 1", "Microwave", BENCH, openable=True),
    Receptacle("Sink_bar_a_bar_SinkBasin", "sinkbasin 1", "SinkBasin", WET, openable=False),
)
THINGS = (
    Thing("Apple_bar_a", "apple 2", "Apple", pickupable=True, cleanable=True, heatable=True, coolable=True, sliceable=True),
    Thing("Apple_bar_b", "apple 1", "Apple", pickupable=True, cleanable=True, heatable=True, coolable=True, sliceable=True),
    Thing("DeskLamp_bar_a", "desklamp 1", "DeskLamp", toggleable=True),
    Thing("Knife_bar_a", "knife 1", "Knife", pickupable=True, cleanable=True),
    Thing("Mug_bar_a", "mug 1", "Mug", pickupable=True, cleanable=True, holds_things=True),
)
APPLE, OTHER_APPLE, LAMP, KNIFE, MUG = range(5)
COUNTER, FRIDGE, MICROWAVE, SINK = range(4)

SIMPLE = Goal("pick_and_place_simple", "Apple", "Fridge")


def kitchen(goal: Goal = SIMPLE, **changes: object) -> Game:
    """A kitchen with two apples, a lamp, a knife and a mug; all on the counter but the second apple, which is in the fridge."""
    fields: dict[str, object] = {
        "game_id": "kitchen",
        "sentence": "put some apple on fridge",
        "goal": goal,
        "receptacles": PLACES,
        "things": THINGS,
        "can_contain": frozenset((place.kind, "Apple") for place in PLACES) | {("CounterTop", "Knife"), ("Microwave", "Mug")},
        "start_location": MIDDLE,
        "opened": frozenset(),
        "inside": ((APPLE, COUNTER), (OTHER_APPLE, FRIDGE), (LAMP, COUNTER), (KNIFE, COUNTER), (MUG, COUNTER)),
        "at_location": ((APPLE, BENCH), (OTHER_APPLE, COLD), (LAMP, BENCH), (KNIFE, BENCH), (MUG, BENCH)),
    }
    return Game(**{**fields, **changes})  # type: ignore[arg-type]


def play(world: World, *commands: str) -> str:
    """Carry out admissible commands; returns the last text."""
    for command in commands:
        assert command in world.admissible(), command
        world.step(command)
    return world.observation


def random_walk(world: World, steps: int, seed: int) -> list[str]:
    """Carry out random admissible commands, walking less often than the mere number of places would make one; returns them."""
    random = Random(seed)
    commands = []
    for _ in range(steps):
        choices = [command for command in world.admissible() if not command.startswith("go to")]
        if random.random() < 0.4:
            choices = [command for command in world.admissible() if command.startswith("go to")] or choices
        commands.append(random.choice(choices))
        world.step(commands[-1])
    return commands
