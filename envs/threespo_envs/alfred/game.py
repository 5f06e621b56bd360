"""One game of the domain as plain data: what never changes, and the state it starts in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Receptacle:
    """A place things can be in or on. ``name`` is what the player reads ("cabinet 3"), ``kind`` its type without the suffix ("Cabinet")."""

    pddl_id: str
    name: str
    kind: str
    location: int
    openable: bool


@dataclass(frozen=True, slots=True)
class Thing:
    """An object. The flags are the domain's predicates of the same name."""

    pddl_id: str
    name: str
    kind: str
    pickupable: bool = False
    cleanable: bool = False
    heatable: bool = False
    coolable: bool = False
    sliceable: bool = False
    toggleable: bool = False
    holds_things: bool = False  # isReceptacleObject


@dataclass(frozen=True, slots=True)
class Goal:
    """One of the six goals of the domain.

    Attributes:
        task_type: ALFWorld's name, e.g. ``pick_heat_then_place_in_recep``.
        object_kind: the type of the object to bring or look at.
        receptacle_kind: the type of the place to bring it to; for ``look_at_obj_in_light`` the type of the lamp.
    """

    task_type: str
    object_kind: str
    receptacle_kind: str


@dataclass(frozen=True, slots=True)
class Game:
    """A game: constants and initial state. Things and receptacles are in the order of their PDDL ids, which is the order of every list.

    Attributes:
        sentence: the goal sentence after "Your task is to: ", without the final period.
        can_contain: pairs (receptacle kind, thing kind).
        start_location: where the agent stands at first.
        opened: indices of receptacles open at the start.
        inside: pairs (thing index, receptacle index); a thing may start in two receptacles.
        at_location: pairs (thing index, location); what the PDDL calls objectAtLocation.
        within: pairs (inner thing index, outer thing index); what the PDDL calls inReceptacleObject.
        states: pairs (thing index, state) true at the start, state in clean, hot, cool, sliced, on, toggled.
    """

    game_id: str
    sentence: str
    goal: Goal
    receptacles: tuple[Receptacle, ...]
    things: tuple[Thing, ...]
    can_contain: frozenset[tuple[str, str]]
    start_location: int
    opened: frozenset[int]
    inside: tuple[tuple[int, int], ...]
    at_location: tuple[tuple[int, int], ...]
    within: tuple[tuple[int, int], ...] = ()
    states: tuple[tuple[int, str], ...] = ()
    walkthrough: tuple[str, ...] = ()
