"""Generated catalogues: repeatable, of a closed vocabulary, and such that products must be compared."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import Counter
from hashlib import blake2b

import pytest

from threespo_bench.errors import UsageError
from threespo_envs.webshop import words
from threespo_envs.webshop.generator import generated_products
from threespo_envs.webshop.goals import make_goals
from threespo_envs.webshop.reward import score
from threespo_envs.words import split_words

_DIGEST = """
from hashlib import blake2b
from threespo_envs.webshop.generator import generated_products
print(blake2b(repr(generated_products(300, 5)).encode()).hexdigest())
"""


@pytest.fixture(scope="module")
def products():
    return generated_products(1000, 0)


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_equal_arguments_give_equal_catalogues_in_every_process(hash_seed):
    said = subprocess.run([sys.executable, "-c", _DIGEST], env=os.environ | {"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == blake2b(repr(generated_products(300, 5)).encode()).hexdigest()


def test_seed_and_size_matter():
    assert generated_products(50, 0) != generated_products(50, 1)
    assert len(generated_products(1, 0)) == 1


def test_asins(products):
    asins = [product.asin for product in products]
    assert asins == sorted(set(asins))
    assert all(len(asin) == 10 and asin.startswith("B0") and asin.isalnum() and asin == asin.upper() for asin in asins)


def test_nothing_is_made(products):
    with pytest.raises(UsageError, match="catalogue of 0 products"):
        generated_products(0, 0)


@pytest.mark.parametrize(("size", "seed"), [(1000, 0), (700, 1), (40, 2)])
def test_the_vocabulary_is_closed(size, seed):
    known = set(words.vocabulary())
    assert len(known) < 600
    found = generated_products(size, seed)
    for product in found:
        options = [text for name, values in product.options for text in (name, *values)]
        texts = (product.title, product.query, product.category, *product.path, product.description, product.instruction)
        assert {word for text in (*texts, *product.features, *product.attributes, *options) for word in split_words(text)} <= known
    assert {word for goal in make_goals(found, seed) for word in split_words(goal.instruction)} <= known


def test_departments_and_kinds_are_equally_frequent(products):
    kinds = Counter(product.query for product in products)
    assert len(kinds) == len(words.kinds()) == 40
    assert set(kinds.values()) == {25}
    assert set(Counter(product.category for product in products).values()) == {200}


def test_a_product_has_only_what_its_kind_can_have(products):
    by_query = {kind.query: kind for kind in words.kinds()}
    for product in products:
        kind = by_query[product.query]
        assert set(product.attributes) <= set(kind.attributes)
        assert {name for name, _ in product.options} <= set(kind.options)
        assert set(product.wanted) <= set(product.attributes)
        assert kind.prices[0] <= product.price <= kind.prices[1]
        assert bool(product.wanted) == bool(product.instruction)


def test_two_properties_of_each_product_are_not_in_its_title(products):
    for product in products:
        title = product.title.lower()
        hidden = [attribute for attribute in product.attributes if attribute not in title]
        assert len(hidden) == 2
        assert any(hidden[0] in text or hidden[1] in text for text in product.features)
        assert any(attribute in product.description for attribute in hidden)


def test_size_of_the_benchmark(products):
    goals = make_goals(products, 0)
    assert 3000 < len(goals) < 8000
    assert 700 < sum(bool(product.instruction) for product in products) < 900
    assert len(pickle.dumps(products)) < 1 << 20


def test_products_must_be_compared(products):
    """For most goals, the other products of the kind have some that are worth as much, and many more that are not: too dear, or without what is wanted."""
    goals = make_goals(products, 0)[:100]
    worth = []
    for goal in goals:
        chosen = dict(goal.options)
        worth.append([score(goal, other, chosen).total for other in products if other.query == goal.product.query])
    full = [sum(total == 1.0 for total in totals) for totals in worth]
    assert all(full)
    assert sum(count < len(totals) / 2 for count, totals in zip(full, worth, strict=True)) > 70
