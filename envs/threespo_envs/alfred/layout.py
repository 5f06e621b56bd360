"""What follows from a game and never changes while it is played: names, who shares a location, what fits where, and the goal's test."""

from __future__ import annotations

from itertools import chain

from threespo_envs.alfred.game import Game
from threespo_envs.alfred.state import CLEAN, COOL, HOT, TOGGLED, State, initial_state

KNIVES = frozenset({"Knife", "ButterKnife"})
SINKS = frozenset({"Sink", "SinkBasin"})

_GOAL_MARKS = {
    "pick_clean_then_place_in_recep": CLEAN,
    "pick_heat_then_place_in_recep": HOT,
    "pick_cool_then_place_in_recep": COOL,
}


class GoalTest:
    """Whether the goal holds in a state."""

    def __init__(self, game: Game, at: list[tuple[int, ...]]) -> None:
        goal = game.goal
        self._at = at
        self._mark = _GOAL_MARKS.get(goal.task_type, 0)
        self._wanted = 2 if goal.task_type == "pick_two_obj_and_place" else 1
        able = {CLEAN: "cleanable", HOT: "heatable", COOL: "coolable"}.get(self._mark)
        self._things = frozenset(i for i, thing in enumerate(game.things) if thing.kind == goal.object_kind and (able is None or getattr(thing, able)))
        self._by_light = goal.task_type == "look_at_obj_in_light"
        self._lamps = frozenset(i for i, thing in enumerate(game.things) if self._by_light and thing.toggleable and thing.kind == goal.receptacle_kind)
        self._places = [i for i, place in enumerate(game.receptacles) if place.kind == goal.receptacle_kind]

    def holds(self, state: State) -> bool:
        """The goal is true in ``state``."""
        if self._by_light:
            return state.held in self._things and self._lamp_shines(state)
        return any(self._is_filled(state, place) for place in self._places if state.contents[place])

    def _is_filled(self, state: State, place: int) -> bool:
        found = 0
        for thing in state.contents[place]:
            if thing in self._things and state.marks[thing] & self._mark == self._mark:
                found += 1
        return found >= self._wanted

    def _lamp_shines(self, state: State) -> bool:
        """A lamp of the right type that has been used is where the agent stands."""
        here = chain.from_iterable(state.contents[place] for place in self._at[state.location])
        return any(thing in self._lamps and state.marks[thing] & TOGGLED for thing in here)


class Layout:
    """Tables of one game.

    Attributes:
        game: the game.
        places: names of the receptacles.
        things: names of the things.
        at: for each location the receptacles there; several can share one.
        accepts: for each receptacle the things that may be put into it.
        start: the initial state.
        goal: the goal's test.
    """

    def __init__(self, game: Game) -> None:
        self.game = game
        self.places = [receptacle.name for receptacle in game.receptacles]
        self.things = [thing.name for thing in game.things]
        places = (receptacle.location for receptacle in game.receptacles)
        locations = 1 + max(chain((game.start_location,), places, (location for _, location in game.at_location)))
        self.at: list[tuple[int, ...]] = [()] * locations
        for index, receptacle in enumerate(game.receptacles):
            self.at[receptacle.location] += (index,)
        by_kind: dict[str, frozenset[int]] = {}
        for kind in {receptacle.kind for receptacle in game.receptacles}:
            by_kind[kind] = frozenset(i for i, thing in enumerate(game.things) if (kind, thing.kind) in game.can_contain)
        self.accepts = [by_kind[receptacle.kind] for receptacle in game.receptacles]
        self.start = initial_state(game, locations)
        self.goal = GoalTest(game, self.at)
        self._goto = sorted((f"go to {name}", index) for index, name in enumerate(self.places))
        self._walks: list[tuple[dict[str, int], tuple[str, ...]] | None] = [None] * locations

    def walks(self, location: int) -> tuple[dict[str, int], tuple[str, ...]]:
        """The "go to" commands from a location: each with its receptacle, and all of them sorted. None leads to where one stands."""
        walks = self._walks[location]
        if walks is None:
            receptacles = self.game.receptacles
            commands = {name: index for name, index in self._goto if receptacles[index].location != location}
            walks = self._walks[location] = (commands, tuple(commands))
        return walks
