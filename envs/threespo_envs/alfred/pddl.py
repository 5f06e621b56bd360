"""Reads a game's PDDL problem. The domain is fixed, so this is a reader of its facts and six goals and not of PDDL at large."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from threespo_bench.errors import DataError
from threespo_envs.alfred.game import Game, Goal, Receptacle, Thing

_FACT = re.compile(r"\(\s*(\w+)\s+(\w+)(?:\s+(\w+))?\s*\)")
_DECLARATION = re.compile(r"^\s*(\w+_bar_\w+)[ \t]+-[ \t]+(object|receptacle|location)[ \t\r]*$", re.MULTILINE)
_SPACE = re.compile(r"\s+")

# Facts that the rules use: name -> number of arguments. A problem may have others; they have no effect in this domain.
_OBJECT_FLAGS = ("pickupable", "cleanable", "heatable", "coolable", "sliceable", "toggleable", "isReceptacleObject")
_RECEPTACLE_FLAGS = ("openable", "opened")
_STATES = {"isClean": "clean", "isHot": "hot", "isCool": "cool", "isSliced": "sliced", "isOn": "on", "isToggled": "toggled"}
_BINARY = (
    "atLocation",
    "objectType",
    "receptacleType",
    "canContain",
    "inReceptacle",
    "receptacleAtLocation",
    "objectAtLocation",
    "inReceptacleObject",
)
_ARITY = {**dict.fromkeys((*_OBJECT_FLAGS, *_RECEPTACLE_FLAGS, *_STATES), 1), **dict.fromkeys(_BINARY, 2)}
# Facts of a state in which something is held; the domain's games start with an empty hand.
_HELD = ("holds", "holdsAny", "holdsAnyReceptacleObject")

_PLACE_GOAL = (
    "(exists (?r - receptacle) (exists (?o - object) (and "
    "{property}(objectType ?o (?P<object>\\w+)Type) (receptacleType ?r (?P<place>\\w+)Type) {state}(inReceptacle ?o ?r))))"
)
_GOALS = {
    "pick_and_place_simple": (
        "(exists (?r - receptacle) (exists (?o - object) (and (inReceptacle ?o ?r) "
        "(objectType ?o (?P<object>\\w+)Type) (receptacleType ?r (?P<place>\\w+)Type))))"
    ),
    "pick_clean_then_place_in_recep": _PLACE_GOAL.format(property="(cleanable ?o) ", state="(isClean ?o) "),
    "pick_heat_then_place_in_recep": _PLACE_GOAL.format(property="(heatable ?o) ", state="(isHot ?o) "),
    "pick_cool_then_place_in_recep": _PLACE_GOAL.format(property="(coolable ?o) ", state="(isCool ?o) "),
    "pick_two_obj_and_place": (
        "(exists (?r - receptacle) (exists (?o1 - object) (and "
        "(objectType ?o1 (?P<object>\\w+)Type) (receptacleType ?r (?P<place>\\w+)Type) (inReceptacle ?o1 ?r) "
        "(exists (?o2 - object) (and (not (= ?o1 ?o2)) "
        "(objectType ?o2 (?P=object)Type) (receptacleType ?r (?P=place)Type) (inReceptacle ?o2 ?r))))))"
    ),
    "look_at_obj_in_light": (
        "(exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and "
        "(objectType ?ot (?P<place>\\w+)Type) (toggleable ?ot) (isToggled ?ot) "
        "(receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r))) "
        "(exists (?o - object ?a - agent) (and (objectType ?o (?P<object>\\w+)Type) (holds ?a ?o)))"
    ),
}


def _goal_pattern(shape: str) -> re.Pattern[str]:
    """A goal as a pattern: what is not a named group is literal, and blanks around brackets do not count."""
    parts = re.split(r"(\(\?P<\w+>\\w\+\)|\(\?P=\w+\))", _tighten(f"(and {shape})"))
    return re.compile("".join(part if part.startswith("(?P") else re.escape(part) for part in parts))


def _tighten(text: str) -> str:
    return _SPACE.sub(" ", text).replace(" )", ")").replace("( ", "(").replace(") (", ")(").strip()


_GOAL_PATTERNS = {task_type: _goal_pattern(shape) for task_type, shape in _GOALS.items()}


class _Problem:
    """The parts of one problem, with failures that name the game."""

    def __init__(self, text: str, game_id: str) -> None:
        self.game_id = game_id
        if ";" in text:
            text = re.sub(r";[^\n]*", "", text)
        if not re.search(r"\(\s*:domain\s+alfred\s*\)", text):
            raise self.wrong("is not a problem of the domain 'alfred'")
        head, init, rest = text.partition("(:init")
        facts, goal, aim = rest.partition("(:goal")
        if not init or not goal:
            raise self.wrong("has no " + ("(:init ...)" if not init else "(:goal ...)") + " part")
        if text.count("(") != text.count(")"):
            raise self.wrong("has brackets that do not match; it may be cut off")
        self.goal = aim
        declared = self._declared(head)
        self.facts = self._facts(facts)
        self.ids = self._ordered(declared)

    def wrong(self, what: str) -> DataError:
        return DataError(f"game {self.game_id}: its PDDL problem {what}", "fetch the game files again")

    def _declared(self, head: str) -> dict[str, list[str]]:
        """Ids of the objects, receptacles and locations that have a position; objects without one name types and play no part."""
        groups: dict[str, list[str]] = {"object": [], "receptacle": [], "location": []}
        for name, group in _DECLARATION.findall(head):
            groups[group].append(name)
        for group, names in groups.items():
            if not names:
                raise self.wrong(f"declares no {group}")
        return groups

    def _ordered(self, declared: dict[str, list[str]]) -> dict[str, dict[str, int]]:
        """The index of each id. TextWorld orders them by the id in lower case, and knows only those that some fact names."""
        named = {name for pairs in self.facts.values() for pair in pairs for name in pair}
        ids: dict[str, dict[str, int]] = {}
        for group, names in declared.items():
            known = sorted(named.intersection(names), key=lambda name: (name.lower(), name))
            if len({name.lower() for name in known}) != len(known):
                raise self.wrong(f"declares the same {group} twice")
            ids[group] = {name: index for index, name in enumerate(known)}
        return ids

    def _facts(self, text: str) -> dict[str, list[tuple[str, str]]]:
        facts: dict[str, list[tuple[str, str]]] = defaultdict(list)
        parts = _FACT.split(text)
        gaps, names, firsts, seconds = (parts[start::4] for start in range(4))
        for name, first, second in zip(names, firsts, seconds, strict=True):
            if name in _HELD:
                raise self.wrong(f"starts with something held ({name}), which no game of this domain does")
            arity = _ARITY.get(name)
            if arity is not None and arity != (2 if second else 1):
                raise self.wrong(f"has a fact {name} with a wrong number of arguments")
            facts[name].append((first, second or ""))
        left = "".join(gaps).strip()
        if left != ")" and not self._only_functions(left):
            raise self.wrong(f"has a part in (:init ...) that is no fact: {left[:40]!r}")
        return facts

    @staticmethod
    def _only_functions(text: str) -> bool:
        """Distances and costs, which some versions of the problems set and the game never uses; their inner part was taken as a fact."""
        return not re.sub(r"\(\s*=\s*(?:\(\s*total-cost\s*\))?\s*[\d.]+\s*\)", "", text).strip(" \t\r\n)")

    def index(self, group: str, name: str, fact: str) -> int:
        """The index of an id that a fact names."""
        try:
            return self.ids[group][name]
        except KeyError:
            raise self.wrong(f"names an undeclared {group} {name!r} in a fact {fact}") from None

    def marked(self, fact: str, group: str) -> frozenset[int]:
        """Indices of all for which a fact of one argument is true."""
        return frozenset(self.index(group, name, fact) for name, _ in self.facts[fact])

    def pairs(self, fact: str, first: str, second: str) -> tuple[tuple[int, int], ...]:
        """All pairs of a fact of two arguments, sorted."""
        return tuple(sorted({(self.index(first, a, fact), self.index(second, b, fact)) for a, b in self.facts[fact]}))

    def kinds(self, fact: str, group: str) -> dict[int, str]:
        """The type of each id that has one, without the suffix "Type"."""
        kinds: dict[int, str] = {}
        for name, kind in self.facts[fact]:
            if kinds.setdefault(self.index(group, name, fact), _kind(kind)) != _kind(kind):
                raise self.wrong(f"gives {name} two types")
        return kinds


def parse_problem(text: str, *, game_id: str, sentence: str, walkthrough: Iterable[str] = ()) -> Game:
    """Read a game.

    Args:
        text: the PDDL problem.
        game_id: the game's id, for messages and for telling snapshots of different games apart.
        sentence: the goal sentence, with or without its final period.
        walkthrough: commands that win the game, if known.

    Raises:
        DataError: the text is not a problem of this domain; the message names the game and what is wrong.
    """
    problem = _Problem(text, game_id)
    names = display_names((*problem.ids["receptacle"], *problem.ids["object"]))
    return Game(
        game_id=game_id,
        sentence=sentence.strip().removesuffix("."),
        goal=_goal(problem),
        receptacles=_receptacles(problem, names),
        things=_things(problem, names),
        can_contain=frozenset((_kind(place), _kind(thing)) for place, thing in problem.facts["canContain"]),
        start_location=_start(problem),
        opened=problem.marked("opened", "receptacle"),
        inside=problem.pairs("inReceptacle", "object", "receptacle"),
        at_location=problem.pairs("objectAtLocation", "object", "location"),
        within=problem.pairs("inReceptacleObject", "object", "object"),
        states=tuple((thing, state) for fact, state in _STATES.items() for thing in sorted(problem.marked(fact, "object"))),
        walkthrough=tuple(walkthrough),
    )


def _kind(type_name: str) -> str:
    return type_name.removesuffix("Type")


def display_names(ids: Iterable[str]) -> dict[str, str]:
    """The names that players read: type and number. Numbers are given from the last id to the first.

    ``Sink|..|SinkBasin`` is "sinkbasin": a basin's id begins with what it is part of.
    """
    counts: dict[str, int] = defaultdict(int)
    names: dict[str, str] = {}
    for pddl_id in sorted(ids, key=str.lower, reverse=True):
        lower = pddl_id.lower()
        kind = lower.partition("_bar_")[0] + ("basin" if "basin" in lower else "")
        counts[kind] += 1
        names[pddl_id] = f"{kind} {counts[kind]}"
    return names


def _receptacles(problem: _Problem, names: dict[str, str]) -> tuple[Receptacle, ...]:
    kinds = problem.kinds("receptacleType", "receptacle")
    pairs = problem.pairs("receptacleAtLocation", "receptacle", "location")
    locations = dict(pairs)
    if len(locations) != len(pairs):
        raise problem.wrong("gives a receptacle two locations")
    openable = problem.marked("openable", "receptacle")
    receptacles = []
    for pddl_id, index in problem.ids["receptacle"].items():
        if index not in kinds or index not in locations:
            raise problem.wrong(f"gives no {'type' if index not in kinds else 'location'} for {pddl_id}")
        receptacles.append(Receptacle(pddl_id, names[pddl_id], kinds[index], locations[index], index in openable))
    return tuple(receptacles)


def _things(problem: _Problem, names: dict[str, str]) -> tuple[Thing, ...]:
    kinds = problem.kinds("objectType", "object")
    flags = {fact: problem.marked(fact, "object") for fact in _OBJECT_FLAGS}
    return tuple(
        Thing(
            pddl_id=pddl_id,
            name=names[pddl_id],
            kind=kinds.get(index, ""),  # a thing without a type fits nowhere and meets no goal
            pickupable=index in flags["pickupable"],
            cleanable=index in flags["cleanable"],
            heatable=index in flags["heatable"],
            coolable=index in flags["coolable"],
            sliceable=index in flags["sliceable"],
            toggleable=index in flags["toggleable"],
            holds_things=index in flags["isReceptacleObject"],
        )
        for pddl_id, index in problem.ids["object"].items()
    )


def _start(problem: _Problem) -> int:
    facts = problem.facts["atLocation"]
    if len(facts) != 1:
        raise problem.wrong(f"places the agent {len(facts)} times")
    return problem.index("location", facts[0][1], "atLocation")


def _goal(problem: _Problem) -> Goal:
    text = _tighten(problem.goal)
    for task_type, pattern in _GOAL_PATTERNS.items():
        found = pattern.match(text)
        if found and not text[found.end() :].strip(" )"):
            return Goal(task_type, found["object"], found["place"])
    raise problem.wrong(f"has a goal that is none of the domain's six: {text[:60]!r}")
