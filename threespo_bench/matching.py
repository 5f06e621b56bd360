"""Whether the runs of one environment and seed had everything in common but the algorithm: what their manifests say about it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from threespo_bench.errors import StorageError
from threespo_bench.manifest import MATCHED
from threespo_bench.store import read_config, read_manifest

MUST_MATCH = {**MATCHED, "budget": "the budget"}
"""What must be equal for a seed across algorithms, and what it is in words."""


def conditions(path: Path) -> dict[str, Any]:
    """What of :data:`MUST_MATCH` the manifest of the run in ``path`` records; empty if it cannot be read."""
    try:
        manifest = read_manifest(path)
        found = {key: manifest[key] for key in MUST_MATCH if key in manifest}
        return found if "budget" in found or not found else found | {"budget": read_config(path).get("budget")}
    except StorageError:
        return {}


def match(runs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The comparison's proof: a row for every environment and seed.

    Args:
        runs: each with ``name``, ``env``, ``seed`` and ``conditions``; one whose conditions are empty is left out.

    Returns:
        Rows with ``env``, ``seed``, the names of the ``runs``, the ``conditions`` that they share, and under ``differs`` each other one by run.
    """
    cells: dict[tuple[str, int], dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for run in runs:
        if run["conditions"]:
            cells[run["env"], run["seed"]][run["name"]] = run["conditions"]
    return [{"env": env, "seed": seed, **_compare(cell)} for (env, seed), cell in cells.items()]


def warnings(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for every environment, seed and condition that differs."""
    return [
        f"{row['env']}, seed {row['seed']}: {MUST_MATCH[key]} differ{'s' if key == 'budget' else ''} between {_groups(values)}: not a matched comparison"
        for row in rows
        for key, values in row["differs"].items()
    ]


def _compare(cell: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    shared: dict[str, Any] = {}
    differs: dict[str, dict[str, Any]] = {}
    for key in MUST_MATCH:
        values = {name: found[key] for name, found in cell.items() if key in found}  # older manifests lack some
        first = next(iter(values.values()), None)
        if any(value != first for value in values.values()):
            differs[key] = values
        elif values:
            shared[key] = first
    return {"runs": list(cell), "conditions": shared, "differs": differs}


def _groups(values: Mapping[str, Any]) -> str:
    """The runs, those with equal values together."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name, value in values.items():
        groups[str(value)].append(name)
    return " and ".join(", ".join(names) for names in groups.values())
