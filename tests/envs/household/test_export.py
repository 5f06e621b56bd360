"""A household as a PDDL problem reads back as the same household."""

from __future__ import annotations

import pytest

from threespo_envs.alfred.export import write_game, write_problem
from threespo_envs.alfred.game import Game
from threespo_envs.alfred.pddl import parse_problem
from threespo_envs.household.generator import SPLITS, TASK_TYPES, Shape, household_game


def read_back(game: Game) -> Game:
    return parse_problem(write_problem(game), game_id=game.game_id, sentence=game.sentence, walkthrough=game.walkthrough)


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_round_trip(task_type: str) -> None:
    shape = Shape(6, 30, task_types=(task_type,))
    for split in SPLITS:
        for index in range(8):
            game = household_game(shape, split, index)
            assert read_back(game) == game


def test_round_trip_of_a_state_with_everything() -> None:
    game = household_game(Shape(), "train", 3)
    index = next(i for i, thing in enumerate(game.things) if thing.holds_things)
    rich = Game(
        **{name: getattr(game, name) for name in Game.__dataclass_fields__ if name not in ("opened", "within", "states")},
        opened=frozenset(i for i, place in enumerate(game.receptacles) if place.openable),
        within=((0 if index else 1, index),),
        states=((0, "clean"), (1, "clean"), (0, "hot"), (1, "cool"), (0, "sliced"), (2, "toggled")),
    )
    assert read_back(rich) == rich


def test_a_problem_declares_what_the_domain_names() -> None:
    text = write_problem(household_game(Shape(task_types=("look_at_obj_in_light",)), "train", 0))
    for name in ("SinkBasinType - rtype", "SinkType - rtype", "MicrowaveType - rtype", "FridgeType - rtype", "KnifeType - otype", "ButterKnifeType - otype"):
        assert text.count(f"    {name}\n") == 1
    assert text.count("(") == text.count(")")
    declared = [line.split()[0] for line in text.partition("(:objects")[2].partition("(:init")[0].splitlines() if " - " in line]
    assert len(set(declared)) == len(declared)


def test_a_game_file() -> None:
    game = household_game(Shape(), "train", 0)
    content = write_game(game, "(define (domain alfred))", 'task: "Your task is to: UNKNOWN GOAL."')
    assert content["grammar"] == f'task: "Your task is to: {game.sentence}."'
    assert content["walkthrough"] == list(game.walkthrough)
    assert content["solvable"] is True
