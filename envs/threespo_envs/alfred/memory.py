"""What an agent can know from the texts it has read: a memory of the episode, made from observations alone.

Nothing here looks at the world. An observation is read once into a small :class:`Reading` (and remembered by its text, as the same
sentences come back again and again); a :class:`Memory` is the readings of an episode, folded one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from threespo_bench.contracts.environment import PromptContext

TASK_MARK = "Your task is to: "
STATES = ("clean", "hot", "cool", "sliced", "lit")
"""The states a thing is remembered to have, in the order in which they are named."""

_NAME = r"[a-z]+ \d+"
_PLACE = re.compile(rf"^(?:(?P<how>You arrive at|You open the) (?P<first>{_NAME})\. )?(?:On|The|In) (?:the )?(?P<place>{_NAME})(?P<rest>.*)$", re.S)
_MOVED = re.compile(rf"^You (?P<verb>pick up|move|heat|cool|clean|turn on|close|sliced)(?: the)? (?P<thing>{_NAME})(?: \w+ the (?P<place>{_NAME}))?\.$")
_EXAMINED = re.compile(rf"^This is a (?P<words>(?:(?:hot|cool|cold|clean|sliced|and) )+)(?P<thing>{_NAME})\.$")
_CARRYING = re.compile(rf"^You are carrying: a (?P<thing>{_NAME})\.$")
_PLAIN = re.compile(rf"^There's nothing special about (?P<thing>{_NAME})\.$")
_LISTED = re.compile(rf"\ba ({_NAME})")


class Reading(NamedTuple):
    """What one observation tells.

    Attributes:
        kind: start, place, take, move, heat, cool, clean, sliced, use, close, examined, carrying, nothing (no effect) or other.
        place: the place it is about; for ``start`` the goal sentence.
        thing: the thing it is about.
        things: the names listed; None if no contents were shown.
        door: ``open``, ``closed`` or empty.
        arrived: the agent has come to ``place``.
        states: states told of the thing.
    """

    kind: str
    place: str = ""
    thing: str = ""
    things: tuple[str, ...] | None = None
    door: str = ""
    arrived: bool = False
    states: tuple[str, ...] = ()


@lru_cache(maxsize=1 << 16)
def read(text: str) -> Reading:
    """Read one observation. Texts of an unknown form are ``other``."""
    text = text.strip()
    if text.startswith("Nothing happens"):
        return Reading("nothing")
    if TASK_MARK in text:
        room, _, sentence = text.partition(TASK_MARK)
        return Reading("start", place=sentence.strip().rstrip("."), things=tuple(_LISTED.findall(room)))
    if match := _MOVED.match(text):
        verb = match["verb"]
        kind = {"pick up": "take", "turn on": "use"}.get(verb, verb)
        if kind == "close":
            return Reading(kind, place=match["thing"])
        return Reading(kind, place=match["place"] or "", thing=match["thing"])
    if match := _PLACE.match(text):
        return _read_place(match)
    if match := _CARRYING.match(text):
        return Reading("carrying", thing=match["thing"])
    if match := _EXAMINED.match(text):
        words = match["words"].replace("cold", "cool").split()
        return Reading("examined", thing=match["thing"], states=tuple(word for word in words if word in STATES))
    if text == "You are not carrying anything.":
        return Reading("carrying")
    if match := _PLAIN.match(text):
        return Reading("examined", thing=match["thing"])
    return Reading("other")


def _read_place(match: re.Match[str]) -> Reading:
    rest = match["rest"]
    door = "closed" if rest.startswith(" is closed") else "open" if rest.startswith(" is open") else ""
    things = None if door == "closed" else tuple(_LISTED.findall(rest))
    return Reading("place", place=match["place"], things=things, door=door, arrived=match["how"] == "You arrive at")


class Wish(NamedTuple):
    """What a goal sentence asks for.

    Attributes:
        verb: put, two (put two), clean, heat, cool (then put) or look.
        thing: the kind of the thing, in lower case.
        place: the kind of the place to bring it to; for ``look`` the kind of the lamp.
    """

    verb: str
    thing: str
    place: str


_WISHES = (
    (re.compile(r"^(?:look at|examine the) (\w+) (?:under|with) the (\w+)$"), "look"),
    (re.compile(r"^(?:put|find) two (\w+?)(?: and put them)? (?:in|on) (\w+)$"), "two"),
    (re.compile(r"^(?:put a clean|clean some) (\w+?)(?: and put it)? (?:in|on) (\w+)$"), "clean"),
    (re.compile(r"^(?:put a hot|heat some) (\w+?)(?: and put it)? (?:in|on) (\w+)$"), "heat"),
    (re.compile(r"^(?:put a cool|cool some) (\w+?)(?: and put it)? (?:in|on) (\w+)$"), "cool"),
    (re.compile(r"^put (?:a|some) (\w+) (?:in|on) (\w+)$"), "put"),
)


@lru_cache(maxsize=4096)
def read_wish(sentence: str) -> Wish | None:
    """What a goal sentence of one of the twelve known forms asks for; None for any other."""
    for pattern, verb in _WISHES:
        if match := pattern.match(sentence):
            return Wish(verb, match[1], match[2])
    return None


STATE_FOR = {"clean": "clean", "heat": "hot", "cool": "cool"}
"""The state that a wish's verb asks for."""


