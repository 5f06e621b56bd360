"""Turns text into index terms as Lucene's English analysis does: words, without possessive 's, lower case, no stop words, Porter stems."""

from __future__ import annotations

import re
from functools import lru_cache

import snowballstemmer

STOP_WORDS = frozenset(
    (
        *("a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of", "on", "or", "such"),
        *("that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with"),
    )
)
"""The 33 words that Lucene's English analysis leaves out."""

_LONGEST = 255
"""Lucene cuts longer words into pieces of this length."""

# The word breaks of Unicode (UAX #29) as far as shop texts need them. Letters and digits hold together, as do a full stop, an apostrophe, a colon or
# a middle dot between letters, and a full stop, a comma, a semicolon, an apostrophe or a fraction slash between digits; an underscore joins. Chinese
# characters and Hiragana stand alone, and an emoji is a word as well.
_SINGLE = "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3041-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_MARK = "[\u00ad\u0300-\u036f\u200b-\u200f\u20e3\ufe00-\ufe0f\uff9e\uff9f\U0001f3fb-\U0001f3ff]*"
# Fractions, raised and circled numbers and two Japanese marks: Python takes them for letters or digits, Unicode's word breaks do not
_NO_LETTER = (
    "\u00b2\u00b3\u00b9\u00bc-\u00be\u2070\u2074-\u2079\u2080-\u2089\u2150-\u215f\u2189\u2460-\u249b\u24ea-\u24ff\u2776-\u2793"
    "\u3220-\u3229\u3248-\u324f\u3251-\u325f\u3280-\u3289\u32b1-\u32bf\uff9e\uff9f"
)
_LETTER = rf"[^\W\d_{_SINGLE}{_NO_LETTER}]{_MARK}"
_DIGIT = rf"\d{_MARK}"
_BETWEEN_LETTERS = ".:'\u00b7\u2018\u2019\u2024\u2027\uff07\uff0e\uff1a"
_BETWEEN_DIGITS = ".,;'\u2018\u2019\u2024\u2044\uff07\uff0c\uff0e\uff1b"
# Unicode's property Extended_Pictographic, without digits
_PICTURE = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u2388\u23cf\u23e9-\u23f3\u23f8-\u23fa\u24c2\u25aa\u25ab\u25b6\u25c0"
    "\u25fb-\u25fe\u2600-\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2705\u2708-\u2712\u2714\u2716\u271d\u2721\u2728\u2733\u2734\u2744\u2747\u274c\u274e"
    "\u2753-\u2755\u2757\u2763-\u2767\u2795-\u2797\u27a1\u27b0\u27bf\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u3030\u303d\u3297\u3299"
    "\U0001f000-\U0001f0ff\U0001f10d-\U0001f10f\U0001f12f\U0001f16c-\U0001f171\U0001f17e\U0001f17f\U0001f18e\U0001f191-\U0001f19a\U0001f1ad-\U0001f1e5"
    "\U0001f201-\U0001f20f\U0001f21a\U0001f22f\U0001f232-\U0001f23a\U0001f23c-\U0001f23f\U0001f249-\U0001f3fa\U0001f400-\U0001f53d\U0001f546-\U0001f64f"
    "\U0001f680-\U0001f6ff\U0001f774-\U0001f77f\U0001f7d5-\U0001f7ff\U0001f90c-\U0001f93a\U0001f93c-\U0001f945\U0001f947-\U0001fffd"
)
_FLAG = "[\U0001f1e6-\U0001f1ff]"
_WORD = re.compile(
    rf"[{_SINGLE}]{_MARK}"
    rf"|{_FLAG}{_FLAG}"
    rf"|[{_PICTURE}]{_MARK}(?:(?<=\u200d)[{_PICTURE}]{_MARK})*"
    rf"|(?<!_)_*+(?:{_LETTER}|{_DIGIT})"
    rf"(?:_*(?:{_LETTER}|{_DIGIT})|(?<=[^\W\d_])[{_BETWEEN_LETTERS}](?={_LETTER})|(?<=\d)[{_BETWEEN_DIGITS}](?={_DIGIT}))*_*"
)
_POSSESSIVE = tuple(mark + letter for mark in "'\u2019\uff07" for letter in "sS")

_STEMMER = snowballstemmer.stemmer("porter")
_SHORTEST = 3
"""Lucene leaves shorter words as they are."""
# Lucene stems as Porter's own program does, which has two rules that differ from his paper: "bli" becomes "ble", and "logi" becomes "log".
_DEPARTURE = re.compile(r"(?P<stem>.*)(?:(?P<ble>bl)|(?P<log>log))(?:y|i|ies)", re.DOTALL)
_VOWEL_THEN_CONSONANT = re.compile(r"(?:[aeiou]|(?<=[^aeiou])y)(?:[^aeiouy]|(?<=[aeiou])y)")


def terms(text: str) -> list[str]:
    """The index terms of a text, in order and with repetitions; empty if nothing is left. Takes any text."""
    found = []
    for match in _WORD.finditer(text):
        word = match.group()
        for start in range(0, len(word), _LONGEST):
            piece = word[start : start + _LONGEST]
            if piece.endswith(_POSSESSIVE):
                piece = piece[:-2]
            piece = piece.lower()
            if piece and piece not in STOP_WORDS:
                found.append(_stem(piece))
    return found


@lru_cache(maxsize=100_000)
def _stem(word: str) -> str:
    if len(word) < _SHORTEST:
        return word
    departure = _DEPARTURE.fullmatch(word)
    if departure and _VOWEL_THEN_CONSONANT.search(departure["stem"]):
        word = departure["stem"] + ("ble" if departure["ble"] else "log")
    return _STEMMER.stemWord(word)
