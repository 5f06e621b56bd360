"""The short commands of the ``compact`` prompts, and the shop's own that they stand for.

``search WORDS``, ``open N`` (the N-th product of the page), ``next``, ``previous``, ``back`` (to the search page), ``choose VALUE``,
``description``, ``features``, ``reviews``, ``attributes``, ``buy``.
"""

from __future__ import annotations

from threespo_bench.contracts.environment import Observation
from threespo_envs.webshop.memory import read
from threespo_envs.webshop.pages import BACK_TO_SEARCH, BUY, NEXT, PREVIOUS, SUB_PAGES, label_of
from threespo_envs.webshop.shop import read_command
from threespo_envs.words import split_words

BUTTONS = {
    "back": label_of(BACK_TO_SEARCH),
    "previous": label_of(PREVIOUS),
    "next": label_of(NEXT),
    "buy": label_of(BUY),
    **{kind: kind for kind in SUB_PAGES},
}
"""The short commands of one word, and the labels that they click."""

_SHORT = {label: short for short, label in BUTTONS.items()}


def expand(command: str, observation: Observation) -> str:
    """The shop's command that a short one stands for on the page shown; empty if it is none. What it stands for need not be possible there."""
    verb, _, rest = command.partition(" ")
    if command in BUTTONS:
        return f"click[{BUTTONS[command]}]"
    if verb == "search" and rest:
        return f"search[{rest}]"
    if verb == "open" and rest.isdecimal() and rest.isascii():
        products = read(observation.text).products
        place = int(rest[:4])
        return f"click[{products[place - 1].asin if 0 < place <= len(products) else rest}]"
    if verb == "choose" and rest:
        # The prompt shows a value as words, so it is compared by words.
        words = split_words(rest)
        return next((shown for shown in observation.admissible if split_words(read_command(shown)[1]) == words), f"click[{rest}]")
    return ""


def shorten(command: str, observation: Observation) -> str:
    """The short command for one of the shop's own; the command itself if there is none."""
    verb, words = read_command(command)
    if verb == "search":
        return " ".join(["search", *split_words(words)])
    numbers = {product.asin: number for number, product in enumerate(read(observation.text).products, start=1)}
    if words in numbers:
        return f"open {numbers[words]}"
    if words in _SHORT:
        return _SHORT[words]
    return " ".join(["choose", *split_words(words)]) if verb == "click" else command
