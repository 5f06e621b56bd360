"""What the shop's pages say and what can be clicked on them, as WebShop's text mode gives them: texts in reading order, with a mark between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from threespo_envs.webshop.products import Product

SEPARATOR = " [SEP] "
INSTRUCTION = "Instruction:"

SEARCH, BACK_TO_SEARCH, NEXT, PREVIOUS, BUY = "Search", "Back to Search", "Next >", "< Prev", "Buy Now"
DESCRIPTION, FEATURES, REVIEWS, ATTRIBUTES = "Description", "Features", "Reviews", "Attributes"
SUB_PAGES = tuple(label.lower() for label in (DESCRIPTION, FEATURES, REVIEWS, ATTRIBUTES))
"""The pages that belong to a product, by the command that leads there."""

PER_PAGE = 10
"""Products on a page of results."""

NO_RATING = "Rating: N.A."
"""WebShop's loader drops the ratings, and the reviews too."""

THANKS = "Thank you for your purchase."


@dataclass(frozen=True, slots=True)
class Page:
    """One page.

    Attributes:
        texts: what is to be read, in page order, without the instruction.
        labels: what can be clicked, in page order, in lower case and with single blanks; no label comes twice.
        heading: the name of the shop comes first: only on the page where one can search.
    """

    texts: tuple[str, ...]
    labels: tuple[str, ...] = ()
    heading: bool = False

    def body(self) -> str:
        """The page without the instruction."""
        return SEPARATOR.join(self.texts)

    def text(self, instruction: str) -> str:
        """The page as it is observed: the instruction is on every page."""
        head = ("WebShop",) if self.heading else ()
        return SEPARATOR.join((*head, INSTRUCTION, instruction, *self.texts))


def label_of(text: str) -> str:
    """What a command calls a button, link or option value."""
    return " ".join(text.lower().split())


def search_page() -> Page:
    """The page with the search bar. Its button is no label: what it does is the command ``search[...]``."""
    return Page((SEARCH,), heading=True)


def results_page(found: Sequence[Product], number: int, total: int) -> Page:
    """One page of results.

    Args:
        found: the products of this page.
        number: the number of the page, from 1.
        total: how many products were found on all pages.
    """
    buttons = [BACK_TO_SEARCH]
    texts = [BACK_TO_SEARCH, f"Page {number} (Total results: {total})"]
    if number > 1:
        buttons.append(PREVIOUS)
        texts.append(PREVIOUS)
    if number * PER_PAGE < total:
        buttons.append(NEXT)
        texts.append(NEXT)
    for product in found:
        texts += (product.asin, product.title.strip(), price_text(product))
    return Page(tuple(texts), _labels([*buttons, *(product.asin for product in found)]))


def item_page(product: Product, show_attributes: bool = False) -> Page:
    """A product's own page. It does not show which option values were chosen.

    Args:
        product: the product.
        show_attributes: it has the button ``Attributes``.
    """
    texts, buttons = [BACK_TO_SEARCH, PREVIOUS], [BACK_TO_SEARCH, PREVIOUS]
    for name, values in product.options:
        texts += (name, *values)
        buttons += values
    more = [DESCRIPTION, FEATURES, REVIEWS, *([ATTRIBUTES] if show_attributes else []), BUY]
    texts += (product.title.strip(), f"Price: {price_text(product)}", NO_RATING, *more)
    return Page(tuple(texts), _labels([*buttons, *more]))


def sub_page(product: Product, kind: str) -> Page:
    """The page of a product that ``kind``, one of :data:`SUB_PAGES`, leads to."""
    said: tuple[str, ...] = ()
    if kind == "description":
        said = (product.description,)
    elif kind == "features":
        said = product.features
    elif kind == "attributes":
        said = (*product.attributes, product.category, product.query, " › ".join(product.path))
    buttons = (BACK_TO_SEARCH, PREVIOUS)
    return Page((*buttons, *(text.strip() for text in said if text.strip())), _labels(buttons))


def bought_page(product: Product) -> Page:
    """What is seen after buying; nothing can be done there."""
    return Page((THANKS, product.asin, product.title.strip()))


def price_text(product: Product) -> str:
    """A product's price, or its range of prices."""
    return " to ".join(f"${price}" for price in product.prices)


def _labels(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(label_of, texts)))
