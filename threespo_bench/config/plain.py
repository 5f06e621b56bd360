"""A run's configuration as plain data, for ``config.yaml`` and for other processes, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, field, fields, is_dataclass, make_dataclass
from enum import Enum
from functools import lru_cache
from pathlib import PurePath
from typing import Any, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from threespo_bench.config.defaults import config_class, structured
from threespo_bench.config.schema import Component, RunConfig
from threespo_bench.errors import DataError
from threespo_bench.host import PluginHost

COMPONENTS = {"algorithm": "algorithms", "env": "environments", "engine": "engines", "rollout": "rollouts", "tracker": "trackers"}
"""The sections of a configuration that hold a plugin's options, and the kind of plugin."""


def to_plain(config: RunConfig) -> dict[str, Any]:
    """The configuration as dictionaries, lists, strings, numbers, booleans and None."""
    return _plain(asdict(config))


def flatten(data: Mapping[str, Any]) -> dict[str, Any]:
    """Plain configuration data as one level of override keys, e.g. ``algorithm.objective.clip_low``; the names of components under their own key."""
    flat: dict[str, Any] = {}

    def visit(value: Any, key: str) -> None:
        if isinstance(value, Mapping) and value:
            for name, item in value.items():
                visit(item, key if name == "options" or (name == "name" and "options" in value) else f"{key}.{name}" if key else name)
        else:
            flat[key] = value

    visit(data, "")
    return flat


def from_plain(data: Mapping[str, Any], host: PluginHost) -> RunConfig:
    """The configuration that :func:`to_plain` described; options it does not mention get the defaults of their class.

    Raises:
        UsageError: a plugin it names is not installed, or a value is out of range.
        DataError: it was not written by this version of the program, or it is damaged.
    """
    components: dict[str, Any] = {section: _component(data.get(section), section, host) for section in COMPONENTS}
    rest = {key: value for key, value in data.items() if key not in COMPONENTS}
    settings = _typed(run_settings(), rest, "the run")
    config = RunConfig(**components, **{f.name: getattr(settings, f.name) for f in fields(settings)})
    config.validate()
    return config


@lru_cache(maxsize=1)
def run_settings() -> type:
    """The fields of RunConfig that belong to no plugin, as a dataclass of their own."""
    hints = get_type_hints(RunConfig)
    own = [f for f in fields(RunConfig) if f.name not in COMPONENTS]
    kept = [(f.name, hints[f.name], field(default=f.default) if f.default is not MISSING else field(default_factory=f.default_factory)) for f in own]
    made = make_dataclass("RunSettings", kept)
    made.__doc__ = RunConfig.__doc__
    return made


def build(node: Any) -> Any:
    """The dataclass instance (or plain value) that a typed configuration node describes."""
    return _with_tuples(OmegaConf.to_object(node) if OmegaConf.is_config(node) else node)


def _component(data: Any, section: str, host: PluginHost) -> Component:
    if not isinstance(data, Mapping) or "name" not in data:
        raise DataError(f"the saved configuration does not say which {section} it uses")
    contribution = host.find(COMPONENTS[section], data["name"])
    return Component(contribution.name, _typed(config_class(contribution), data.get("options") or {}, section), str(data.get("preset") or ""))


def _typed(config: type, data: Mapping[str, Any], what: str) -> Any:
    try:
        return build(OmegaConf.merge(structured(config), OmegaConf.create(dict(data))))
    except (OmegaConfBaseException, TypeError, ValueError) as error:
        raise DataError(f"the saved configuration of {what} does not fit {config.__name__}: {str(error).splitlines()[0]}") from error


def _with_tuples(value: Any) -> Any:
    """OmegaConf makes lists of tuples; fields that are declared as tuples get theirs back."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    for f in fields(value):
        item = getattr(value, f.name)
        if isinstance(item, list) and str(f.type).replace("typing.", "").lower().startswith("tuple"):
            object.__setattr__(value, f.name, tuple(item))
        else:
            _with_tuples(item)
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Enum):
        return value.name
    return str(value) if isinstance(value, PurePath) else value
