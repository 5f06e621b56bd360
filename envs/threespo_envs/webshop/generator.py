"""Generated catalogues: products that differ in what an instruction asks for, of a closed vocabulary.

There are some twenty products of each kind in a catalogue of a thousand. Any two of them share some properties, and differ in others, in their options and
in their price, so that a customer must compare. Most properties stand in the title, one only in the features, one only in the description.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from threespo_bench.errors import UsageError
from threespo_envs.webshop import words
from threespo_envs.webshop.products import Product
from threespo_envs.webshop.words import BEFORE, FOR, WITH, Kind

VERSION = "catalogue-1"
"""Changes with every change of what a seed generates."""

_WITH_OPTIONS = 0.85
_WITH_INSTRUCTION = 0.8
_WITH_PRICE_RANGE = 0.1
_ATTRIBUTES = (4, 6)
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_MOST_VALUES = {1: 6, 2: 4, 3: 3}
"""The most values of an option, by the number of options, so that no product has more combinations than 27."""


def generated_products(size: int, seed: int) -> tuple[Product, ...]:
    """A catalogue, sorted by asin. Equal arguments give equal catalogues in every process; another size gives another catalogue.

    Args:
        size: number of products. seed: decides everything about them.

    Raises:
        UsageError: ``size`` is less than 1.
    """
    if size < 1:
        raise UsageError(f"a catalogue of {size} products cannot be made", "give at least 1")
    digest = hashlib.blake2b(f"{VERSION}/{size}/{seed}".encode(), digest_size=16).digest()
    rng = np.random.Generator(np.random.PCG64(int.from_bytes(digest, "big")))
    kinds = words.kinds()
    asins: set[str] = set()
    while len(asins) < size:
        asins.add("B0" + "".join(_LETTERS[i] for i in rng.integers(len(_LETTERS), size=8)))
    # The kinds take turns, in an order of their own in each round, so that all are about equally frequent.
    rounds = [rng.permutation(len(kinds)) for _ in range(-(-size // len(kinds)))]
    order = np.concatenate(rounds)[:size]
    return tuple(_product(asin, kinds[place], rng) for asin, place in zip(sorted(asins), order, strict=True))


def _product(asin: str, kind: Kind, rng: np.random.Generator) -> Product:
    brand = _one(rng, words.BRANDS)
    count = int(rng.integers(_ATTRIBUTES[0], _ATTRIBUTES[1] + 1))
    attributes = _some(rng, kind.attributes, count)
    titled, featured, described = attributes[:-2], attributes[-2], attributes[-1]  # at least two in the title
    wanted = _wanted(rng, attributes) if rng.random() < _WITH_INSTRUCTION else ()
    return Product(
        asin=asin,
        title=_title(brand, kind, titled),
        query=kind.query,
        category=kind.category,
        path=kind.path,
        prices=_prices(rng, kind),
        description=_one(rng, words.DESCRIPTIONS).format(name=kind.name, brand=brand.title(), attribute=described),
        features=(featured, _one(rng, words.FEATURES).format(brand=brand.title())),
        attributes=tuple(sorted(attributes)),
        options=_options(rng, kind),
        instruction=_instruction(kind, wanted) if wanted else "",
        wanted=wanted,
    )


def _title(brand: str, kind: Kind, attributes: Sequence[str]) -> str:
    """The brand, then the name with its properties, in capitals as titles are."""
    return " ".join(word.capitalize() for word in f"{brand} {_phrase(kind, kind.name, attributes, ' ')}".split())


def _wanted(rng: np.random.Generator, attributes: Sequence[str]) -> tuple[str, ...]:
    """One to three of a product's properties, each as likely as the others."""
    return tuple(_some(rng, attributes, int(rng.integers(1, 4))))


def _instruction(kind: Kind, wanted: Sequence[str]) -> str:
    return f"{words.OPENING} {_phrase(kind, kind.query, wanted, words.JOINED)}"


def _phrase(kind: Kind, name: str, attributes: Sequence[str], joined: str) -> str:
    """A name with properties where they belong: before it, after "with" and after "for"."""
    where = words.place_of(kind.category)
    groups = {place: joined.join(attribute for attribute in attributes if where[attribute] == place) for place in (BEFORE, WITH, FOR)}
    return " ".join(filter(None, (groups[BEFORE], name, *(f"{place} {groups[place]}" for place in (WITH, FOR) if groups[place]))))


def _options(rng: np.random.Generator, kind: Kind) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if rng.random() >= _WITH_OPTIONS:
        return ()
    count = 1 + int(rng.random() < 0.6) + int(rng.random() < 0.25)
    chosen = sorted(_some(rng, kind.options, count))
    most = _MOST_VALUES[len(chosen)]
    found = []
    for name in chosen:
        pool = words.split_list(words.VALUES[name])
        values = _some(rng, pool, min(len(pool), int(rng.integers(2, most + 1))))
        found.append((name, tuple(value for value in pool if value in values)))  # sizes in their order
    return tuple(found)


def _prices(rng: np.random.Generator, kind: Kind) -> tuple[float, ...]:
    least, most = kind.prices
    price = int(rng.integers(least, most + 1))
    greater = min(price + 5 * int(rng.integers(1, 4)), words.PRICES[-1])
    return (float(price), float(greater)) if rng.random() < _WITH_PRICE_RANGE and greater > price else (float(price),)


def _one(rng: np.random.Generator, pool: Sequence[str]) -> str:
    return pool[int(rng.integers(len(pool)))]


def _some(rng: np.random.Generator, pool: Sequence[str], count: int) -> list[str]:
    """``count`` different ones of ``pool``, in random order."""
    return [pool[i] for i in rng.permutation(len(pool))[:count]]
