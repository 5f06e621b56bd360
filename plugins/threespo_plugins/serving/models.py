"""What the config.json of a Hugging Face folder says about its model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from threespo_bench.errors import DataError


def read_config(folder: Path) -> dict[str, Any]:
    """The model's config.json. Raises DataError if it cannot be read."""
    try:
        return json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"model folder {folder}: config.json cannot be read: {error}", fix="give the path of a local Hugging Face folder") from error


def vocabulary_size(folder: Path) -> int:
    """Tokens that the model embeds. Raises DataError if config.json does not say."""
    config = read_config(folder)
    size = (config.get("text_config") or config).get("vocab_size")
    if not isinstance(size, int):
        raise DataError(f"model folder {folder}: config.json has no vocab_size", fix="use a causal language model")
    return size
