"""Names for variants: two runs of one plugin with other options are two lines of the report."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

_NOT_OPTIONS = ("name", "options")


Component = tuple[str, Mapping[str, Any] | None]
"""Name and flattened options of a plugin; None where nobody can tell them."""


def component(config: Mapping[str, Any], manifest: Mapping[str, Any], key: str) -> Component:
    """The configured plugin, however the configuration nests it; the manifest helps out with its name."""
    value = config.get(key) or manifest.get(key)
    if isinstance(value, str):
        return value, {} if key in config else None
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        return "unknown", {} if key in config else None
    options = value.get("options")
    merged = {**(options if isinstance(options, Mapping) else {}), **{k: v for k, v in value.items() if k not in _NOT_OPTIONS}}
    if not merged.get("preset"):
        merged.pop("preset", None)  # none at all is the same as an empty one
    return value["name"], flat(merged) if key in config else None


def flat(options: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Nested options by dotted key."""
    found: dict[str, Any] = {}
    for key, value in options.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def variant_labels(components: Mapping[str, Component]) -> dict[str, str]:
    """Run -> label: the plugin's name, and where its runs differ in options, the fewest of these that tell them apart.

    A run whose options are unknown is taken for the only variant there is, or has the bare name."""
    by_name: dict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for run, (name, options) in components.items():
        if options is not None:
            by_name[name][run] = options
    labels = {}
    for name, options_of in by_name.items():
        keys = _distinguishing(list(options_of.values()))
        for run, options in options_of.items():
            told = ", ".join(f"{key}={options[key]}" for key in keys if key in options)
            labels[run] = f"{name} ({told})" if told else name
    for run, (name, options) in components.items():
        if options is None:
            of_name = {labels[other] for other in by_name.get(name, ())}
            labels[run] = of_name.pop() if len(of_name) == 1 else name
    return labels


def _distinguishing(variants: list[Mapping[str, Any]]) -> list[str]:
    """Option names, ``preset`` first, until no two different option sets look alike."""
    whole = {as_text(dict(options)) for options in variants}
    varying = [key for key in sorted({k for v in variants for k in v}) if len({as_text(v.get(key)) for v in variants}) > 1]
    chosen: list[str] = []
    for key in sorted(varying, key=lambda key: (key != "preset", key)):
        if len({as_text([v.get(k) for k in chosen]) for v in variants}) == len(whole):
            break
        chosen.append(key)
    return chosen


def as_text(value: Any) -> str:
    """A value in a form that equal values share."""
    return json.dumps(value, sort_keys=True, default=str)
