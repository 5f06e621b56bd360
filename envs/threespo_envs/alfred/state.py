"""The state of a game as a tuple that shares what did not change with its predecessor: keeping one costs nothing, going back is an assignment."""

from __future__ import annotations

import marshal
from hashlib import blake2b
from typing import NamedTuple

from threespo_envs.alfred.game import Game

CLEAN, HOT, COOL, SLICED, TOGGLED = 1, 2, 4, 8, 16
MARKS = {"clean": CLEAN, "hot": HOT, "cool": COOL, "sliced": SLICED, "toggled": TOGGLED}
"""The states of a thing as bits. Whether a lamp is "on" now is not among them: no text, command or goal depends on it."""

Groups = tuple[tuple[int, ...], ...]
"""Indices of things for each receptacle or location, ascending, which is the order in which they are listed."""


class State(NamedTuple):
    """Everything that can change in a game and has an effect.

    Attributes:
        location: where the agent stands.
        held: index of the thing in its hand, -1 for none.
        opened: bit r is set if receptacle r is open.
        contents: for each receptacle the things in it.
        nearby: for each location the things said to be there (objectAtLocation). Not quite the contents of its receptacles: the games'
            data disagree in places, and slicing and "Next to it, you see ..." go by this one.
        marks: for each thing its states as bits.
        vacated: for each receptacle the things that were taken out of it and are not back. It is bookkeeping of the engine we follow,
            where "Next to it, you see ..." tells of the things at the location that have left a receptacle there, and of no others.
    """

    location: int
    held: int
    opened: int
    contents: Groups
    nearby: Groups
    marks: tuple[int, ...]
    vacated: Groups

    def key(self) -> str:
        """A short digest of what is physically so: everything but ``vacated``, which only remembers the past."""
        # Version 2 of marshal writes values only; later ones also write which objects are shared, which differs between equal states.
        return blake2b(marshal.dumps(self[:-1], 2), digest_size=12).hexdigest()


class Snapshot(NamedTuple):
    """A state with the text last shown, and the game it belongs to."""

    game_id: str
    state: State
    observation: str


def initial_state(game: Game, locations: int) -> State:
    """The state that a game starts in.

    Args:
        game: the game.
        locations: how many locations it has.
    """
    marks = [0] * len(game.things)
    for thing, name in game.states:
        marks[thing] |= MARKS.get(name, 0)
    return State(
        location=game.start_location,
        held=-1,
        opened=sum(1 << receptacle for receptacle in game.opened),
        contents=_grouped(game.inside, len(game.receptacles)),
        nearby=_grouped(game.at_location, locations),
        marks=tuple(marks),
        vacated=((),) * len(game.receptacles),
    )


def _grouped(pairs: tuple[tuple[int, int], ...], size: int) -> Groups:
    groups: list[set[int]] = [set() for _ in range(size)]
    for item, index in pairs:
        groups[index].add(item)
    return tuple(tuple(sorted(group)) for group in groups)


def without(groups: Groups, index: int, item: int) -> Groups:
    """``groups`` with ``item`` taken out of group ``index`` (which need not have it)."""
    return (*groups[:index], tuple(i for i in groups[index] if i != item), *groups[index + 1 :])


def with_item(groups: Groups, index: int, item: int) -> Groups:
    """``groups`` with ``item`` added to group ``index`` in its order (which may have it)."""
    return (*groups[:index], tuple(sorted({*groups[index], item})), *groups[index + 1 :])
