"""Configures algorithms without a run around them: defaults, presets and overrides of their own options only."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from threespo_bench.config import overrides as grammar
from threespo_bench.config.compose import show
from threespo_bench.config.defaults import Defaults, load_defaults
from threespo_bench.config.names import Keys
from threespo_bench.config.options import Option, describe, whole_number
from threespo_bench.config.plain import COMPONENTS, build
from threespo_bench.contracts.algorithm import Algorithm
from threespo_bench.errors import PluginError, UsageError, suggest
from threespo_bench.host import Contribution, PluginHost

_SECTION = "algorithm"
_PRESET = f"{_SECTION}.preset"


@dataclass(frozen=True)
class Choice:
    """What a user asks for. ``label`` is how it was written (``gigpo@reference``), ``overrides`` are for this algorithm alone."""

    label: str
    name: str
    preset: str | None = None
    overrides: tuple[str, ...] = ()


def make_algorithms(choices: Sequence[Choice], overrides: Sequence[str], host: PluginHost) -> dict[str, Algorithm]:
    """The chosen algorithms by label.

    Args:
        choices: which, each with its own overrides.
        overrides: ``key=value`` for all that have the option; ``algorithm.`` before the key can be left out.
        host: where names are looked up.

    Raises:
        UsageError: an unknown name or preset, an option that none of them has, a value of the wrong type or out of range.
        PluginError: the contribution is no algorithm, or its defaults are broken.
    """
    common = [_full(text) for text in overrides]
    contributions = {choice.label: host.find("algorithms", choice.name) for choice in choices}
    presets = {choice.label: _preset(choice, contributions[choice.label], common) for choice in choices}
    _refuse_presets_of_none(common, contributions)
    defaults = {label: load_defaults(contribution, _SECTION, presets[label]) for label, contribution in contributions.items()}
    known = {label: _options(default) for label, default in defaults.items()}
    names = {name: section for section, kind in COMPONENTS.items() for name in host.names(kind)}
    keys = {label: Keys(known[label], {_SECTION: contributions[label].name}, names, _renamed(defaults[label])) for label in defaults}
    settings = [text for text in common if text.partition("=")[0] != _PRESET]
    made = {}
    for choice in choices:
        own = [text for text in map(_full, choice.overrides) if text.partition("=")[0] != _PRESET]
        mine = [text for text in settings if _accepts(choice.label, text, keys)]
        made[choice.label] = _make(contributions[choice.label], defaults[choice.label], keys[choice.label], [*mine, *own])
    return made


def _full(text: str) -> str:
    key, value = grammar.split(text)
    return text if key.startswith(f"{_SECTION}.") else f"{_SECTION}.{key}={value}"


def _preset(choice: Choice, contribution: Contribution, common: Sequence[str]) -> str | None:
    """The preset of an algorithm: what was said for it, else what was said for all and it has."""
    own = [str(grammar.read(text).value) for text in map(_full, choice.overrides) if text.partition("=")[0] == _PRESET]
    if own or choice.preset:
        return own[-1] if own else choice.preset
    wanted = [str(grammar.read(text).value) for text in common if text.partition("=")[0] == _PRESET]
    return wanted[-1] if wanted and wanted[-1] in load_defaults(contribution, _SECTION).presets else None


def _refuse_presets_of_none(common: Sequence[str], contributions: Mapping[str, Contribution]) -> None:
    for text in common:
        if text.partition("=")[0] == _PRESET:
            wanted = str(grammar.read(text).value)
            known = [name for contribution in contributions.values() for name in load_defaults(contribution, _SECTION).presets]
            if wanted not in known:
                raise UsageError(f"{' and '.join(contributions)}: no preset {wanted!r}", fix=suggest(wanted, dict.fromkeys(known)))


def _options(defaults: Defaults) -> dict[str, Option]:
    return {option.key: option for option in describe(defaults.config, _SECTION, OmegaConf.to_container(defaults.node))}


def _renamed(defaults: Defaults) -> dict[str, str]:
    renamed = getattr(defaults.config, "renamed", {})
    return {f"{_SECTION}.{old}": f"{_SECTION}.{new}" if new else "" for old, new in renamed.items()}


def _accepts(label: str, text: str, keys: Mapping[str, Keys]) -> bool:
    """Whether the algorithm has the option of an override that is meant for all. Raises UsageError if none of them has it."""
    key = text.partition("=")[0]
    refusals = {}
    for name, known in keys.items():
        try:
            known.find(key, text)
        except UsageError as error:
            refusals[name] = error
    if len(refusals) < len(keys):
        return label not in refusals
    first = next((error for error in refusals.values() if error.fix.startswith("did you mean")), refusals[label])
    if len(keys) == 1 or not str(first).startswith("unknown key"):
        raise first
    raise UsageError(f"unknown key {key!r}: none of {', '.join(keys)} has such an option", fix=first.fix)


def _make(contribution: Contribution, defaults: Defaults, keys: Keys, settings: Sequence[str]) -> Algorithm:
    node = defaults.node
    for text in settings:
        key, raw = grammar.split(text)
        option, value = keys.find(key, text), grammar.read(text).value
        whole = whole_number(option, value)
        _refuse_nan(key, value)
        try:
            OmegaConf.update(node, key.removeprefix(f"{_SECTION}."), value if whole is None else whole, force_add=option.open)
        except OmegaConfBaseException as error:
            raise UsageError(f"{key}={raw}: must be of type {option.type}", fix=f"the default is {option.key}={show(option.default)}") from error
    try:
        config = build(node)
    except OmegaConfBaseException as error:
        raise UsageError(f"{contribution.name}: the options cannot be resolved: {str(error).splitlines()[0]}") from error
    _validate(config)
    target = contribution.load()
    if not (inspect.isclass(target) and issubclass(target, Algorithm)):
        raise PluginError(f"{contribution.entry.target} (from {contribution.source.owner}) is no subclass of Algorithm")
    return target(config)


def _validate(config: Any) -> None:
    check = getattr(config, "validate", None)
    if check is not None:
        check()


def _refuse_nan(key: str, value: Any) -> None:
    """NaN passes every comparison that a range check makes."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
    if any(isinstance(item, float) and item != item for item in items):
        raise UsageError(f"{key}=nan is not a number")
