"""Files of a report: written whole or not at all, and in bytes that depend on the numbers alone."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd


def write_file(path: Path, content: str | bytes) -> Path:
    """Write atomically, making the folder if needed: a reader sees the old file or the new one. Returns ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def csv_text(frame: pd.DataFrame) -> str:
    """A data frame as CSV: ten significant digits, unknown cells blank."""
    return frame.to_csv(index=False, float_format="%.10g", lineterminator="\n")


def plain(value: Any) -> Any:
    """``value`` in JSON's types; NaN, infinity and missing values become null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if value is None or value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value if isinstance(value, (str, int, float, bool)) else str(value)
