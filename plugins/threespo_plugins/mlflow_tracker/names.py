"""What MLflow takes as names and values, and a record of everything that had to be changed for it."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

PARAM_LENGTH, NAME_LENGTH, TAG_LENGTH = 6000, 250, 5000
CHANGES = "changes.json"
_FORBIDDEN = re.compile(r"[^\w.\- /]")
_MARK = " ... (cut; see config.yaml)"


class Names:
    """Names as MLflow takes them, of metrics or of parameters; two names that become equal by that are kept apart.

    Attributes:
        renamed: the original of every name that had to be changed.
    """

    def __init__(self) -> None:
        self.renamed: dict[str, str] = {}
        self._clean: dict[str, str] = {}
        self._taken: set[str] = set()

    def __call__(self, name: str) -> str:
        """The name to use."""
        if name not in self._clean:
            clean = clean_name(name)
            if clean in self._taken:
                clean = f"{clean[: NAME_LENGTH - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
            self._clean[name] = clean
            self._taken.add(clean)
            if clean != name:
                self.renamed[clean] = name
        return self._clean[name]


class Changes:
    """What is not in MLflow as the run has it: the tags ``threespo_bench.*`` tell, and ``changes.json`` where a tag is too short for all of it.

    Attributes:
        metrics, params: the names. lost: how often a metric was not finite. cut: parameters that were shortened, with their length.
        kept: parameters that have another value now than MLflow, which keeps the first one for ever.
    """

    def __init__(self) -> None:
        self.metrics, self.params = Names(), Names()
        self.lost: Counter[str] = Counter()
        self.cut: dict[str, int] = {}
        self.kept: dict[str, str] = {}

    def everything(self) -> dict[str, Mapping[str, Any]]:
        """By tag; only what is not empty."""
        found: dict[str, Mapping[str, Any]] = {
            "threespo_bench.renamed_metrics": self.metrics.renamed,
            "threespo_bench.renamed_params": self.params.renamed,
            "threespo_bench.not_finite": self.lost,
            "threespo_bench.cut_params": self.cut,
            "threespo_bench.changed_params": self.kept,
        }
        return {name: dict(values) for name, values in found.items() if values}

    def tags(self) -> tuple[dict[str, str], bool]:
        """The tags, and whether all of it is in them."""
        texts = {name: json.dumps(values, ensure_ascii=False) for name, values in self.everything().items()}
        whole = all(len(text) <= TAG_LENGTH for text in texts.values())
        mark = f" ... (cut; see {CHANGES})"
        return {name: text if len(text) <= TAG_LENGTH else text[: TAG_LENGTH - len(mark)] + mark for name, text in texts.items()}, whole


def clean_name(name: str) -> str:
    """``name`` without the characters and path parts that MLflow refuses in names."""
    clean = posixpath.normpath(_FORBIDDEN.sub("_", name)).lstrip("/")
    while clean.startswith(".."):
        clean = clean[2:].lstrip("/")
    return "_" if clean in ("", ".") else clean[:NAME_LENGTH]


def shorten(text: str) -> str:
    """``text`` cut to what MLflow keeps of a parameter; the configuration attached to the run has all of it."""
    return text if len(text) <= PARAM_LENGTH else text[: PARAM_LENGTH - len(_MARK)] + _MARK


def text_of(value: Any) -> str:
    """A parameter's value as it is written in YAML."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def batches(params: Sequence[Any], count: int = 100, length: int = 100_000) -> Iterator[list[Any]]:
    """Parameters in parts that MLflow takes at once: it has limits for their number and for the bytes of a request, up to six for a character."""
    part: list[Any] = []
    size = 0
    for param in params:
        if part and (len(part) == count or size + len(param.value) > length):
            yield part
            part, size = [], 0
        part.append(param)
        size += len(param.value)
    if part:
        yield part
