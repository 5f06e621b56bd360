"""Writes a game as a PDDL problem, so that a generated household can be read back here and played by TextWorld."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from threespo_envs.alfred.game import Game, Goal

_NAMED_BY_DOMAIN = ("SinkBasinType", "SinkType", "MicrowaveType", "FridgeType")
_NAMED_KINDS = ("KnifeType", "ButterKnifeType")
"""Types that the domain's actions name; a problem must declare them whether it has such things or not."""

_STATE_FACTS = {"clean": "isClean", "hot": "isHot", "cool": "isCool", "sliced": "isSliced", "on": "isOn", "toggled": "isToggled"}
_FLAG_FACTS = {
    "pickupable": "pickupable",
    "cleanable": "cleanable",
    "heatable": "heatable",
    "coolable": "coolable",
    "sliceable": "sliceable",
    "toggleable": "toggleable",
    "holds_things": "isReceptacleObject",
}

_BRING = """(:goal
    (and
        (exists (?r - receptacle)
        (exists (?o - object)
            (and
{conditions}
            )
        ))
    )
)"""
_BRING_TWO = """(:goal
    (and
        (exists (?r - receptacle)
        (exists (?o1 - object)
            (and
                (objectType ?o1 {thing}Type)
                (receptacleType ?r {place}Type)
                (inReceptacle ?o1 ?r)
                (exists (?o2 - object)
                    (and
                        (not (= ?o1 ?o2))
                        (objectType ?o2 {thing}Type)
                        (receptacleType ?r {place}Type)
                        (inReceptacle ?o2 ?r)
                    )
                )
            )
        ))
    )
)"""
_LOOK = """(:goal
    (and
        (exists (?ot - object ?r - receptacle ?a - agent ?l - location)
            (and
                (objectType ?ot {place}Type)
                (toggleable ?ot)
                (isToggled ?ot)
                (receptacleAtLocation ?r ?l)
                (atLocation ?a ?l)
                (inReceptacle ?ot ?r)
            )
        )
        (exists (?o - object ?a - agent)
            (and
                (objectType ?o {thing}Type)
                (holds ?a ?o)
            )
        )
    )
)"""
_CONDITIONS = {
    "pick_and_place_simple": "(inReceptacle ?o ?r) (objectType ?o {thing}Type) (receptacleType ?r {place}Type)",
    "pick_clean_then_place_in_recep": ("(cleanable ?o) (objectType ?o {thing}Type) (receptacleType ?r {place}Type) (isClean ?o) (inReceptacle ?o ?r)"),
    "pick_heat_then_place_in_recep": ("(heatable ?o) (objectType ?o {thing}Type) (receptacleType ?r {place}Type) (isHot ?o) (inReceptacle ?o ?r)"),
    "pick_cool_then_place_in_recep": ("(coolable ?o) (objectType ?o {thing}Type) (receptacleType ?r {place}Type) (isCool ?o) (inReceptacle ?o ?r)"),
}


def write_problem(game: Game) -> str:
    """The PDDL problem of ``game``; :func:`threespo_envs.alfred.pddl.parse_problem` reads an equal game from it."""
    name = "plan_" + "".join(char if char.isalnum() else "_" for char in game.game_id)
    objects = "\n".join(f"    {item}" for item in _declarations(game))
    facts = "\n".join(f"    ({fact})" for fact in _facts(game))
    return f"(define (problem {name})\n(:domain alfred)\n(:objects\n{objects}\n)\n(:init\n{facts}\n)\n{_goal(game.goal)}\n)\n"


def write_game(game: Game, domain: str, grammar: str) -> dict[str, object]:
    """The content of a TextWorld ``tw-pddl`` file. ``domain`` and ``grammar`` are those of the ALFWorld games."""
    return {
        "pddl_domain": domain,
        "grammar": grammar.replace("UNKNOWN GOAL.", f"{game.sentence}."),
        "pddl_problem": write_problem(game),
        "walkthrough": list(game.walkthrough),
        "solvable": True,
    }


def _locations(game: Game) -> list[str]:
    used = {game.start_location, *(place.location for place in game.receptacles), *(location for _, location in game.at_location)}
    return [_location(location) for location in sorted(used)]


def _location(index: int) -> str:
    # Padded, because the engine orders locations by their names.
    return f"loc_bar_{index:04d}"


def _declarations(game: Game) -> Iterator[str]:
    yield "agent1 - agent"
    for thing in game.things:
        yield f"{thing.pddl_id} - object"
    for place in game.receptacles:
        yield f"{place.pddl_id} - receptacle"
    for location in _locations(game):
        yield f"{location} - location"
    thing_kinds = {thing.kind for thing in game.things if thing.kind} | {kind for _, kind in game.can_contain}
    place_kinds = {place.kind for place in game.receptacles} | {kind for kind, _ in game.can_contain}
    yield from _typed({game.goal.object_kind, *thing_kinds, *_lamp(game.goal)}, _NAMED_KINDS, "otype")
    yield from _typed({*_target(game.goal), *place_kinds}, _NAMED_BY_DOMAIN, "rtype")


def _typed(kinds: Iterable[str], named: Iterable[str], group: str) -> list[str]:
    return [f"{name} - {group}" for name in sorted({f"{kind}Type" for kind in kinds} | set(named))]


def _lamp(goal: Goal) -> tuple[str, ...]:
    return (goal.receptacle_kind,) if goal.task_type == "look_at_obj_in_light" else ()


def _target(goal: Goal) -> tuple[str, ...]:
    return () if goal.task_type == "look_at_obj_in_light" else (goal.receptacle_kind,)


def _facts(game: Game) -> Iterator[str]:
    things = [thing.pddl_id for thing in game.things]
    places = [place.pddl_id for place in game.receptacles]
    yield f"atLocation agent1 {_location(game.start_location)}"
    for index, place in enumerate(game.receptacles):
        yield f"receptacleType {place.pddl_id} {place.kind}Type"
        yield f"receptacleAtLocation {place.pddl_id} {_location(place.location)}"
        if place.openable:
            yield f"openable {place.pddl_id}"
        if index in game.opened:
            yield f"opened {place.pddl_id}"
    for thing in game.things:
        if thing.kind:
            yield f"objectType {thing.pddl_id} {thing.kind}Type"
        for attribute, fact in _FLAG_FACTS.items():
            if getattr(thing, attribute):
                yield f"{fact} {thing.pddl_id}"
    for place_kind, thing_kind in sorted(game.can_contain):
        yield f"canContain {place_kind}Type {thing_kind}Type"
    for inner, place_index in game.inside:
        yield f"inReceptacle {things[inner]} {places[place_index]}"
    for inner, location in game.at_location:
        yield f"objectAtLocation {things[inner]} {_location(location)}"
    for inner, outer in game.within:
        yield f"inReceptacleObject {things[inner]} {things[outer]}"
    for index, state in game.states:
        yield f"{_STATE_FACTS[state]} {things[index]}"


def _goal(goal: Goal) -> str:
    names = {"thing": goal.object_kind, "place": goal.receptacle_kind}
    if goal.task_type == "look_at_obj_in_light":
        return _LOOK.format(**names)
    if goal.task_type == "pick_two_obj_and_place":
        return _BRING_TWO.format(**names)
    conditions = _CONDITIONS[goal.task_type].format(**names).replace(") (", ")\n                (")
    return _BRING.format(conditions=" " * 16 + conditions)
