"""A shop, and a customer's visit to it.

Where a customer is, is a small immutable value; what a command leads to is a function of it. So a snapshot is the value itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from threespo_envs.webshop import pages
from threespo_envs.webshop.pages import PER_PAGE, Page, label_of
from threespo_envs.webshop.products import Goal, Product
from threespo_envs.webshop.reading import index_text
from threespo_envs.webshop.reward import Score, score
from threespo_envs.webshop.search import SearchIndex

VERSION = "shop-1"
"""Changes with every change of what a command does or of what a page says."""

_COMMAND = re.compile(r"(search|click)\[(.*)\]", re.DOTALL)
_MOST_REMEMBERED = 4096


class Place(NamedTuple):
    """Where a customer is, and all that was done and can matter still.

    Attributes:
        page: ``search``, ``results``, ``item``, ``bought`` or one of :data:`~threespo_envs.webshop.pages.SUB_PAGES`.
        query: what was searched for; empty on the search page.
        number: which page of the results is open or was left to look at a product, from 1; 0 on the search page.
        item: the position of the product in the catalogue; -1 where none is looked at.
        chosen: option names with the value chosen, in the order of the product's options.
    """

    page: str = "search"
    query: str = ""
    number: int = 0
    item: int = -1
    chosen: tuple[tuple[str, str], ...] = ()


START = Place()


def read_command(command: str) -> tuple[str, str]:
    """``("search", words)`` or ``("click", label)``, in lower case and with single blanks; two empty strings for anything else."""
    match = _COMMAND.fullmatch(label_of(command))
    return (match[1], match[2].strip()) if match else ("", "")


class Shop:
    """Everything that all visits share.

    Args:
        products: what is sold. goals: what customers want.
        show_attributes: item pages have the button ``Attributes``.
    """

    def __init__(self, products: Sequence[Product], goals: Sequence[Goal], show_attributes: bool = False) -> None:
        self.products = tuple(sorted(products, key=lambda product: product.asin))  # the order of equally good results, as in WebShop's index
        self.goals, self.show_attributes = tuple(goals), show_attributes
        self._index = SearchIndex([index_text(product) for product in self.products])
        self._position = {label_of(product.asin): position for position, product in enumerate(self.products)}
        self._found: dict[str, tuple[int, ...]] = {}

    def found(self, query: str) -> tuple[int, ...]:
        """The positions of the products that a search finds, the best first."""
        found = self._found.get(query)
        if found is None:
            if len(self._found) >= _MOST_REMEMBERED:
                self._found.clear()
            found = self._found[query] = tuple(self._index.search(query))
        return found

    def listed(self, place: Place) -> tuple[int, ...]:
        """The products on the page of results that is open, or that one came from."""
        first = (place.number - 1) * PER_PAGE
        return self.found(place.query)[first : first + PER_PAGE] if place.number else ()

    def page(self, place: Place) -> Page:
        """The page that a customer sees."""
        if place.page == "search":
            return pages.search_page()
        if place.page == "results":
            return pages.results_page([self.products[position] for position in self.listed(place)], place.number, len(self.found(place.query)))
        product = self.products[place.item]
        if place.page == "item":
            return pages.item_page(product, self.show_attributes)
        return pages.bought_page(product) if place.page == "bought" else pages.sub_page(product, place.page)

    def after(self, place: Place, command: str) -> Place:
        """Where a command leads; ``place`` itself if it is not possible there."""
        verb, words = read_command(command)
        if verb == "search" and words and place.page == "search":
            return Place("results", words, 1)
        if verb == "click" and words in self.page(place).labels:
            return self._click(place, words)
        return place

    def _click(self, place: Place, label: str) -> Place:
        if place.page == "results" and label in self._position:
            return place._replace(page="item", item=self._position[label])
        if place.page == "item" and (name := self._option_of(place, label)):
            return place._replace(chosen=self._choose(place, name, label))
        if label == label_of(pages.BACK_TO_SEARCH):
            return START
        if label == label_of(pages.BUY):
            return place._replace(page="bought")
        if label == label_of(pages.NEXT):
            return place._replace(number=place.number + 1)
        if label == label_of(pages.PREVIOUS):
            return self._previous(place)
        return place._replace(page=label)

    def _option_of(self, place: Place, label: str) -> str:
        """The option that a label is a value of; empty for none, the last if there are several, as in WebShop."""
        names = [name for name, values in self.products[place.item].options if label in map(label_of, values)]
        return names[-1] if names else ""

    def _choose(self, place: Place, name: str, label: str) -> tuple[tuple[str, str], ...]:
        """The choices with one more, which replaces a former one of the same option."""
        chosen = dict(place.chosen)
        options = self.products[place.item].options
        chosen[name] = next(value for value in dict(options)[name] if label_of(value) == label)
        return tuple((known, chosen[known]) for known, _ in options if known in chosen)

    def _previous(self, place: Place) -> Place:
        """One page back. Going back to the results forgets what was chosen, as in WebShop."""
        if place.page == "results":
            return place._replace(number=place.number - 1)
        if place.page == "item":
            return Place("results", place.query, place.number)
        return place._replace(page="item")


class Visit:
    """One customer's visit.

    Args:
        shop: shared. goal: what the customer wants.
    """

    def __init__(self, shop: Shop, goal: Goal) -> None:
        self.shop, self.goal = shop, goal
        self._worth: dict[int, tuple[float, dict[str, str]]] = {}
        self.go(START)

    def go(self, place: Place) -> None:
        """Be at ``place``."""
        self.place = place
        self.page = self.shop.page(place)

    def do(self, command: str) -> None:
        """Carry out a command; one that is not possible changes nothing."""
        place = self.shop.after(self.place, command)
        if place != self.place:
            self.go(place)

    @property
    def text(self) -> str:
        """What is seen, the instruction included."""
        return self.page.text(self.goal.instruction)

    @property
    def admissible(self) -> tuple[str, ...]:
        """The clicks that are possible. Where there is a search bar there are none, and any words can be searched for."""
        return tuple(f"click[{label}]" for label in self.page.labels)

    @property
    def product(self) -> Product | None:
        """The product that is looked at."""
        return self.shop.products[self.place.item] if self.place.item >= 0 else None

    def score(self) -> Score | None:
        """What buying the product looked at with the present choices is worth, or was; None where there is none."""
        product = self.product
        return None if product is None else score(self.goal, product, dict(self.place.chosen))

    def best_choice(self, position: int) -> tuple[float, dict[str, str]]:
        """What a product is worth if the wanted option values that it has are chosen, and these choices."""
        if position not in self._worth:
            product = self.shop.products[position]
            wanted = {label_of(value) for _, value in self.goal.options}
            chosen = {name: value for name, values in product.options for value in values if label_of(value) in wanted}
            self._worth[position] = (score(self.goal, product, chosen).total, chosen)
        return self._worth[position]

    # ---- keys

    def state_key(self) -> str:
        """The true state: the page, the results it belongs to, the product and the choices, however one got there."""
        place = self.place
        if place.page == "search":
            return "search"
        results = blake2b(repr(self.shop.found(place.query)).encode(), digest_size=8).hexdigest()
        product = self.product
        item = f" {product.asin} {place.chosen!r}" if product else ""
        return f"{place.page} {results} {place.number}{item}"

    def goal_key(self) -> str:
        """The state as far as the goal is concerned: the kind of page, what can be had here, what buying now is worth, and which wanted
        options are chosen. It names no product and no query, so that it is the same in many tasks."""
        place = self.place
        if place.page == "search":
            return "search"
        if place.page == "results":
            best = max((self.best_choice(position)[0] for position in self.shop.listed(place)), default=0.0)
            return f"results best {best:.2f}"
        wanted = dict(place.chosen)
        chosen = ",".join(name for name, value in self.goal.options if wanted.get(name) == value)
        now = self.score()
        return f"{place.page} best {self.best_choice(place.item)[0]:.2f} now {now.total if now else 0.0:.2f} chosen {chosen or 'none'}"
