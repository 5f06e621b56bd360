"""Fuzzy equality, colour words and nouns."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from threespo_envs.webshop.matching import COLOURS, normalised_colour, noun_overlap, nouns, similar


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("machine wash", "wash, MACHINE!", True),
        ("cotton", "100% cotton", True),  # all words of one are in the other
        ("a" * 6, "a" * 6 + "bb", True),  # 2 * 6 / 14 = 85.7, rounded 86
        ("a" * 23, "a" * 23 + "b" * 8, False),  # 2 * 23 / 54 = 85.19, rounded 85
        ("small", "large", False),
        ("", "", True),
        ("+", "+", True),
        ("+", "-", False),
        ("", "small", False),
    ],
)
def test_similar(first: str, second: str, expected: bool) -> None:
    assert similar(first, second) is expected
    assert similar(second, first) is expected


def test_the_colour_words_are_sorted_and_single() -> None:
    assert list(COLOURS) == sorted(set(COLOURS))


@pytest.mark.parametrize(
    ("text", "colour"),
    [
        ("light blue", "blue"),
        ("navy blue", "blue"),
        ("violet lavender", "lavender"),
        ("black | white", "black"),
        ("123teal", "teal"),
        ("large", "large"),
        ("", ""),
    ],
)
def test_the_first_colour_in_the_alphabet_counts(text: str, colour: str) -> None:
    assert normalised_colour(text) == colour


def test_nouns() -> None:
    assert nouns("Harbour Men's Soft Blue Linen Shirt with 2 Pockets, Machine-Washable (3XL)") == {
        "harbour",
        "men",
        "linen",
        "shirt",
        "pockets",
        "machine",
        "xl",
    }
    assert nouns("The Best of 100% & more!") == frozenset()


def test_overlap_is_the_share_of_the_wanted_nouns() -> None:
    assert noun_overlap("linen shirt pocket collar", "cotton shirt") == 0.25
    assert noun_overlap("cotton shirt", "linen shirt pocket collar") == 0.5
    assert noun_overlap("shirt shirt lamp", "shirt") == 0.5
    assert noun_overlap("", "shirt") == noun_overlap("the best", "the best") == 0.2
    assert noun_overlap("shirt", "") == 0.0


@settings(deadline=None)
@given(st.text(), st.text())
def test_takes_any_text(first: str, second: str) -> None:
    assert similar(first, first)
    assert similar(first, second) == similar(first, second)
    assert noun_overlap(first, first) == (1.0 if nouns(first) else 0.2)
    assert 0 <= noun_overlap(first, second) <= 1
    assert normalised_colour(first) in (*COLOURS, first)
