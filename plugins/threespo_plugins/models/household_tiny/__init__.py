"""household-tiny: a Qwen2-architecture model of a few hundred thousand parameters with a word-level tokenizer of the ALFWorld domain.

It is made from nothing by ``threespo-bench warm-start`` (supervised learning on demonstrations in procedural households) and ships as
package data, so that the first run starts at once.
"""

from __future__ import annotations

from pathlib import Path

from threespo_plugins.models.packaged import packaged_model


def path() -> Path:
    """The folder with the packaged weights and tokenizer. Raises DataError if it was not packaged."""
    return packaged_model(__file__, "household_tiny")
