"""What a customer can know from the instruction and the pages read: a memory of the episode, made from its texts and commands alone.

Nothing here looks into the shop. A page is read once into a small :class:`Reading`; a :class:`Memory` is the readings of an episode, folded one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from math import inf
from typing import NamedTuple

from threespo_bench.contracts.environment import Observation, PromptContext
from threespo_envs.webshop import pages
from threespo_envs.webshop.analysis import terms
from threespo_envs.webshop.pages import BACK_TO_SEARCH, BUY, INSTRUCTION, NEXT, NO_RATING, PREVIOUS, SEPARATOR, SUB_PAGES, label_of
from threespo_envs.webshop.shop import read_command
from threespo_envs.words import split_words

_COUNT = re.compile(r"^Page (\d+) \(Total results: (\d+)\)$")
_PRICE = re.compile(r"\$(\d+(?:\.\d+)?)")
_LIMIT = re.compile(r",? and price lower than (\d+(?:\.\d+)?) dollars$")
_OPTIONS = re.compile(r" with ([^:,]+: .+)$")
_NEXT_OPTION = re.compile(r", and (?=[^:,]+: )")
_OPENING = re.compile(r"^(?:find me|i am looking for|i'm looking for|i need|i want) ", re.IGNORECASE)


class Wish(NamedTuple):
    """What an instruction asks for.

    Attributes:
        words: the kind of product and its properties, as the sentence has them.
        options: names and values. price_limit: dollars; infinite for none.
    """

    words: str
    options: tuple[tuple[str, str], ...]
    price_limit: float


@lru_cache(maxsize=4096)
def read_wish(instruction: str) -> Wish:
    """Read an instruction of the form ``WORDS with NAME: VALUE, and NAME: VALUE, and price lower than 40.00 dollars``; all but the words may be missing."""
    text, price_limit = instruction.strip(), inf
    if match := _LIMIT.search(text):
        text, price_limit = text[: match.start()], float(match[1])
    options: list[tuple[str, str]] = []
    if match := _OPTIONS.search(text):
        # The last "with" before the first name: the words can have one of their own.
        start = text.rfind(" with ", 0, match.start(1) + match[1].index(": "))
        for part in _NEXT_OPTION.split(text[start + len(" with ") :]):
            name, _, value = part.partition(": ")
            options.append((name.strip(), value.strip()))
        text = text[:start]
    return Wish(_OPENING.sub("", text), tuple(options), price_limit)


class Listed(NamedTuple):
    """A product as a page of results shows it. ``asin`` is what a click calls it, ``price`` the least one in dollars."""

    asin: str
    title: str
    price: float


class Reading(NamedTuple):
    """What one page tells.

    Attributes:
        page: ``search``, ``results``, ``item``, ``sub`` or ``other``.
        instruction: the sentence on it.
        number, total: the number of the page of results, and of all results.
        has_next: there are more results.
        products: those listed.
        title, price: of the product shown.
        texts: on a product's page the names and values of its options, on its sub-pages what is said.
    """

    page: str
    instruction: str = ""
    number: int = 0
    total: int = 0
    has_next: bool = False
    products: tuple[Listed, ...] = ()
    title: str = ""
    price: float = 0.0
    texts: tuple[str, ...] = ()


@lru_cache(maxsize=4096)
def read(text: str) -> Reading:
    """Read one page. Texts of an unknown form are ``other``."""
    parts = text.split(SEPARATOR)
    if INSTRUCTION not in parts[:2] or len(parts) < parts.index(INSTRUCTION) + 3:
        return Reading("other", texts=tuple(parts))
    place = parts.index(INSTRUCTION)
    instruction, body = parts[place + 1], parts[place + 2 :]
    if body == [pages.SEARCH]:
        return Reading("search", instruction)
    if body[0] != BACK_TO_SEARCH or len(body) < 2:
        return Reading("other", instruction, texts=tuple(body))
    if match := _COUNT.match(body[1]):
        return _read_results(instruction, int(match[1]), int(match[2]), body[2:])
    if body[-1] == BUY and NO_RATING in body:
        place = len(body) - 1 - body[::-1].index(NO_RATING)
        return Reading("item", instruction, title=body[place - 2], price=_read_price(body[place - 1]), texts=tuple(body[2 : place - 2]))
    return Reading("sub", instruction, texts=tuple(body[2:]))


def _read_results(instruction: str, number: int, total: int, rest: list[str]) -> Reading:
    has_next = NEXT in rest[:2]
    cells = rest[(rest[:1] == [PREVIOUS]) + has_next :]
    products = tuple(Listed(label_of(asin), title, _read_price(price)) for asin, title, price in zip(cells[::3], cells[1::3], cells[2::3], strict=False))
    return Reading("results", instruction, number, total, has_next, products)


def _read_price(text: str) -> float:
    match = _PRICE.search(text)
    return float(match[1]) if match else 0.0


class Memory:
    """What was learnt so far in an episode.

    Attributes:
        wish: what the instruction asks for.
        page: the kind of the present page: that of its reading, but on a sub-page which one it is.
        now: the reading of the present page.
        queries: what was searched for, oldest first.
        item: what a click calls the product that is looked at; empty for none.
        opened: all products that were looked at, with their titles, in the order of first sight.
        said: what the sub-pages of a product said, by product and sub-page.
        clicked: the labels clicked on the page of the product that is looked at.
        options: names and values of the product that is looked at; known where the clicks that are possible are known.
    """

    __slots__ = ("_command", "clicked", "item", "now", "opened", "options", "page", "queries", "said", "wish")

    def __init__(self) -> None:
        self.wish = Wish("", (), inf)
        self.page = ""
        self.now = Reading("other")
        self.queries: list[str] = []
        self.item = ""
        self.opened: dict[str, str] = {}
        self.said: dict[tuple[str, str], tuple[str, ...]] = {}
        self.clicked: list[str] = []
        self.options: tuple[tuple[str, tuple[str, ...]], ...] = ()
        self._command = ""

    @classmethod
    def of_context(cls, context: PromptContext) -> Memory:
        """The memory that the history and the present observation of ``context`` leave."""
        memory = cls()
        for turn in context.history:
            memory.see(Observation(turn.observation))
            memory.do(turn.command)
        memory.see(context.observation)
        return memory

    def do(self, command: str) -> None:
        """Take note of a command that is going to be carried out."""
        self._command = command

    def see(self, observation: Observation) -> None:
        """Take in what the last command led to."""
        before, now = self.page, read(observation.text)
        verb, words = read_command(self._command)
        self.now, self.page, self._command = now, now.page, ""
        if now.instruction:
            self.wish = read_wish(now.instruction)
        if now.page == "results":
            if before == "search" and verb == "search":
                self.queries.append(words)
            self._leave()
        elif now.page == "item":
            self._see_item(before, words if verb == "click" else "", observation)
        elif now.page == "sub":
            self.page = words if words in SUB_PAGES else before
            self.said[self.item, self.page] = now.texts
        else:
            self._leave()

    def _leave(self) -> None:
        self.item, self.clicked, self.options = "", [], ()

    def _see_item(self, before: str, label: str, observation: Observation) -> None:
        if before == "results":
            self.item = label
            self.opened.setdefault(label, self.now.title)
        elif before == "item" and label in map(label_of, self.now.texts):
            self.clicked.append(label)
        if observation.admissible:
            self.options = _group(self.now.texts, frozenset(observation.admissible))

    @property
    def chosen(self) -> dict[str, str]:
        """The values chosen, by option, in the order of the page; as far as the options are known."""
        found: dict[str, str] = {}
        for name, values in self.options:
            labels = {label_of(value): value for value in values}
            later = [label for label in self.clicked if label in labels and self._option_of(label) == name]
            if later:
                found[name] = labels[later[-1]]
        return found

    def _option_of(self, label: str) -> str:
        return [name for name, values in self.options if label in map(label_of, values)][-1]

    def lacking(self, *texts: str) -> list[str]:
        """The wanted words that none of ``texts`` has, in the order of the wish."""
        return [word for word in words_of(self.wish.words) if not has_word(word, texts)]

    def texts_of_item(self) -> list[str]:
        """All that was said on the sub-pages of the product that is looked at."""
        return [text for (item, _), texts in self.said.items() if item == self.item for text in texts]


def has_word(word: str, texts: Iterable[str]) -> bool:
    """One of ``texts`` has the word, in whatever form."""
    stems = _stems(word)
    return any(stems <= _stems(text) for text in texts)


@lru_cache(maxsize=8192)
def words_of(text: str) -> tuple[str, ...]:
    """The words of a text that a search would look at, each once."""
    return tuple(word for word in dict.fromkeys(split_words(text)) if _stems(word))


@lru_cache(maxsize=8192)
def _stems(text: str) -> frozenset[str]:
    return frozenset(terms(text))


def _group(texts: tuple[str, ...], admissible: frozenset[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Names and values of the options: what can be clicked is a value, what cannot is a name."""
    groups: list[tuple[str, list[str]]] = []
    for text in texts:
        if groups and f"click[{label_of(text)}]" in admissible:
            groups[-1][1].append(text)
        else:
            groups.append((text, []))
    return tuple((name, tuple(values)) for name, values in groups)
