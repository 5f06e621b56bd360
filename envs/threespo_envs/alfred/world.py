"""The rules of the domain: one game being played, its texts and its admissible commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from threespo_bench.errors import EngineError
from threespo_envs.alfred import text
from threespo_envs.alfred.game import Game
from threespo_envs.alfred.layout import KNIVES, SINKS, Layout
from threespo_envs.alfred.state import CLEAN, COOL, HOT, MARKS, SLICED, TOGGLED, Snapshot, State, with_item, without

RULES_VERSION = 1
"""Goes up when the same game and commands would give other texts, wins or keys."""

Commands = dict[str, tuple[Callable[["World", int, int], str], int, int]]
"""Commands with what carries them out: a function of the world and two indices."""


class _View(NamedTuple):
    """What can be done at one location in one state: the commands but for "go to", and all that are admissible, in the engine's order."""

    commands: Commands
    admissible: tuple[str, ...]
    without_help: tuple[str, ...]


class World:
    """One game being played.

    Commands are matched exactly after ``strip()``; any other text changes nothing. The engine goes on after a win.

    Attributes:
        game: the game.
        observation: the text last shown.
        state: the present state. Set it through :meth:`restore` only.
    """

    def __init__(self, game: Game) -> None:
        self.game = game
        self._layout = Layout(game)
        self._places = self._layout.places
        self._things = self._layout.things
        # The last view of each location, with what it was made from: an agent that walks about meets the same few views again and again.
        self._views: list[tuple[tuple[Any, ...], _View] | None] = [None] * len(self._layout.at)
        self.reset()

    # ---- the life of a game

    def reset(self) -> str:
        """Start again; returns the first observation."""
        self.state: State = self._layout.start
        self._view: _View | None = None
        self.observation = text.welcome(self._surroundings(self._places), self.game.sentence)
        return self.observation

    def step(self, command: str) -> str:
        """Carry out one command and return the observation."""
        command = command.strip()
        place = self._layout.walks(self.state.location)[0].get(command)
        if place is not None:
            self.observation = self._go(place)
        else:
            entry = self._present_view().commands.get(command)
            self.observation = text.NOTHING_HAPPENS if entry is None else entry[0](self, entry[1], entry[2])
        return self.observation

    def admissible(self, *, with_help: bool = True) -> tuple[str, ...]:
        """The commands that have an effect now, sorted by code point. "help" is always one of them and can be left out."""
        view = self._present_view()
        return view.admissible if with_help else view.without_help

    @property
    def won(self) -> bool:
        """The goal holds in the present state; it can cease to."""
        return self._layout.goal.holds(self.state)

    def snapshot(self) -> Snapshot:
        """The present state and text as an immutable value, valid wherever the same game is loaded."""
        return Snapshot(self.game.game_id, self.state, self.observation)

    def restore(self, snapshot: Snapshot) -> str:
        """Go back to a snapshot of the same game; returns the observation of that time."""
        game_id, state, observation = snapshot
        if game_id != self.game.game_id:
            raise EngineError(f"a snapshot of game {game_id} cannot be restored in game {self.game.game_id}")
        self.state = state
        self._view = None
        self.observation = observation
        return observation

    def state_key(self) -> str:
        """A digest of the true state, whatever was shown last: place, hand, contents, doors and the states of things."""
        return self.state.key()

    # ---- reading the state

    @property
    def location(self) -> int:
        """Where the agent stands."""
        return self.state.location

    @property
    def holding(self) -> int | None:
        """Index of the thing in the agent's hand."""
        return None if self.state.held < 0 else self.state.held

    @property
    def opened(self) -> frozenset[int]:
        """Indices of the receptacles that were opened and are open."""
        return frozenset(index for index in range(len(self._places)) if self.state.opened >> index & 1)

    def is_open(self, receptacle: int) -> bool:
        """The receptacle's contents can be reached: it is open or has no door."""
        return not self.game.receptacles[receptacle].openable or bool(self.state.opened >> receptacle & 1)

    def contents(self, receptacle: int) -> tuple[int, ...]:
        """Indices of the things in a receptacle, in the order in which they are listed; whether or not they can be seen."""
        return self.state.contents[receptacle]

    def receptacles_here(self) -> tuple[int, ...]:
        """Indices of the receptacles at the agent's location; several can share one."""
        return self._layout.at[self.state.location]

    def thing_states(self, thing: int) -> frozenset[str]:
        """Which of clean, hot, cool, sliced and toggled are true of a thing."""
        marks = self.state.marks[thing]
        return frozenset(name for name, bit in MARKS.items() if marks & bit)

    def accepts(self, receptacle: int, thing: int) -> bool:
        """The thing may be put into the receptacle."""
        return thing in self._layout.accepts[receptacle]

    def inventory_text(self) -> str:
        """What the command "inventory" answers."""
        held = self.state.held
        return text.carrying(None if held < 0 else self._things[held])

    # ---- admissible commands

    def _present_view(self) -> _View:
        view = self._view
        if view is None:
            view = self._view = self._remembered_view()
        return view

    def _remembered_view(self) -> _View:
        """The view of the present state, made anew only if something at the location or the hand changed since the last visit."""
        state = self.state
        location = state.location
        here = self._layout.at[location]
        source = (state.held, state.nearby[location], *[(state.contents[r], state.opened >> r & 1) for r in here])
        remembered = self._views[location]
        if remembered is not None and remembered[0] == source:
            return remembered[1]
        view = self._make_view()
        self._views[location] = (source, view)
        return view

    def _make_view(self) -> _View:
        commands: Commands = {"inventory": (World._inventory, 0, 0), "look": (World._look, 0, 0)}
        for receptacle in self.receptacles_here():
            self._add_receptacle_commands(commands, receptacle)
        if self.state.held >= 0:
            self._add_held_commands(commands)
        names = sorted(commands)
        walks = self._layout.walks(self.state.location)[1]
        # "go to ..." is one block of the sorted list: each other verb comes wholly before or wholly after it.
        before = tuple(name for name in names if name < "go to")
        after = tuple(names[len(before) :])
        commands["help"] = (World._help, 0, 0)
        return _View(commands, (*before, *walks, *sorted((*after, "help"))), (*before, *walks, *after))

    def _add_receptacle_commands(self, commands: Commands, receptacle: int) -> None:
        place = self.game.receptacles[receptacle]
        name = place.name
        commands[f"examine {name}"] = (World._examine_place, receptacle, 0)
        things = self.game.things
        contents = self.state.contents[receptacle]
        for thing in contents:
            if things[thing].toggleable:
                commands[f"use {self._things[thing]}"] = (World._use, thing, 0)
        if self.state.held >= 0:
            self._add_appliance_commands(commands, receptacle)
        is_open = self.is_open(receptacle)
        if place.openable:
            verb, handler = ("close", World._close) if is_open else ("open", World._open)
            commands[f"{verb} {name}"] = (handler, receptacle, 0)
        if not is_open:
            return
        if self.state.held < 0:
            for thing in contents:
                if things[thing].pickupable:
                    commands[f"take {self._things[thing]} from {name}"] = (World._take, thing, receptacle)
        elif self.accepts(receptacle, self.state.held):
            commands[f"move {self._things[self.state.held]} to {name}"] = (World._move, self.state.held, receptacle)

    def _add_appliance_commands(self, commands: Commands, receptacle: int) -> None:
        """Heating, cooling and cleaning need the thing in the hand and the appliance at hand; its door does not matter."""
        kind = self.game.receptacles[receptacle].kind
        held = self.state.held
        thing = self.game.things[held]
        ending = f"{thing.name} with {self._places[receptacle]}"
        if kind == "Microwave" and thing.heatable:
            commands["heat " + ending] = (World._heat, held, receptacle)
        elif kind == "Fridge" and thing.coolable:
            commands["cool " + ending] = (World._cool, held, receptacle)
        elif kind in SINKS and thing.cleanable:
            commands["clean " + ending] = (World._clean, held, receptacle)

    def _add_held_commands(self, commands: Commands) -> None:
        held = self.state.held
        things = self.game.things
        commands[f"examine {self._things[held]}"] = (World._examine_thing, held, 0)
        if things[held].kind in KNIVES:
            for thing in self.state.nearby[self.state.location]:
                if things[thing].sliceable:
                    commands[f"slice {self._things[thing]} with {self._things[held]}"] = (World._slice, thing, held)

    # ---- carrying out commands

    def _change(self, **changes: Any) -> None:
        self.state = self.state._replace(**changes)
        self._view = None

    def _go(self, receptacle: int) -> str:
        self._change(location=self.game.receptacles[receptacle].location)
        return f"You arrive at {self._places[receptacle]}. {self._place_text(receptacle)}"

    def _open(self, receptacle: int, _: int) -> str:
        self._change(opened=self.state.opened | 1 << receptacle)
        return f"You open the {self._places[receptacle]}. {self._place_text(receptacle)}"

    def _close(self, receptacle: int, _: int) -> str:
        self._change(opened=self.state.opened & ~(1 << receptacle))
        return f"You close the {self._places[receptacle]}."

    def _take(self, thing: int, receptacle: int) -> str:
        state = self.state
        self._change(
            held=thing,
            contents=without(state.contents, receptacle, thing),
            nearby=without(state.nearby, state.location, thing),
            vacated=with_item(state.vacated, receptacle, thing),
        )
        return f"You pick up the {self._things[thing]} from the {self._places[receptacle]}."

    def _move(self, thing: int, receptacle: int) -> str:
        state = self.state
        self._change(
            held=-1,
            contents=with_item(state.contents, receptacle, thing),
            nearby=with_item(state.nearby, state.location, thing),
            vacated=without(state.vacated, receptacle, thing),
        )
        return f"You move the {self._things[thing]} to the {self._places[receptacle]}."

    def _mark(self, thing: int, add: int, remove: int = 0) -> None:
        marks = list(self.state.marks)
        marks[thing] = marks[thing] & ~remove | add
        self._change(marks=tuple(marks))

    def _heat(self, thing: int, receptacle: int) -> str:
        self._mark(thing, HOT, COOL)
        return f"You heat the {self._things[thing]} using the {self._places[receptacle]}."

    def _cool(self, thing: int, receptacle: int) -> str:
        self._mark(thing, COOL, HOT)
        return f"You cool the {self._things[thing]} using the {self._places[receptacle]}."

    def _clean(self, thing: int, receptacle: int) -> str:
        self._mark(thing, CLEAN)
        return f"You clean the {self._things[thing]} using the {self._places[receptacle]}."

    def _slice(self, thing: int, knife: int) -> str:
        self._mark(thing, SLICED)
        return f"You sliced the {self._things[thing]} with the {self._things[knife]}."

    def _use(self, thing: int, _: int) -> str:
        # The text goes by "has ever been used", which this command makes true: it never says "turn off".
        self._mark(thing, TOGGLED)
        return f"You turn on the {self._things[thing]}."

    def _look(self, _: int, __: int) -> str:
        # The list of places belongs to the first observation; here the grammar's query finds none and says "nothing".
        return self._surroundings(())

    def _inventory(self, _: int, __: int) -> str:
        return self.inventory_text()

    def _help(self, _: int, __: int) -> str:
        return text.HELP

    def _examine_place(self, receptacle: int, _: int) -> str:
        return self._place_text(receptacle)

    def _examine_thing(self, thing: int, _: int) -> str:
        name = self._things[thing]
        if self.game.things[thing].holds_things:
            # Some problems put a thing into itself; the grammar's query never gives two variables one value, so it is not told.
            return text.vessel(name, [self._things[inner] for inner, outer in self.game.within if outer == thing != inner])
        marks = self.state.marks[thing]
        return text.thing(
            name,
            clean=bool(marks & CLEAN),
            hot=bool(marks & HOT),
            cool=bool(marks & COOL),
            sliced=bool(marks & SLICED),
            lit=self.game.things[thing].toggleable and bool(marks & TOGGLED),
        )

    # ---- texts

    def _surroundings(self, places_of_room: list[str] | tuple[()]) -> str:
        here = self.receptacles_here()
        if not here:
            return text.middle_of_room(places_of_room)
        state = self.state
        beside = [thing for thing in state.nearby[state.location] for place in here if thing in state.vacated[place]]
        return text.facing([self._places[place] for place in here], [self._things[thing] for thing in beside])

    def _place_text(self, receptacle: int) -> str:
        name = self._places[receptacle]
        if not self.is_open(receptacle):
            return text.closed_place(name)
        contents = [self._things[thing] for thing in self.state.contents[receptacle]]
        if self.game.receptacles[receptacle].openable:
            return text.open_place(name, contents)
        return text.plain_place(name, contents)
