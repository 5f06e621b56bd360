"""The index terms, most of them checked against Lucene's own analysis of the same texts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from threespo_envs.webshop.analysis import STOP_WORDS, terms


def test_there_are_33_stop_words() -> None:
    assert len(STOP_WORDS) == 33
    assert terms(" ".join(sorted(STOP_WORDS)).upper()) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("Running shoes, ponies & caresses", ["run", "shoe", "poni", "caress"]),
        ("It's the Women's T-shirts", ["women", "t", "shirt"]),
        ("the dog\u2019s DOG'S O'Neil's", ["dog", "dog", "o'neil"]),
        ("3.5mm 1,200 U.S.A. wi-fi 4:3 foo_bar x2.5a", ["3.5mm", "1,200", "u.s.a", "wi", "fi", "4", "3", "foo_bar", "x2.5a"]),
        ("ABC_ _x __ 1_2 a.1 1.a a:b a::b 1;2 a;b", ["abc_", "_x", "1_2", "1", "1", "a:b", "b", "1;2", "b"]),
        (
            "\u4e2d\u56fd \u3072\u3089 \u30ab\u30bf\u30ab\u30ca \ud55c\uad6d\uc5b4",
            ["\u4e2d", "\u56fd", "\u3072", "\u3089", "\u30ab\u30bf\u30ab\u30ca", "\ud55c\uad6d\uc5b4"],
        ),
        ("\u2714 \u2764\ufe0f \U0001f44d\U0001f3fd \U0001f1e9\U0001f1ea", ["\u2714", "\u2764\ufe0f", "\U0001f44d\U0001f3fd", "\U0001f1e9\U0001f1ea"]),
        ("\u2460outdoor \u00bd 1\u20442 m\u00b2", ["outdoor", "1\u20442", "m"]),
    ],
)
def test_word_breaks(text: str, expected: list[str]) -> None:
    assert terms(text) == expected


@pytest.mark.parametrize(
    ("word", "stem"),
    [
        *[("us", "us"), ("xs", "xs"), ("s", "s")],  # shorter than three letters: as they are
        *[
            ("technology", "technolog"),
            ("technologies", "technolog"),
            ("assembly", "assembl"),
            ("incredibly", "incred"),
        ],  # where the program and the paper differ
        *[("relational", "relat"), ("hopefulness", "hope"), ("generalizations", "gener")],
    ],
)
def test_stems_are_those_of_porters_program(word: str, stem: str) -> None:
    assert terms(word) == [stem]


def test_words_longer_than_255_are_cut() -> None:
    assert [len(term) for term in terms("x" * 600)] == [255, 255, 90]


def test_long_runs_of_anything_take_linear_time() -> None:
    for run in ("_", "'", "a.", "a_", "\u2714\u200d", "\u200d"):
        terms(run * 50_000 + "a")


@settings(deadline=None)
@given(st.text())
def test_takes_any_text(text: str) -> None:
    found = terms(text)
    assert found == terms(text)
    assert all(found)
