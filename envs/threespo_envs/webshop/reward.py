"""WebShop's reward (arXiv:2207.01206): how well what was bought fits what was wanted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from threespo_envs.webshop.matching import normalised_colour, noun_overlap, similar
from threespo_envs.webshop.products import Goal, Product


@dataclass(frozen=True, slots=True)
class Score:
    """The reward and its parts, all between 0 and 1.

    Attributes:
        total: the reward.
        type: the factor for the kind of product: 1, 0.5, 0.1 or 0.
        attributes: the share of the wanted attributes that the product has, 1 if none is wanted.
        options: the share of the wanted option values that were chosen, 1 if none is wanted.
        price: 1 if the product costs no more than the limit, else 0.
    """

    total: float
    type: float
    attributes: float
    options: float
    price: float


def score(goal: Goal, bought: Product, chosen: Mapping[str, str]) -> Score:
    """The reward for buying a product with the ``chosen`` option values, by option name.

    ``r = r_type * (matched attributes + matched options + [price <= limit]) / (|attributes| + |options| + 1)``

    Buying the goal's product with all its options is worth exactly 1 if it has its attributes, as all products of WebShop with an instruction do.
    """
    attributes = sum(has_attribute(bought, wanted) for wanted in goal.attributes)
    options = _matched_options((wanted for _, wanted in goal.options), chosen.values())
    price = int(bought.price <= goal.price_limit)
    factor = type_factor(goal.product, bought)
    return Score(
        # r_type * (matched attributes + matched options + [price <= limit]) / (|attributes| + |options| + 1)
        total=factor * ((attributes + options + price) / (len(goal.attributes) + len(goal.options) + 1)),
        type=factor,
        attributes=attributes / len(goal.attributes) if goal.attributes else 1.0,
        options=options / len(goal.options) if goal.options else 1.0,
        price=float(price),
    )


def type_factor(wanted: Product, bought: Product) -> float:
    """r_type: 1 for a product of the same kind, 0.5 for another kind, 0.1 or 0 for a title that has little or nothing to do with the wanted one.

    Kinds are the same if both have the same query, share two elements of their category paths, or if more than 0.2 of the wanted title's nouns are in the
    bought one's. The rules about titles with an overlap below 0.1 come last and hold for the same query, too: a product that one finds by the goal's query is
    worth nothing if the titles share no noun. The wanted product itself always gets 1, because its overlap is 1, or 0.2 without nouns, and its query the same.
    """
    overlap = noun_overlap(wanted.title, bought.title)
    if overlap == 0:
        return 0.0
    if overlap < 0.1:
        return 0.1
    same_kind = wanted.query == bought.query or len(set(wanted.path) & set(bought.path)) >= 2 or overlap > 0.2
    return 1.0 if same_kind else 0.5


def has_attribute(product: Product, wanted: str) -> bool:
    """Whether one of a product's attributes is nearly the wanted one, or else its title, features or description contain it literally, in lower case."""
    wanted = wanted.lower()
    texts = (product.title, " ".join(product.features), product.description)
    return any(similar(attribute, wanted) for attribute in product.attributes) or any(wanted in text.lower() for text in texts)


def _matched_options(wanted: Iterable[str], chosen: Iterable[str]) -> int:
    """How many of the wanted values are nearly one of the chosen ones, whatever the options' names; colours are compared by their basic name."""
    have = [normalised_colour(value) for value in chosen]
    return sum(any(similar(value, normalised_colour(want)) for value in have) for want in wanted)
