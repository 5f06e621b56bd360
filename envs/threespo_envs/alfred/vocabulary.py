"""Every word of the domain: what a word-level model must know to read any compact prompt and write any command."""

from __future__ import annotations

from functools import cache

from threespo_envs.alfred import text
from threespo_envs.words import split_words

PLACES = split_words(
    "armchair bathtubbasin bed cabinet cart coffeemachine coffeetable countertop desk diningtable drawer dresser fridge garbagecan "
    "handtowelholder laundryhamper microwave ottoman safe shelf sidetable sinkbasin sofa stoveburner toaster toilet "
    "toiletpaperhanger towelholder tvstand"
)
"""The kinds of place of the ALFWorld games."""

THINGS = split_words(
    "alarmclock apple baseballbat basketball bathtub blinds book boots bowl box bread butterknife candle cd cellphone chair cloth "
    "creditcard cup curtains desklamp dishsponge egg floorlamp footstool fork glassbottle handtowel houseplant kettle keychain knife "
    "ladle laptop laundryhamperlid lettuce lightswitch mirror mug newspaper painting pan papertowelroll pen pencil peppershaker "
    "pillow plate plunger poster pot potato remotecontrol saltshaker scrubbrush showerdoor showerglass sink soapbar soapbottle spatula "
    "spoon spraybottle statue stoveknob teddybear television tennisracket tissuebox toiletpaper tomato towel vase watch wateringcan "
    "window winebottle"
)
"""The kinds of thing of the ALFWorld games, those included that cannot be taken."""

LARGEST_NUMBER = 32
"""The largest number in a name: 27 in the ALFWorld games."""

_COMMANDS = "go to open close take from move examine use heat clean cool with slice look inventory help"
_COMPACT = "can new old last failed say see unknown nothing found done here goal put two in hold at middle clean hot cool sliced lit"
_SENTENCES = "put a some clean hot cool heat two find look at examine the under with in on it and them"


@cache
def vocabulary() -> tuple[str, ...]:
    """All words, sorted: of every observation, command and compact prompt of the ALFWorld games and the households."""
    words = {*PLACES, *THINGS, *map(str, range(1, LARGEST_NUMBER + 1))}
    for sample in (*_OBSERVATIONS, text.HELP, text.WELCOME, _COMMANDS, _COMPACT, _SENTENCES):
        words.update(split_words(sample))
    return tuple(sorted(words))


_OBSERVATIONS = (
    text.NOTHING_HAPPENS,
    text.welcome(text.middle_of_room(("bed 1", "bed 2", "bed 3")), "look at book"),
    text.facing(("bed 1", "bed 2"), ()),
    text.carrying(None),
    text.carrying("book 1"),
    text.open_place("safe 1", ()),
    text.closed_place("safe 1"),
    text.plain_place("bed 1", ()),
    text.vessel("mug 1", ()),
    text.thing("egg 1", clean=True, hot=True, cool=False, sliced=True),
    text.thing("egg 1", clean=True, hot=False, cool=True, sliced=True),
    text.thing("egg 1", clean=False, hot=False, cool=True, sliced=False),
    text.thing("egg 1", clean=False, hot=False, cool=False, sliced=False),
    "You arrive at bed 1. You open the safe 1. You close the safe 1. You pick up the book 1 from the bed 1.",
    "You move the book 1 to the bed 1. You heat the egg 1 using the microwave 1. You cool the egg 1. You clean the egg 1.",
    "You sliced the egg 1 with the knife 1. You turn on the desklamp 1.",
)
"""One text of each form; the kinds and numbers in them do not matter."""
