"""What a word is to the compact prompts and to the word-level models that read them."""

from __future__ import annotations

import re

_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|\d+|[^\sa-z\d]")


def split_words(sample: str) -> list[str]:
    """The words of a text, in lower case: letters (with an apostrophe inside), numbers, and every other mark by itself."""
    return _WORD.findall(sample.lower())
