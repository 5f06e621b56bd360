"""Broad state keys: what a state means for the goal, without names and numbers, so that statistics gather over many tasks."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from threespo_envs.alfred.game import Game
from threespo_envs.alfred.world import CLEAN, COOL, HOT, SINKS, TOGGLED, World

_TREATED = {
    "pick_clean_then_place_in_recep": (CLEAN, SINKS),
    "pick_heat_then_place_in_recep": (HOT, frozenset({"Microwave"})),
    "pick_cool_then_place_in_recep": (COOL, frozenset({"Fridge"})),
}
"""Task type -> the mark a thing needs, and the kinds of place where it gets it."""


@dataclass(frozen=True, slots=True)
class _Goal:
    """What a game's goal is about, as indices; worked out once for each world.

    Attributes:
        head: the task type, and that with the kinds of the thing and the place.
        things: the wanted things.
        lamps: the lamps of a look task.
        targets: the receptacles of the wanted kind.
        appliances: the receptacles that give the wanted state.
        mark: the mark a thing needs, 0 for none.
        counts: how many have been delivered matters.
    """

    head: tuple[str, str]
    things: frozenset[int]
    lamps: frozenset[int]
    targets: frozenset[int]
    appliances: frozenset[int]
    mark: int
    counts: bool


_GOALS: WeakKeyDictionary[World, _Goal] = WeakKeyDictionary()


def goal_key(world: World, kinds: bool = False) -> str:
    """The present state as far as the goal is concerned.

    Its parts: the task type; what the place is for the goal (middle, target, appliance, both, other) and whether it is open; what is
    held (nothing, the wanted thing with or without the wanted state, something else); whether a wanted thing can be taken here; for
    pick-two how many were delivered; for look whether the lamp is here and lit.

    Args:
        world: the world.
        kinds: begin with the kinds of the wanted thing and place too, so that only tasks with the same goal share keys.
    """
    goal = _GOALS.get(world)
    if goal is None:
        goal = _GOALS[world] = _goal_of(world.game)
    state = world.state
    here = world.receptacles_here()
    parts = [goal.head[kinds], _place(world, goal, here), _held(state.held, state.marks, goal)]
    delivered = max((len(goal.things.intersection(state.contents[r])) for r in goal.targets), default=0) if goal.counts else 0
    if any(not goal.things.isdisjoint(state.contents[r]) and world.is_open(r) and not (goal.counts and r in goal.targets) for r in here):
        parts.append("sees")
    if goal.counts:
        parts.append(f"done{min(delivered, 2)}")
    if goal.lamps:
        lit = any(state.marks[lamp] & TOGGLED for lamp in goal.lamps)
        near = any(not goal.lamps.isdisjoint(state.contents[r]) for r in here)
        parts.append(("lamp-here" if near else "lamp-away") + ("-lit" if lit else ""))
    return " ".join(parts)


def _goal_of(game: Game) -> _Goal:
    goal = game.goal
    mark, appliances = _TREATED.get(goal.task_type, (0, frozenset()))
    look = goal.task_type == "look_at_obj_in_light"
    return _Goal(
        head=(goal.task_type, f"{goal.task_type} {goal.object_kind} {goal.receptacle_kind}"),
        things=frozenset(i for i, thing in enumerate(game.things) if thing.kind == goal.object_kind),
        lamps=frozenset(i for i, thing in enumerate(game.things) if look and thing.kind == goal.receptacle_kind),
        targets=frozenset(i for i, place in enumerate(game.receptacles) if place.kind == goal.receptacle_kind),
        appliances=frozenset(i for i, place in enumerate(game.receptacles) if place.kind in appliances),
        mark=mark,
        counts=goal.task_type == "pick_two_obj_and_place",
    )


def _place(world: World, goal: _Goal, here: tuple[int, ...]) -> str:
    if not here:
        return "middle"
    target = not goal.targets.isdisjoint(here)
    appliance = not goal.appliances.isdisjoint(here)
    role = ("target+appliance" if appliance else "target") if target else "appliance" if appliance else "place"
    # Where several receptacles share the spot, those that matter for the goal decide; one that can be reached into is enough.
    decisive = [r for r in here if r in goal.targets] or here
    return role if any(map(world.is_open, decisive)) else role + "-closed"


def _held(held: int, marks: tuple[int, ...], goal: _Goal) -> str:
    if held < 0:
        return "empty"
    if held not in goal.things:
        return "other"
    return "ready" if marks[held] & goal.mark == goal.mark else "wanted"
