"""webshop-tiny: a Qwen2-architecture model of a few hundred thousand parameters with a word-level tokenizer of the generated WebShop catalogues.

It is made from nothing by ``threespo-bench warm-start --model webshop_tiny`` (supervised learning on demonstrations in another generated shop than any
that is trained or tested on) and ships as package data.
"""

from __future__ import annotations

from pathlib import Path

from threespo_plugins.models.packaged import packaged_model


def path() -> Path:
    """The folder with the packaged weights and tokenizer. Raises DataError if it was not packaged."""
    return packaged_model(__file__, "webshop_tiny")
