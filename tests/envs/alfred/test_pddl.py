"""Reading PDDL problems: names, goals, and clear messages for whatever is not a problem of the domain."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.envs.alfred.games import random_walk
from threespo_bench.errors import DataError
from threespo_envs.alfred.game import Game, Goal
from threespo_envs.alfred.pddl import display_names, parse_problem
from threespo_envs.alfred.world import World
from threespo_envs.alfworld.games import PackedGames

PROBLEM = """
(define (problem tiny)
(:domain alfred)
(:objects
agent1 - agent
Apple - object
        AppleType - otype
        TableType - rtype
        Apple_bar_a - object
        Apple_bar_b - object
        Lamp_bar_a - object
        Table_bar_a - receptacle
        Sink_bar_a_bar_SinkBasin - receptacle
        loc_bar_1 - location
        loc_bar_2 - location
        loc_bar_3 - location
        )
(:init
        (receptacleType Table_bar_a TableType)
        (receptacleType Sink_bar_a_bar_SinkBasin SinkBasinType)
        (objectType Apple_bar_a AppleType)
        (objectType Apple_bar_b AppleType)
        (canContain TableType AppleType)
        (pickupable Apple_bar_a)
        (cleanable Apple_bar_a)
        (openable Sink_bar_a_bar_SinkBasin)
        (opened Sink_bar_a_bar_SinkBasin)
        (atLocation agent1 loc_bar_3)
        (isCool Apple_bar_b)
        (inReceptacle Apple_bar_a Table_bar_a)
        (receptacleAtLocation Table_bar_a loc_bar_1)
        (receptacleAtLocation Sink_bar_a_bar_SinkBasin loc_bar_2)
        (objectAtLocation Apple_bar_a loc_bar_1)
        (objectAtLocation Apple_bar_b loc_bar_2)
        (inReceptacleObject Apple_bar_b Apple_bar_a)
        )
        (:goal
             (and
                 (exists (?r - receptacle)
                 (exists (?o - object)
                     (and
                         (inReceptacle ?o ?r)
                         (objectType ?o AppleType)
                         (receptacleType ?r TableType)
                     )
                 ))
             )
        )
)
"""


def read(text: str = PROBLEM) -> Game:
    return parse_problem(text, game_id="tiny", sentence="put some apple on table.")


def test_a_problem_is_read_completely() -> None:
    game = read()
    assert game.goal == Goal("pick_and_place_simple", "Apple", "Table")
    assert game.sentence == "put some apple on table"
    assert [(place.name, place.kind, place.location, place.openable) for place in game.receptacles] == [
        ("sinkbasin 1", "SinkBasin", 1, True),
        ("table 1", "Table", 0, False),
    ]
    assert [(thing.name, thing.kind, thing.pickupable, thing.cleanable) for thing in game.things] == [
        ("apple 2", "Apple", True, True),
        ("apple 1", "Apple", False, False),
    ], "a lamp that no fact names does not exist"
    assert game.can_contain == {("Table", "Apple")}
    assert (game.start_location, game.opened) == (2, {0})
    assert (game.inside, game.at_location, game.within) == (((0, 1),), ((0, 0), (1, 1)), ((1, 0),))
    assert game.states == ((1, "cool"),)


def test_numbers_are_dealt_out_from_the_last_id_and_basins_are_told_from_what_they_are_part_of() -> None:
    ids = ["Sink_bar_a", "Sink_bar_a_bar_SinkBasin", "Sink_bar_b", "ToiletPaper_bar_a", "Toilet_bar_a", "Egg_bar_a_bar_EggCracked_0"]
    assert display_names(ids) == {
        "Sink_bar_a": "sink 2",
        "Sink_bar_a_bar_SinkBasin": "sinkbasin 1",
        "Sink_bar_b": "sink 1",
        "ToiletPaper_bar_a": "toiletpaper 1",
        "Toilet_bar_a": "toilet 1",
        "Egg_bar_a_bar_EggCracked_0": "egg 1",
    }


def test_comments_costs_and_distances_are_passed_over() -> None:
    more = "(:init\n (= (total-cost) 0) ; nothing yet\n (= (distance loc_bar_1 loc_bar_2) 3.5)"
    assert read(PROBLEM.replace("(:init", more)) == read()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("(:domain alfred)", "(:domain blocks)", "is not a problem of the domain 'alfred'"),
        ("(:init", "(:start", "has no (:init ...) part"),
        ("(:goal", "(:aim", "has no (:goal ...) part"),
        ("\n)\n", "\n", "brackets that do not match"),
        ("- location", "- place", "declares no location"),
        ("- receptacle", "- thing", "declares no receptacle"),
        ("(receptacleType Table_bar_a TableType)", "", "gives no type for Table_bar_a"),
        ("(receptacleAtLocation Table_bar_a loc_bar_1)", "", "gives no location for Table_bar_a"),
        ("(atLocation agent1 loc_bar_3)", "", "places the agent 0 times"),
        ("(atLocation agent1 loc_bar_3)", "(atLocation agent1 loc_bar_9)", "names an undeclared location 'loc_bar_9' in a fact atLocation"),
        ("(pickupable Apple_bar_a)", "(pickupable Pear_bar_a)", "names an undeclared object 'Pear_bar_a' in a fact pickupable"),
        ("(pickupable Apple_bar_a)", "(pickupable Apple_bar_a Apple_bar_b)", "has a fact pickupable with a wrong number of arguments"),
        ("(pickupable Apple_bar_a)", "pickupable Apple_bar_a", "has a part in (:init ...) that is no fact: 'pickupable Apple_bar_a"),
        ("(pickupable Apple_bar_a)", "(holds agent1 Apple_bar_a)", "starts with something held"),
        ("(objectType Apple_bar_b AppleType)", "(objectType Apple_bar_a PearType)", "gives Apple_bar_a two types"),
        ("(receptacleAtLocation Sink_bar_a_bar_SinkBasin", "(receptacleAtLocation Table_bar_a", "gives a receptacle two locations"),
        ("(inReceptacle ?o ?r)", "(isSliced ?o)", "has a goal that is none of the domain's six"),
        ("Apple_bar_b - object", "apple_bar_a - object\n (pickupable apple_bar_a)", "object"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(old: str, new: str, message: str) -> None:
    assert old in PROBLEM
    with pytest.raises(DataError) as caught:
        read(PROBLEM.replace(old, new))
    assert str(caught.value).startswith("game tiny: its PDDL problem ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def refusal(text: str) -> str | None:
    """Why the text is refused; None if it gives a game, which then can be played."""
    try:
        game = read(text)
    except DataError as error:
        return str(error)
    random_walk(World(game), 10, seed=0)
    return None


def check(text: str) -> None:
    """The text is refused in one line that names the game, or gives a game."""
    message = refusal(text)
    assert message is None or ("game tiny" in message and "\n" not in message)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_problems_never_raise_anything_else(data: st.DataObject) -> None:
    lines = PROBLEM.split("\n")
    for _ in range(data.draw(st.integers(1, 3))):
        index = data.draw(st.integers(0, len(lines) - 1))
        action = data.draw(st.sampled_from(("drop", "double", "swap", "cut", "put")))
        if action == "drop":
            lines[index] = ""
        elif action == "double":
            lines.insert(data.draw(st.integers(0, len(lines))), lines[index])
        elif action == "swap":
            other = data.draw(st.integers(0, len(lines) - 1))
            lines[index], lines[other] = lines[other], lines[index]
        elif action == "cut":
            at = data.draw(st.integers(0, len(lines[index])))
            lines[index] = lines[index][:at]
        else:
            at = data.draw(st.integers(0, len(lines[index])))
            lines[index] = lines[index][:at] + data.draw(st.text(max_size=4)) + lines[index][at:]
    check("\n".join(lines))


@settings(max_examples=100, deadline=None)
@given(text=st.text(alphabet=st.sampled_from("()?:- \n_;abcOoRr=1"), max_size=60), at=st.integers(0, len(PROBLEM)))
def test_inserted_noise_never_raises_anything_else(text: str, at: int) -> None:
    check(PROBLEM[:at] + text + PROBLEM[at:])


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_damaged_real_problems_never_raise_anything_else(data: st.DataObject, packed_games: PackedGames) -> None:
    record = data.draw(st.sampled_from(packed_games.records("valid_unseen")))
    assert isinstance(record.payload, bytes)
    line: dict[str, Any] = json.loads(zlib.decompress(record.payload))
    text: str = line["pddl_problem"]
    start = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 200))
    check(text[:start] + data.draw(st.sampled_from(("", ")", "x", " - object "))) + text[start + length :])
