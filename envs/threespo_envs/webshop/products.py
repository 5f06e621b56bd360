"""What a shop sells and what a customer wants: the two records that everything here is about."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Product:
    """One product.

    Attributes:
        asin: its identifier, ten capital letters and digits.
        title: its name.
        query: what one types to find products of this kind, lower case; category: the shop's department, e.g. ``fashion``.
        path: the product's place in the category tree, the most general first.
        prices: dollars; one price, or the least and the greatest.
        description: a text, may be empty. features: the bullet points.
        attributes: properties that an instruction can ask for; the pages do not list them except under ``Attributes``.
        options: names and their values, lower case, in the order in which they are shown.
        instruction: the beginning of a synthetic instruction, empty if the product has none. wanted: the attributes that it asks for.
    """

    asin: str
    title: str
    query: str
    category: str
    path: tuple[str, ...]
    prices: tuple[float, ...]
    description: str = ""
    features: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    options: tuple[tuple[str, tuple[str, ...]], ...] = ()
    instruction: str = ""
    wanted: tuple[str, ...] = ()

    @property
    def price(self) -> float:
        """What buying it costs: the price, or the least one."""
        return self.prices[0]


@dataclass(frozen=True, slots=True)
class Goal:
    """What a customer wants.

    Attributes:
        product: the product that the goal was made from; buying it with all options is worth the full reward.
        instruction: the whole sentence, with options and price limit.
        attributes: wanted properties. options: a wanted value for each option name.
        price_limit: dollars; infinite where there is none.
    """

    product: Product
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    price_limit: float
