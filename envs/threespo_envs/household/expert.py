"""Two experts: one that knows the whole world, and one that knows only what it has read.

:func:`oracle_plan` gives a plan from any state of any game of the domain, in closed form: the six goals need no search. It
proves that games can be solved and tells how good a player could be. :class:`Searcher` plays by the rules an agent plays by; its
episodes are what a model can be taught from.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import log

import numpy as np

from threespo_envs.alfred.game import Game
from threespo_envs.alfred.memory import STATE_FOR, Memory, Wish, kind_of, read_wish
from threespo_envs.alfred.world import World
from threespo_envs.household.rooms import APPLIANCE, fits, usual_weight

_TREATMENTS = {
    "pick_clean_then_place_in_recep": ("clean", "clean", ("SinkBasin", "Sink"), "cleanable"),
    "pick_heat_then_place_in_recep": ("heat", "hot", ("Microwave",), "heatable"),
    "pick_cool_then_place_in_recep": ("cool", "cool", ("Fridge",), "coolable"),
}
"""Per task type: the verb, the state it gives, the kinds of appliance, and the property a thing needs."""


class DeadEnd(Exception):
    """No plan leads from the present state to the goal."""


def oracle_plan(world: World) -> list[str]:
    """Commands that win from the present state of ``world``, which is left as it is; empty if it is won or cannot be won any more."""
    if world.won:
        return []
    planner = _Planner(world)
    try:
        planner.solve()
    except DeadEnd:
        return []
    return planner.plan


class _Planner:
    """Writes a plan and keeps track of what it changes: where the agent stands, what it holds, which doors are open."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.game: Game = world.game
        self.plan: list[str] = []
        self._at = world.location
        self._open = set(world.opened)
        self._held = world.holding

    def solve(self) -> None:
        """Write the whole plan; raises DeadEnd."""
        task_type = self.game.goal.task_type
        if task_type == "look_at_obj_in_light":
            self._look_in_light()
        elif task_type == "pick_two_obj_and_place":
            self._bring_two()
        else:
            self._bring_one(*_TREATMENTS.get(task_type, ("", "", (), "")))

    # ---- the goals

    def _bring_one(self, verb: str, state: str, appliances: tuple[str, ...], needed: str) -> None:
        targets = [index for index, place in enumerate(self.game.receptacles) if place.kind == self.game.goal.receptacle_kind]
        fit = [t for t in self._goal_things() if (not needed or getattr(self.game.things[t], needed)) and any(self.world.accepts(r, t) for r in targets)]
        thing = self._choose(fit, state)
        self._fetch(thing)
        if state and state not in self.world.thing_states(thing):
            self._treat(verb, thing, appliances)
        self._put(thing, [r for r in targets if self.world.accepts(r, thing)])

    def _bring_two(self) -> None:
        things = set(self._goal_things())
        target, missing = self._best_target(things)
        candidates = [t for t in things if t not in self.world.contents(target) and self.world.accepts(target, t)]
        for _ in range(missing):
            thing = self._choose(candidates, "")
            self._fetch(thing)
            self._put(thing, [target])
            candidates.remove(thing)

    def _best_target(self, things: set[int]) -> tuple[int, int]:
        """The place that needs the fewest things, and how many it needs."""
        best: tuple[int, int, int] | None = None
        for index, place in enumerate(self.game.receptacles):
            if place.kind != self.game.goal.receptacle_kind:
                continue
            there = len(things.intersection(self.world.contents(index)))
            within_reach = sum(self.world.accepts(index, t) and self._where(t) != [index] for t in things)
            if there + within_reach >= 2:
                rank = (2 - there, place.location != self._at, index)
                best = rank if best is None else min(best, rank)
        if best is None:
            raise DeadEnd
        return best[2], best[0]

    def _look_in_light(self) -> None:
        self._fetch(self._choose(self._goal_things(), ""))
        lamps = [
            (t, r) for t, thing in enumerate(self.game.things) if thing.kind == self.game.goal.receptacle_kind and thing.toggleable for r in self._where(t)
        ]
        if not lamps:
            raise DeadEnd
        lamp, place = min(lamps, key=lambda pair: ("toggled" not in self.world.thing_states(pair[0]), self._location(pair[1]) != self._at, pair))
        self._go(place)
        if "toggled" not in self.world.thing_states(lamp):
            self.plan.append(f"use {self.game.things[lamp].name}")

    # ---- parts of a plan

    def _goal_things(self) -> list[int]:
        return [index for index, thing in enumerate(self.game.things) if thing.kind == self.game.goal.object_kind]

    def _where(self, thing: int) -> list[int]:
        """The receptacles a thing is in; the games have some in two."""
        return [index for index in range(len(self.game.receptacles)) if thing in self.world.contents(index)]

    def _location(self, place: int) -> int:
        return self.game.receptacles[place].location

    def _choose(self, things: Iterable[int], state: str) -> int:
        """The thing that takes the fewest commands: the one in the hand, one that has ``state``, one that is near."""
        ranked = []
        for thing in things:
            places = self._where(thing)
            if thing == self._held or (places and self.game.things[thing].pickupable):
                ready = not state or state in self.world.thing_states(thing)
                near = any(self._location(place) == self._at for place in places)
                ranked.append((thing != self._held, not ready, not near, thing))
        if not ranked:
            raise DeadEnd
        return min(ranked)[-1]

    def _fetch(self, thing: int) -> None:
        if self._held == thing:
            return
        self._free_hand()
        place = min(self._where(thing), key=lambda index: (self._location(index) != self._at, not self._is_open(index), index))
        self._reach(place)
        self.plan.append(f"take {self.game.things[thing].name} from {self.game.receptacles[place].name}")
        self._held = thing

    def _free_hand(self) -> None:
        if self._held is not None:
            self._put(self._held, [index for index in range(len(self.game.receptacles)) if self.world.accepts(index, self._held)])

    def _put(self, thing: int, places: list[int]) -> None:
        if not places:
            raise DeadEnd
        place = min(places, key=lambda index: (self._location(index) != self._at, not self._is_open(index), index))
        self._reach(place)
        self.plan.append(f"move {self.game.things[thing].name} to {self.game.receptacles[place].name}")
        self._held = None

    def _treat(self, verb: str, thing: int, appliances: tuple[str, ...]) -> None:
        places = [index for index, place in enumerate(self.game.receptacles) if place.kind in appliances]
        if not places:
            raise DeadEnd
        place = min(places, key=lambda index: (self._location(index) != self._at, index))
        self._go(place)
        self.plan.append(f"{verb} {self.game.things[thing].name} with {self.game.receptacles[place].name}")

    def _is_open(self, place: int) -> bool:
        return place in self._open or not self.game.receptacles[place].openable

    def _go(self, place: int) -> None:
        if self._location(place) != self._at:
            self.plan.append(f"go to {self.game.receptacles[place].name}")
            self._at = self._location(place)

    def _reach(self, place: int) -> None:
        """Be at ``place`` with its door open."""
        self._go(place)
        if not self._is_open(place):
            self.plan.append(f"open {self.game.receptacles[place].name}")
            self._open.add(place)


