"""Files of a report: written whole or not at all, and in bytes that depend on the numbers alone."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

PARQUET_ROWS = 250_000  # written at a time


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


def write_parquet(path: Path, frames: Mapping[str, pd.DataFrame]) -> Path:
    """Frames under one another, with their name in the column ``kind``; unknown numbers are null. Written in pieces, atomically. Returns ``path``."""
    names = ["kind", *dict.fromkeys(name for frame in frames.values() for name in frame.columns)]
    texts = {name for frame in frames.values() for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])} | {"kind"}
    types = {name: pa.string() if name in texts else pa.bool_() if name == "counted" else pa.int64() if name == "seed" else pa.float64() for name in names}
    schema = pa.schema(list(types.items()))
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with parquet.ParquetWriter(draft, schema, compression="zstd", use_dictionary=sorted(texts)) as writer:
            for kind, frame in frames.items():
                for start in range(0, len(frame), PARQUET_ROWS):
                    part = frame.iloc[start : start + PARQUET_ROWS]
                    columns = [_arrow_column(part, name, kind, types[name]) for name in names]
                    writer.write_table(pa.Table.from_arrays(columns, schema=schema))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def _arrow_column(part: pd.DataFrame, name: str, kind: str, wanted: pa.DataType) -> pa.Array:
    if name == "kind":
        return pa.repeat(pa.scalar(kind), len(part))
    if name not in part:
        return pa.nulls(len(part), wanted)
    if wanted == pa.string():
        values = part[name].astype("category").cat
        codes = values.codes.to_numpy()
        return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), pa.array(values.categories.tolist(), pa.string())).cast(pa.string())
    return pa.array(part[name].to_numpy(), wanted, from_pandas=True)


def json_text(content: Mapping[str, Any]) -> str:
    """``content`` as JSON, sorted; each row of a list of rows stands on a line of its own. Unknown numbers are null."""
    return _json(content) + "\n"


def _json(value: Any) -> str:
    if isinstance(value, Mapping) and any(isinstance(item, (Mapping, list, tuple)) for item in value.values()):
        return "{\n" + ",\n".join(f"{json.dumps(str(key))}: {_json(value[key])}" for key in sorted(value)) + "\n}"
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, Mapping) for item in value):
        return "[\n" + ",\n".join(_line(item) for item in value) + "\n]"
    return _line(value)


def _line(value: Any) -> str:
    return json.dumps(plain(value), sort_keys=True, ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """``value`` in JSON's types; NaN, infinity and missing values become null."""
    if type(value) is float:
        return value if math.isfinite(value) else None
    if isinstance(value, (str, int)):  # also truth values
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if value is None or value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value if isinstance(value, (str, int, float, bool)) else str(value)
