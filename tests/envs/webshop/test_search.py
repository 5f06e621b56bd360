"""BM25: scores by hand, ties, and the order that Lucene gave for the original's products."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from threespo_envs.webshop.analysis import terms
from threespo_envs.webshop.products import Product
from threespo_envs.webshop.reading import index_text
from threespo_envs.webshop.search import SearchIndex, quantised_length

TEXTS = ["red shirt", "blue shirt with a red collar", "lamp", "blue lamp", "", "shirt red"]


def test_a_rare_word_counts_more_than_a_common_one() -> None:
    assert SearchIndex(TEXTS).search("red lamp") == [2, 3, 0, 5, 1]


def test_ties_are_broken_by_position() -> None:
    assert SearchIndex(["same words"] * 30).search("words") == list(range(30))
    assert SearchIndex(TEXTS).search("shirt") == [0, 5, 1]


def test_a_repeated_word_counts_twice() -> None:
    index = SearchIndex(["red", "blue", "blue"])
    assert index.search("red blue") == [0, 1, 2]
    assert index.search("red blue blue blue") == [1, 2, 0]


@pytest.mark.parametrize("query", ["", "the", "zebra", "!?"])
def test_nothing_is_found_for_words_that_no_text_has(query: str) -> None:
    assert SearchIndex(TEXTS).search(query) == []


def test_count_limits_the_hits() -> None:
    index = SearchIndex(["word"] * 80)
    assert len(index.search("word")) == 50
    assert index.search("word", 3) == [0, 1, 2]
    assert index.search("word", 0) == []


def test_an_index_of_nothing_finds_nothing() -> None:
    assert SearchIndex([]).search("red") == []
    assert SearchIndex(["", "the"]).search("red") == []


def test_lengths_are_rounded_down_to_what_lucene_stores() -> None:
    # exact below 40, then steps of 2 above 24 + 16, of 4 above 24 + 32, of 8 above 24 + 64
    assert [quantised_length(length) for length in (0, 1, 23, 24, 39, 40, 41, 42, 55, 56, 59, 60, 87, 88, 95, 96)] == [
        *(0, 1, 23, 24, 39, 40, 40, 42, 54, 56, 56, 60, 84, 88, 88, 96)
    ]
    assert quantised_length(2**31 - 1) == 24 + (15 << 27)


def test_the_order_is_that_of_the_formula(real_products: tuple[Product, ...]) -> None:
    """The formula in plain Python and double precision; it must agree wherever two scores differ by more than single precision can blur."""
    texts = [index_text(product) for product in real_products]
    words = [Counter(terms(text)) for text in texts]
    lengths = [sum(count.values()) for count in words]
    mean = sum(lengths) / len(lengths)
    index = SearchIndex(texts)
    for product in real_products[::250]:
        scores = [0.0] * len(texts)
        for word, repeated in Counter(terms(product.title)).items():
            holders = [position for position, count in enumerate(words) if word in count]
            idf = math.log(1 + (len(words) - len(holders) + 0.5) / (len(holders) + 0.5))
            for position in holders:
                tf = words[position][word]
                scores[position] += repeated * idf * tf / (tf + 0.9 * (1 - 0.4 + 0.4 * quantised_length(lengths[position]) / mean))
        found = [scores[position] for position in index.search(product.title)]
        assert found == pytest.approx(sorted(scores, reverse=True)[:50], abs=1e-4)


LUCENE = {
    "Find me machine wash men's underwear with polyester spandex, and price lower than 50.00 dollars": (
        "B09HY9XB8P B093K5JK25 B093KBGC44 B093YT83QR B09PBPZ24Z B09GLVMLMS B09QQP3356 B098B8KGMB B07PVZPS58 B09M63B87V"
    ),
    "Wii U Microphone": "B009AFLXZM B09Q55JLCS B09JT3Z6JV B08ZMR6MCR B09GXPBPLG B09L86RDXS B014C9KQLM B095C2ZMTX B09J2QLPR1 B09KQNH5C6",
    "body makeup": "B004TSFEBY B09B1M51SK B08P8LRFZ4 B08N16XC83 B09NSMMHTY B09JJ5W1N4 B008QA6YOC B09NRWND4H B0927BXC6B B09MCF64RM",
    "black shirt": "B09QGK5XHZ B09QQP3356 B08JD14GJF B09NPML43M B09KLQLLT2 B09RVF4JP1 B09KXCHWGD B09Q8RD8YN B09PVPYWHB B01MG1LTMS",
    "console tables": "B07Y81FQV3 B09RX1PLP4 B07S8F7SHK B084HBQYTD B09DG92LJL B09B77K9YQ B06Y3VLDFB B09BKPV8LR B07GZLDJMC B079R9H2KB",
    "women's dresses": "B08ZRR3DZT B09S632DT3 B09CDK9Q6Y B0756KQCQY B07DKGJR74 B09QPX97VW B07HDK7TPT B09PJ5ZXGH B095SX6366 B09PV9J15D",
}


def test_finds_what_lucene_finds(real_products: tuple[Product, ...]) -> None:
    """The first hits of Lucene 9 (BM25 0.9, 0.4, ties by asin) on the same texts."""
    products = sorted(real_products, key=lambda product: product.asin)
    index = SearchIndex([index_text(product) for product in products])
    found = {query: " ".join(products[position].asin for position in index.search(query)[:10]) for query in LUCENE}
    assert found == LUCENE


@settings(deadline=None)
@given(st.text())
def test_takes_any_query(query: str) -> None:
    index = SearchIndex([*TEXTS, "0 a1 \u00e9 _"])
    assert index.search(query) == index.search(query)


@settings(deadline=None)
@given(st.lists(st.text(max_size=30), max_size=8))
def test_a_text_finds_itself(texts: list[str]) -> None:
    index = SearchIndex(texts)
    for position, text in enumerate(texts):
        assert (position in index.search(text)) == bool(terms(text))