class Searcher:
    """An expert that knows only what its observations told it, and what anyone knows about rooms.

    It looks through the places it has not seen, likely ones first, takes what is wanted, treats it and delivers it. As all it
    needs is in the memory, it goes on sensibly after commands that were not its own.

    Args:
        seed: decides the order of places that are equally likely.
        order: ``likely`` (places where such things usually are come early) or ``random``.
    """

    def __init__(self, seed: int, order: str = "likely") -> None:
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._order = order
        self._turn_of: dict[str, float] = {}
        self._together: set[tuple[str, str]] = set()
        self._last = ""

    def act(self, memory: Memory) -> str:
        """The next command."""
        if memory.failed and self._last.startswith("go to "):
            # The only walk that fails is one to a place at the same spot.
            place = self._last.removeprefix("go to ")
            self._together.update({(memory.at, place), (place, memory.at)})
        self._last = self._decide(memory)
        return self._last

    # ---- decisions

    def _decide(self, memory: Memory) -> str:
        wish = read_wish(memory.sentence)
        if wish is None:
            return "look"
        if not memory.holding:
            return self._find(memory, wish, wish.thing)
        if kind_of(memory.holding) != wish.thing:
            return self._put_away(memory)
        state = STATE_FOR.get(wish.verb)
        if state is not None and state not in memory.states.get(memory.holding, ()):
            return self._treat(memory, wish.verb)
        if wish.verb == "look":
            return self._find(memory, wish, wish.place)
        return self._deliver(memory, wish)

    def _find(self, memory: Memory, wish: Wish, kind: str) -> str:
        """Get at a thing of ``kind``: take it, or switch it on if it is the lamp."""
        known = self._known(memory, wish, kind)
        if known:
            thing, place = min(known, key=lambda pair: (pair[1] != memory.at, memory.doors.get(pair[1]) == "closed"))
            lamp = wish.verb == "look" and kind == wish.place
            return self._reach(memory, place) or (f"use {thing}" if lamp else f"take {thing} from {place}")
        return self._search(memory, kind)

    def _known(self, memory: Memory, wish: Wish, kind: str) -> list[tuple[str, str]]:
        """Things of ``kind`` that were seen, with their places; without those that are where they should be."""
        done = _target(memory, wish) if wish.verb == "two" else ""
        return [(thing, place) for place, things in memory.contents.items() if place != done for thing in things if kind_of(thing) == kind]

    def _search(self, memory: Memory, kind: str) -> str:
        unseen = [place for place in memory.places if place not in memory.searched]
        if not unseen:
            return "look"
        here = [place for place in unseen if self._is_at(memory, place)]
        place = here[0] if here else min(unseen, key=lambda name: self._rank(memory, name, kind))
        return self._reach(memory, place) or f"examine {place}"

    def _put_away(self, memory: Memory) -> str:
        thing = memory.holding
        fitting = [place for place in memory.places if fits(kind_of(place), kind_of(thing))]
        if not fitting:
            fitting = [memory.taken_from or memory.at]
        place = min(fitting, key=lambda name: (not self._is_at(memory, name), memory.doors.get(name) == "closed", name != memory.taken_from))
        return self._reach(memory, place) or f"move {thing} to {place}"

    def _treat(self, memory: Memory, verb: str) -> str:
        kind = APPLIANCE[verb].lower()
        places = [place for place in memory.places if kind_of(place) == kind]
        if not places:
            return "look"
        place = min(places, key=lambda name: not self._is_at(memory, name))
        return self._walk(memory, place) or f"{verb} {memory.holding} with {place}"

    def _deliver(self, memory: Memory, wish: Wish) -> str:
        place = _target(memory, wish)
        if not place:
            return "look"
        return self._reach(memory, place) or f"move {memory.holding} to {place}"

    # ---- getting about

    def _is_at(self, memory: Memory, place: str) -> bool:
        return place == memory.at or (memory.at, place) in self._together

    def _walk(self, memory: Memory, place: str) -> str:
        return "" if self._is_at(memory, place) else f"go to {place}"

    def _reach(self, memory: Memory, place: str) -> str:
        """The next command on the way to having ``place`` at hand and open; empty if it is."""
        step = self._walk(memory, place)
        if not step and memory.doors.get(place) == "closed":
            step = f"open {place}"
        if not step and place not in memory.searched and place not in memory.doors:
            step = f"examine {place}"
        return step

    def _rank(self, memory: Memory, place: str, kind: str) -> float:
        """The place's turn in the search: a race in which likelier places tend to arrive earlier."""
        if not self._turn_of:
            self._turn_of = {name: -log(1.0 - u) for name, u in zip(memory.places, self._rng.random(len(memory.places)), strict=True)}
        clock = self._turn_of.get(place, 1.0)
        if self._order == "random":
            return clock
        alike = sum(kind_of(name) == kind_of(place) for name in memory.places)
        return clock * alike / (usual_weight(kind_of(place), kind) + 0.01)


def _target(memory: Memory, wish: Wish) -> str:
    """Where to deliver: the place of the wanted kind with most of the wanted things, then one whose door is no hindrance."""
    places = [place for place in memory.places if kind_of(place) == wish.place]
    if not places:
        return ""

    def rank(place: str) -> tuple[int, bool, bool]:
        there = sum(kind_of(thing) == wish.thing for thing in memory.contents.get(place, ()))
        return (-there if wish.verb == "two" else 0, place != memory.at, memory.doors.get(place) == "closed")

    return min(places, key=rank)
