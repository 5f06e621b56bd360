"""How two recorded runs differ: options, conditions and code, and the first place at which their measurements part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from threespo_bench.config.plain import flatten
from threespo_bench.manifest import MATCHED
from threespo_bench.rows import Row, RowFile
from threespo_bench.store import METRICS, read_config, read_manifest

ABSENT = "absent"
_NOT_OPTIONS = ("out", "experiment")  # where a run is written is no property of it


@dataclass(frozen=True)
class Difference:
    """One thing and its two values; ``absent`` stands for none."""

    key: str
    first: Any
    second: Any


@dataclass(frozen=True)
class RowComparison:
    """Two files of measurements.

    Attributes:
        rows: how many the two have. compared: how many were equal before the first difference, or in all.
        where: the first difference in words, or empty.
    """

    rows: tuple[int, int]
    compared: int
    where: str = ""

    @property
    def equal(self) -> bool:
        """Whether no compared row differs."""
        return not self.where


def option_differences(first: Path, second: Path) -> list[Difference]:
    """The options in which two runs differ, by key."""
    return _differences(*({key: value for key, value in flatten(read_config(path)).items() if key not in _NOT_OPTIONS} for path in (first, second)))


def condition_differences(first: Path, second: Path) -> list[Difference]:
    """Digests, code, versions, machine and threads in which two runs differ."""
    return _differences(*(circumstances(read_manifest(path)) for path in (first, second)))


def circumstances(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What of a manifest can make a number differ, on one level."""
    found: dict[str, Any] = {key: manifest[key] for key in MATCHED if key in manifest}
    run, incidental = manifest.get("run", {}), manifest.get("incidental", {})
    found |= {key: run[key] for key in ("code_digest",) if key in run}
    parts = ("algorithm", "env", "engine", "rollout")
    found |= {f"{section} code": manifest[section]["digest"] for section in parts if "digest" in (manifest.get(section) or {})}
    found |= {f"version of {name}": version for name, version in manifest.get("versions", {}).items()}
    found |= {name: incidental[name] for name in ("processor", "platform") if name in incidental}
    return found | {f"torch {name}": value for name, value in (incidental.get("torch") or {}).items()}


def compare_metrics(first: Path, second: Path, *, prefix: bool = False) -> RowComparison:
    """Compare the measurements of two runs row by row; with ``prefix`` only as far as the first run has come."""
    one, two = RowFile(first / METRICS).read(), RowFile(second / METRICS).read()
    return compare_rows(one, two[: len(one)] if prefix else two)


def compare_rows(one: Sequence[Row], two: Sequence[Row]) -> RowComparison:
    """The first row, and in it the first key, that differs."""
    lengths = (len(one), len(two))
    for number, (a, b) in enumerate(zip_longest(one, two)):
        if a is None or b is None:
            which = "the second ends there" if b is None else "the first ends there"
            return RowComparison(lengths, number, f"after {number} equal rows {which}, and the other goes on to {max(lengths)}")
        found = _differences(a, b)
        if found:
            first = found[0]
            more = f" ({len(found) - 1} other values of the row differ, too)" if len(found) > 1 else ""
            where = f"row {number + 1}, {a.get('kind', '?')} at iteration {a.get('iteration', '?')}: {first.key} is {first.first} and {first.second}{more}"
            return RowComparison(lengths, number, where)
    return RowComparison(lengths, min(lengths))


def _differences(one: Mapping[str, Any], two: Mapping[str, Any]) -> list[Difference]:
    keys = dict.fromkeys([*one, *two])
    return [Difference(key, one.get(key, ABSENT), two.get(key, ABSENT)) for key in keys if one.get(key, ABSENT) != two.get(key, ABSENT)]
