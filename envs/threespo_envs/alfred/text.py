"""The sentences of the domain, byte for byte as TextWorld's grammar of ALFWorld writes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NOTHING_HAPPENS = "Nothing happens."
WELCOME = "-= Welcome to TextWorld, ALFRED! =-"

HELP = """Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""


def listing(items: Sequence[str]) -> str:
    """``x, y, and z``; also ``x, and y`` for two, and ``nothing`` for none."""
    if not items:
        return "nothing"
    if len(items) == 1:
        return items[0]
    return ", ".join(items[:-1]) + ", and " + items[-1]


def listing_with_articles(names: Iterable[str]) -> str:
    """The same with an article before each name; it is "a" for every name."""
    return listing(["a " + name for name in names])


def welcome(surroundings: str, sentence: str) -> str:
    """The first observation of a game."""
    return f"{WELCOME}\n\n{surroundings}\n\nYour task is to: {sentence}."


def middle_of_room(places: Iterable[str]) -> str:
    """The surroundings of an agent that stands at no place."""
    return f"You are in the middle of a room. Looking quickly around you, you see {listing_with_articles(places)}."


def facing(places: Sequence[str], beside: Iterable[str]) -> str:
    """The surroundings of an agent that stands at one or more places."""
    return f"You are facing the {listing(places)}. Next to it, you see {listing_with_articles(beside)}."


def carrying(name: str | None) -> str:
    """The inventory; an agent holds one thing at most."""
    return "You are not carrying anything." if name is None else f"You are carrying: a {name}."


def open_place(name: str, contents: Iterable[str]) -> str:
    """What is in a place that was opened."""
    return f"The {name} is open. In it, you see {listing_with_articles(contents)}."


def closed_place(name: str) -> str:
    """A place whose contents cannot be seen."""
    return f"The {name} is closed."


def plain_place(name: str, contents: Iterable[str]) -> str:
    """What is on a place that has no door."""
    return f"On the {name}, you see {listing_with_articles(contents)}."


def vessel(name: str, contents: Iterable[str]) -> str:
    """A held thing that can have things in it; its own state is never told."""
    return f"This is a normal {name}. In it, you see {listing_with_articles(contents)}."


def thing(name: str, *, clean: bool, hot: bool, cool: bool, sliced: bool, lit: bool = False) -> str:
    """A held thing that is no vessel. The grammar says "cold" for a cool thing that is neither clean nor sliced."""
    temperature = "hot" if hot else "cool" if cool else ""
    if not (clean or temperature):
        if lit:
            return f"This {name} is on."
        return f"This is a sliced {name}." if sliced else f"There's nothing special about {name}."
    if temperature == "cool" and not (clean or sliced):
        temperature = "cold"
    state = " and ".join(word for word in (temperature, "clean" if clean else "") if word)
    return f"This is a {state} {'sliced ' if sliced else ''}{name}."