def kind_of(name: str) -> str:
    """The kind in a name: ``cabinet`` of ``cabinet 3``."""
    return name.partition(" ")[0]


class Memory:
    """What was learnt so far in an episode.

    Attributes:
        sentence: the goal sentence.
        places: all places of the room in the order in which they were listed.
        at: the place where the agent is; empty in the middle of the room.
        doors: place -> ``open`` or ``closed``, for places with a door that were seen.
        contents: place -> the things last known to be there.
        searched: the places whose whole contents were seen at some time. (Of another place the contents can be known in part: where
            several share a spot, things can be put there unseen.)
        holding: the thing in the agent's hand; empty for none.
        taken_from: where the thing in the hand was taken.
        states: thing -> its states that were told, in the order of ``STATES``.
        failed: the last command had no effect.
    """

    __slots__ = ("at", "contents", "doors", "failed", "holding", "places", "searched", "sentence", "states", "taken_from")

    def __init__(self) -> None:
        self.sentence = ""
        self.places: tuple[str, ...] = ()
        self.at = ""
        self.doors: dict[str, str] = {}
        self.contents: dict[str, tuple[str, ...]] = {}
        self.searched: set[str] = set()
        self.holding = ""
        self.taken_from = ""
        self.states: dict[str, tuple[str, ...]] = {}
        self.failed = False

    @classmethod
    def of(cls, observations: Iterable[str]) -> Memory:
        """The memory after ``observations``, oldest first."""
        memory = cls()
        for observation in observations:
            memory.add(observation)
        return memory

    @classmethod
    def of_context(cls, context: PromptContext) -> Memory:
        """The memory that the history and the present observation of ``context`` leave."""
        memory = cls()
        for turn in context.history:
            memory.add(turn.observation)
        memory.add(context.observation.text)
        return memory

    def add(self, observation: str) -> Reading:
        """Take in one more observation; returns what was read in it."""
        reading = read(observation)
        kind = reading.kind
        self.failed = kind == "nothing"
        if kind == "place":
            self._see_place(reading)
        elif kind == "take":
            self.holding, self.taken_from = reading.thing, reading.place
            self.contents[reading.place] = tuple(name for name in self.contents.get(reading.place, ()) if name != reading.thing)
        elif kind == "move":
            self.holding = self.taken_from = ""
            there = self.contents.get(reading.place, ())
            if reading.thing not in there:
                self.contents[reading.place] = (*there, reading.thing)
        elif kind in _GAINED:
            gained, lost = _GAINED[kind]
            self._set_states(reading.thing, {gained} | set(self.states.get(reading.thing, ())) - lost)
        elif kind == "start":
            self.sentence, self.places = reading.place, reading.things or ()
        elif kind == "close":
            self.doors[reading.place] = "closed"
        elif kind == "examined":
            self._set_states(reading.thing, set(reading.states))
        elif kind == "carrying":
            self.holding = reading.thing
        return reading

    def _see_place(self, reading: Reading) -> None:
        place = reading.place
        if reading.arrived:
            self.at = place
        if reading.door:
            self.doors[place] = reading.door
        if reading.things is not None:
            self.contents[place] = reading.things
            self.searched.add(place)

    def _set_states(self, thing: str, states: set[str]) -> None:
        self.states[thing] = tuple(name for name in STATES if name in states)


_GAINED: dict[str, tuple[str, frozenset[str]]] = {
    "heat": ("hot", frozenset({"cool"})),
    "cool": ("cool", frozenset({"hot"})),
    "clean": ("clean", frozenset()),
    "sliced": ("sliced", frozenset()),
    "use": ("lit", frozenset()),
}
