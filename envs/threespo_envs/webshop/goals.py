"""Makes the synthetic goals of WebShop (arXiv:2207.01206): a product's instruction, one choice of its options, and mostly a price limit."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable

import numpy as np

from threespo_envs.webshop.products import Goal, Product

_LIMITS = tuple(10.0 * tens for tens in range(1, 100))
"""The price limits that there are, in dollars: 10 to 990."""
_NEAREST = 4


def make_goals(products: Iterable[Product], seed: int) -> tuple[Goal, ...]:
    """The goals of all products that have an instruction, in an order that the seed decides.

    There is one goal for each combination of a product's option values. All goals of a product have the same price limit, which depends on the seed and the
    product's asin alone. The same products and seed give the same goals in every process.
    """
    goals = [goal for product in products if product.instruction for goal in _goals_of(product, price_limit(product, seed))]
    order = np.argsort(_generator(seed, "order").random(len(goals)), kind="stable")
    return tuple(goals[position] for position in order)


def price_limit(product: Product, seed: int) -> float:
    """The larger one of two different limits, drawn from the (at most) four nearest ones above the price; infinite if there are fewer than two above it."""
    above = [limit for limit in _LIMITS if limit > product.price][:_NEAREST]
    if len(above) < 2:
        return math.inf
    pairs = list(itertools.combinations(above, 2))
    return max(pairs[int(_generator(seed, f"price of {product.asin}").random() * len(pairs))])


def _goals_of(product: Product, limit: float) -> Iterable[Goal]:
    options = sorted(product.options)
    price = "" if math.isinf(limit) else f", and price lower than {limit:.2f} dollars"
    for values in itertools.product(*(values for _, values in options)):
        chosen = tuple(zip((name for name, _ in options), values, strict=True))
        wishes = ", and ".join(f"{name}: {value}" for name, value in chosen)
        sentence = f"{product.instruction} with {wishes}" if wishes else product.instruction
        yield Goal(product, sentence + price, product.wanted, chosen, limit)


def _generator(seed: int, purpose: str) -> np.random.Generator:
    digest = hashlib.blake2b(f"webshop goals/{seed}/{purpose}".encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))
