"""Procedural households: games of the ALFWorld domain made from a seed.

A game is a pure function of (shape with its house seed, split, index). A *layout* is a furnished room; the splits ``train`` and
``valid_seen`` share their layouts, every other split has its own, so ``valid_unseen`` means rooms never seen in training.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from threespo_bench.errors import UsageError, suggest
from threespo_envs.alfred.game import Game, Goal, Receptacle, Thing
from threespo_envs.alfred.world import World
from threespo_envs.household import rooms
from threespo_envs.household.expert import oracle_plan

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
VERSION = "household-2"
"""Changes whenever a seed would give another game."""

SPLITS = ("train", "valid_seen", "valid_unseen", "demonstrations")

TREATMENT = {
    "pick_clean_then_place_in_recep": "clean",
    "pick_heat_then_place_in_recep": "heat",
    "pick_cool_then_place_in_recep": "cool",
}
"""Task types that ask for a state, with the verb that gives it."""

SENTENCES = {
    "pick_and_place_simple": ("put a {thing} in {place}", "put some {thing} on {place}"),
    "look_at_obj_in_light": ("look at {thing} under the {place}", "examine the {thing} with the {place}"),
    "pick_clean_then_place_in_recep": ("put a clean {thing} in {place}", "clean some {thing} and put it in {place}"),
    "pick_heat_then_place_in_recep": ("put a hot {thing} in {place}", "heat some {thing} and put it in {place}"),
    "pick_cool_then_place_in_recep": ("put a cool {thing} in {place}", "cool some {thing} and put it in {place}"),
    "pick_two_obj_and_place": ("put two {thing} in {place}", "find two {thing} and put them in {place}"),
}
"""The goal sentences of the ALFWorld games, by task type."""

_ROOMS_FOR = {
    "look_at_obj_in_light": ("bedroom", "livingroom"),
    "pick_clean_then_place_in_recep": ("kitchen", "bathroom"),
    "pick_heat_then_place_in_recep": ("kitchen",),
    "pick_cool_then_place_in_recep": ("kitchen",),
}
_LAYOUTS_PER_ROOM = {"train": 24, "valid_unseen": 12}
_DOORLESS = 0.15  # about the share of the real games' cabinets and drawers that cannot be opened
_LOOKALIKES = (0.2, 0.4)  # share of the distractors that would do for the same type of task
_THINGS_PER_PLACE = (0.9, 1.5)
_MOST_OF_A_KIND = 3
_SECOND_THING = 0.35  # chance that there is one thing of the wanted kind more than needed


@dataclass(frozen=True, slots=True)
class Shape:
    """What the games of a household have in common.

    Attributes:
        receptacles_min: the least number of places in a room.
        receptacles_max: the greatest.
        house_seed: another seed gives other rooms and games.
        task_types: the task types, evenly spread over the indices of a split.
    """

    receptacles_min: int = 10
    receptacles_max: int = 14
    house_seed: int = 0
    task_types: tuple[str, ...] = TASK_TYPES

    def __post_init__(self) -> None:
        if not 6 <= self.receptacles_min <= self.receptacles_max <= 30:
            raise UsageError(
                f"a household cannot have {self.receptacles_min} to {self.receptacles_max} receptacles",
                "choose 6 <= receptacles_min <= receptacles_max <= 30",
            )
        if not self.task_types:
            raise UsageError("task_types is empty", "leave it out for all six task types")
        for name in self.task_types:
            if name not in TASK_TYPES:
                raise UsageError(f"unknown task type {name!r}", suggest(name, TASK_TYPES))


def task_type_of(shape: Shape, index: int) -> str:
    """The task type of game ``index`` of any split."""
    return shape.task_types[index % len(shape.task_types)]


def household_game(shape: Shape, split: str, index: int) -> Game:
    """Game ``index`` of ``split``; solvable, with the shortest known plan as its walkthrough."""
    task_type = task_type_of(shape, index)
    receptacles, room = _layout_of(shape, split, index, task_type)
    rng = _generator(shape, "game", split, index)
    goal = _draw_goal(task_type, room, receptacles, rng)
    kinds, homes = _draw_things(goal, room, receptacles, rng)
    game = _assemble(f"household/{split}/{index:05d}", goal, receptacles, kinds, homes, rng)
    return replace(game, walkthrough=tuple(oracle_plan(World(game))))


# ---- random numbers


def _generator(shape: Shape, *keys: object) -> np.random.Generator:
    text = "\x1f".join(map(str, ("household", shape.house_seed, *keys)))
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "big")))


def _pick(items: list[str] | tuple[str, ...], rng: np.random.Generator) -> str:
    return items[int(rng.random() * len(items))]


def _weighted(weights: dict[str, float] | dict[str, int], rng: np.random.Generator) -> str:
    point = rng.random() * sum(weights.values())
    for item, weight in weights.items():
        point -= weight
        if point < 0:
            return item
    return item


# ---- the room


def _layout_of(shape: Shape, split: str, index: int, task_type: str) -> tuple[tuple[Receptacle, ...], str]:
    """The room of a game. Game i of ``valid_seen`` is played in the room of game i of ``train``: so its room was seen."""
    family = "train" if split == "valid_seen" else split
    rng = _generator(shape, "room", family, index)
    room = _pick(_ROOMS_FOR.get(task_type, rooms.ROOMS), rng)
    number = int(rng.random() * _LAYOUTS_PER_ROOM[family]) if family in _LAYOUTS_PER_ROOM else index
    return _layout(shape, family, room, number), room


@lru_cache(maxsize=1024)
def _layout(shape: Shape, family: str, room: str, number: int) -> tuple[Receptacle, ...]:
    """A furnished room: its receptacles in the order of their ids. Location 0 is the middle of the room."""
    rng = _generator(shape, "layout", family, room, number, shape.receptacles_min, shape.receptacles_max)
    size = shape.receptacles_min + int(rng.random() * (shape.receptacles_max - shape.receptacles_min + 1))
    counts = _furnish(rooms.PLANS[room], size, rng)
    unnumbered: list[tuple[str, str, str]] = []
    for kind, count in counts.items():
        unnumbered += [(_receptacle_id(kind, i), f"{kind.lower()} {count - i}", kind) for i in range(count)]
    receptacles = []
    for location, (pddl_id, name, kind) in enumerate(sorted(unnumbered, key=lambda item: item[0].lower()), start=1):
        doorless = kind in ("Cabinet", "Drawer") and rng.random() < _DOORLESS
        receptacles.append(Receptacle(pddl_id, name, kind, location, kind in rooms.OPENABLE and not doorless))
    return tuple(receptacles)


def _furnish(plan: rooms.RoomPlan, size: int, rng: np.random.Generator) -> dict[str, int]:
    counts = dict.fromkeys(plan.core, 1)
    for _ in range(size - len(plan.core)):
        open_kinds = {kind: weight for kind, weight, most in plan.extras if counts.get(kind, 0) < most}
        kind = _weighted(open_kinds, rng)
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def _receptacle_id(kind: str, number: int) -> str:
    """The PDDL id; a basin's id names the furniture first, as ALFWorld's do."""
    if kind.endswith("Basin"):
        return f"{kind.removesuffix('Basin')}_bar_{number:02d}_bar_{kind}"
    return f"{kind}_bar_{number:02d}"


# ---- the goal


def _draw_goal(task_type: str, room: str, receptacles: tuple[Receptacle, ...], rng: np.random.Generator) -> Goal:
    options = _goals(task_type, room, frozenset(receptacle.kind for receptacle in receptacles))
    thing = _pick(tuple(options), rng)
    return Goal(task_type, thing, _pick(options[thing], rng))


@lru_cache(maxsize=4096)
def _goals(task_type: str, room: str, present: frozenset[str]) -> dict[str, tuple[str, ...]]:
    """The kinds of thing that a goal of ``task_type`` can be about, each with the kinds of place it can ask for."""
    verb = TREATMENT.get(task_type)
    options: dict[str, tuple[str, ...]] = {}
    for thing, places in rooms.usual_places(room).items():
        if verb is not None and thing not in rooms.AFFORDING[verb]:
            continue
        homes = present & places.keys()
        if task_type == "look_at_obj_in_light":
            targets = [rooms.LAMP] if homes else []
        else:
            targets = [
                place
                for place in sorted(present)
                if (place, thing) in rooms.can_contain() and homes - {place} and (verb is None or place != rooms.APPLIANCE[verb])
            ]
        if targets:
            options[thing] = tuple(targets)
    return options


# ---- the things


def _draw_things(goal: Goal, room: str, receptacles: tuple[Receptacle, ...], rng: np.random.Generator) -> tuple[list[str], list[int]]:
    """The kinds of all things and, for each, the index of the receptacle it is in."""
    by_kind: dict[str, list[int]] = {}
    for index, receptacle in enumerate(receptacles):
        by_kind.setdefault(receptacle.kind, []).append(index)
    wanted = 2 if goal.task_type == "pick_two_obj_and_place" else 1
    kinds = [goal.object_kind] * (wanted + (rng.random() < _SECOND_THING))
    low, high = _THINGS_PER_PLACE
    total = round(len(receptacles) * (low + (high - low) * rng.random()))
    kinds += _draw_distractors(goal, room, frozenset(by_kind), max(3, total - len(kinds)), rng)
    usual = rooms.usual_places(room)
    homes = []
    for kind in kinds:
        barred = goal.receptacle_kind if kind == goal.object_kind else ""
        weights = {place: weight for place, weight in usual[kind].items() if place in by_kind and place != barred}
        home = by_kind[_weighted(weights, rng)]
        homes.append(home[int(rng.random() * len(home))])
    if goal.task_type == "look_at_obj_in_light":
        lamps = [index for place in rooms.LAMP_PLACES for index in by_kind.get(place, [])]
        kinds.append(rooms.LAMP)
        homes.append(lamps[int(rng.random() * len(lamps))])
    return kinds, homes


def _draw_distractors(goal: Goal, room: str, present: frozenset[str], count: int, rng: np.random.Generator) -> list[str]:
    others, lookalikes = _distractor_kinds(goal, room, present)
    low, high = _LOOKALIKES
    share = low + (high - low) * rng.random()
    drawn: dict[str, int] = {}
    kinds: list[str] = []
    for draw in range(2 * count):
        if len(kinds) == count:
            break
        kind = _pick(lookalikes if lookalikes and draw < share * count else others, rng)
        if drawn.get(kind, 0) < _MOST_OF_A_KIND:
            drawn[kind] = drawn.get(kind, 0) + 1
            kinds.append(kind)
    return kinds


@lru_cache(maxsize=8192)
def _distractor_kinds(goal: Goal, room: str, present: frozenset[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """All kinds that can lie about in the room, and those of them that could have been the wanted thing."""
    usual = rooms.usual_places(room)
    others = tuple(kind for kind, places in usual.items() if kind != goal.object_kind and present & places.keys())
    possible = _goals(goal.task_type, room, present)
    return others, tuple(kind for kind in others if goal.receptacle_kind in possible.get(kind, ()))


def _thing(kind: str, number: int, count: int) -> Thing:
    return Thing(
        pddl_id=f"{kind}_bar_{number:02d}",
        name=f"{kind.lower()} {count - number}",
        kind=kind,
        pickupable=kind != rooms.LAMP,
        cleanable=kind in rooms.CLEANABLE,
        heatable=kind in rooms.HEATABLE,
        coolable=kind in rooms.COOLABLE,
        sliceable=kind in rooms.SLICEABLE,
        toggleable=kind == rooms.LAMP,
        holds_things=kind in rooms.VESSELS,
    )


def _assemble(game_id: str, goal: Goal, receptacles: tuple[Receptacle, ...], kinds: list[str], homes: list[int], rng: np.random.Generator) -> Game:
    counts: dict[str, int] = {}
    for kind in kinds:
        counts[kind] = counts.get(kind, 0) + 1
    given: dict[str, int] = {}
    placed: list[tuple[Thing, int]] = []
    for kind, home in zip(kinds, homes, strict=True):
        number = given[kind] = given.get(kind, -1) + 1
        placed.append((_thing(kind, number, counts[kind]), home))
    placed.sort(key=lambda pair: pair[0].pddl_id.lower())  # the engine's order
    template = _pick(SENTENCES[goal.task_type], rng)
    return Game(
        game_id=game_id,
        sentence=template.format(thing=goal.object_kind.lower(), place=goal.receptacle_kind.lower()),
        goal=goal,
        receptacles=receptacles,
        things=tuple(thing for thing, _ in placed),
        can_contain=rooms.can_contain(),
        start_location=0,
        opened=frozenset(),
        inside=tuple((index, home) for index, (_, home) in enumerate(placed)),
        at_location=tuple((index, receptacles[home].location) for index, (_, home) in enumerate(placed)),
    )
