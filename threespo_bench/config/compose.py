"""Composes the configuration of one run: defaults of the schema, defaults and presets of the chosen plugins, overrides.

Hydra does the composition (its compose API: no run directory, no ``@hydra.main``), OmegaConf checks every value against the declared
types. Both keep global registries; each call uses private ones and puts the former back, so that calls do not see one another.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib import resources
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_module, version
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from threespo_bench.budget import Limits
from threespo_bench.config import overrides as grammar
from threespo_bench.config.defaults import Defaults, load_defaults, structured
from threespo_bench.config.names import CHOSEN_BY_OVERRIDE, Keys
from threespo_bench.config.options import Option, describe, whole_number
from threespo_bench.config.plain import COMPONENTS, build, run_settings, to_plain
from threespo_bench.config.schema import Component, RunConfig
from threespo_bench.contracts.entries import ModelEntry
from threespo_bench.errors import PluginError, UsageError
from threespo_bench.host import PluginHost

_LOCK = threading.Lock()


@dataclass
class _Chosen:
    """What the overrides choose before anything can be composed: plugins by section, presets by section, and the other overrides."""

    names: dict[str, str]
    presets: dict[str, str]
    settings: list[tuple[str, str]]


def compose(
    algorithm: str,
    env: str,
    overrides: Sequence[str],
    host: PluginHost,
    *,
    seed: int | None = None,
    out: str | None = None,
    experiment: str | None = None,
) -> RunConfig:
    """The configuration of one run.

    Args:
        algorithm, env: names or aliases; an empty ``env`` takes :func:`default_environment`.
        overrides: ``key=value`` texts, the later wins.
        host: where names are looked up.
        seed, out, experiment: defaults for the keys of these names.

    Raises:
        UsageError: an unknown name or key, a value of the wrong type or out of range; names the override and what was probably meant.
        PluginError: a plugin's options or its YAML file are wrong.
    """
    chosen = _choose(algorithm, env, overrides, host)
    defaults = {section: load_defaults(host.find(kind, chosen.names[section]), section, chosen.presets.get(section)) for section, kind in COMPONENTS.items()}
    base = _run_schema(defaults["env"])
    if any(key.startswith("budget.") for key, _ in chosen.settings):
        base.budget = Limits()  # who sets one limit means that one, not that one and the default
    base.update({key: value for key, value in {"seed": seed, "out": out, "experiment": experiment}.items() if value is not None})
    options = _options(base, defaults)
    keys = Keys(options, chosen.names, _contributions(host), _renamed(defaults))
    settings = [_setting(key, text, keys) for key, text in chosen.settings]
    config = _to_run_config(_compose(base, defaults, chosen.names, settings, options), chosen.names, {section: d.preset for section, d in defaults.items()})
    _resolve_model(config, host)
    _refuse_nan(config)
    config.validate()
    return config


def default_names() -> dict[str, str]:
    """The plugins that a run uses unless told otherwise, by section, from ``conf/config.yaml``."""
    listed = _config_file()["defaults"]
    return {key: str(value) for item in listed if isinstance(item, dict) for key, value in item.items()}


def environment_of(model: str | None, host: PluginHost) -> str:
    """The environment that a registered model was made for; empty if it does not say, or if nothing of that name is registered."""
    entry = host.find("models", model).entry if model in host.names("models") else None
    return entry.env if isinstance(entry, ModelEntry) else ""


def default_environment(overrides: Sequence[str], host: PluginHost) -> str:
    """The environment of a run that names none: that of its model, if the overrides choose one that says so, else the usual one."""
    model: dict[str, str | None] = {}
    for text in map(grammar.with_home, overrides):
        key = grammar.split(text)[0]
        if key in ("model", "model.name", "model.path"):
            model["path" if key == "model.path" else "name"] = grammar.read(text).value
    return environment_of(None if model.get("path") else model.get("name"), host) or default_names()["env"]


def run_options(env: Defaults | None = None) -> list[Option]:
    """The options of a run that belong to no plugin."""
    return describe(run_settings(), "", OmegaConf.to_container(_run_schema(env)))


def _choose(algorithm: str, env: str, texts: Sequence[str], host: PluginHost) -> _Chosen:
    names = {**default_names(), "algorithm": algorithm, "env": env or default_environment(texts, host)}
    chosen = _Chosen(names, {}, [])
    for text in map(grammar.with_home, texts):
        key, value = grammar.split(text)
        section, _, option = key.partition(".")
        if key == "model":
            chosen.settings.append(("model.name", f"model.name={value}"))
        elif key in CHOSEN_BY_OVERRIDE:
            names[key] = str(grammar.read(text).value)
        elif option == "preset" and section in COMPONENTS:
            chosen.presets[section] = str(grammar.read(text).value)
        else:
            chosen.settings.append((key, text))
    for section, kind in COMPONENTS.items():
        names[section] = host.find(kind, names[section]).name
    return chosen


def _options(base: DictConfig, defaults: Mapping[str, Defaults]) -> dict[str, Option]:
    found = describe(run_settings(), "", OmegaConf.to_container(base))
    for section, default in defaults.items():
        found += describe(default.config, section, OmegaConf.to_container(default.node))
    return {option.key: option for option in found}


def _contributions(host: PluginHost) -> dict[str, str]:
    return {name: section for section, kind in COMPONENTS.items() for name in host.names(kind)}


def _renamed(defaults: Mapping[str, Defaults]) -> dict[str, str]:
    return {
        f"{section}.{old}": f"{section}.{new}" if new else ""
        for section, default in defaults.items()
        for old, new in getattr(default.config, "renamed", {}).items()
    }


def _setting(key: str, text: str, keys: Keys) -> str:
    """Check one override's key and form; returns the text that Hydra gets."""
    option = keys.find(key, text)
    override = grammar.read(text)
    whole = whole_number(option, override.value)
    if whole is not None:
        return f"{key}={whole}"
    return f"++{text}" if option.open else text  # the entries of a mapping may be new


def _compose(
    base: DictConfig, defaults: Mapping[str, Defaults], names: Mapping[str, str], settings: Sequence[str], options: Mapping[str, Option]
) -> DictConfig:
    choices = [f"{section}={names[section]}" for section in COMPONENTS]
    base = OmegaConf.create(base)
    OmegaConf.set_struct(base, False)  # the sections of the plugins come on top of it
    with _LOCK, _private_registries() as store:
        store.store("run_schema", base)
        for section, default in defaults.items():
            store.store(names[section], default.node, group=section)
        try:
            with initialize_config_module("threespo_bench.conf", version_base="1.3"):
                return hydra_compose("config", [*choices, *settings])
        except (HydraException, OmegaConfBaseException) as error:
            raise _refused(error, settings, options) from error


@contextmanager
def _private_registries() -> Iterator[ConfigStore]:
    """Hydra's registries with nothing of ours left in them afterwards; works inside a program that uses Hydra itself."""
    store, base, current = ConfigStore.instance(), version.VersionBase.instance(), GlobalHydra.instance()
    saved = store.repo, base.version_base, current.hydra
    store.repo = {name: node for name, node in store.repo.items() if name not in COMPONENTS}
    current.clear()
    try:
        yield store
    finally:
        store.repo, base.version_base, GlobalHydra.instance().hydra = saved


def _refused(error: Exception, settings: Sequence[str], options: Mapping[str, Option]) -> UsageError:
    """What Hydra or OmegaConf objected to, in a line: the override, and the type that its key has."""
    first = str(error).splitlines()[0]
    text = first.removeprefix("Error merging override ")
    if text not in settings:
        return UsageError(f"the configuration cannot be composed: {first}")
    key, _, value = text.lstrip("+").partition("=")
    option = options.get(key) or options.get(key.rpartition(".")[0])
    if option is None:
        return UsageError(f"{text}: {first}")
    return UsageError(f"{key}={value}: must be of type {option.type}", fix=f"the default is {key}={show(option.default)}")


def show(value: Any) -> str:
    """A plain value as it is written in an override."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(show(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{show(item)}" for key, item in value.items()) + "}"
    return str(value)


def _to_run_config(config: DictConfig, names: Mapping[str, str], presets: Mapping[str, str]) -> RunConfig:
    try:
        parts = {field.name: build(config[field.name]) for field in fields(RunConfig)}
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None)
        if "???" in str(error) or "Missing mandatory" in str(error) or "missing" in str(error).lower():
            raise UsageError(f"{key} must be set", fix=f"add {key}=VALUE") from error
        raise UsageError(f"the configuration cannot be resolved: {str(error).splitlines()[0]}") from error
    components: dict[str, Any] = {section: Component(names[section], parts.pop(section), presets[section]) for section in COMPONENTS}
    return RunConfig(**components, **parts)


def _resolve_model(config: RunConfig, host: PluginHost) -> None:
    if config.model.path is not None:
        return
    if "/" in config.model.name:
        raise UsageError(f"model={config.model.name} is no registered name", fix=f"a folder is given by model.path={config.model.name}")
    config.model.name = host.find("models", config.model.name).name


def _refuse_nan(config: RunConfig) -> None:
    """NaN passes every comparison that a range check makes, so it is refused here."""

    def visit(value: Any, key: str) -> None:
        if isinstance(value, float) and value != value:
            raise UsageError(f"{key.replace('.options', '', 1)}=nan is not a number")
        children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for name, child in children:
            visit(child, f"{key}.{name}" if key else str(name))

    visit(to_plain(config), "")


def _run_schema(env: Defaults | None) -> DictConfig:
    """The run's own settings, with the defaults that the environment brings along."""
    base = structured(run_settings())
    if env is None or not env.run:
        return base
    try:
        return OmegaConf.merge(base, env.run)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        raise PluginError(f"{env.where}: run: {str(error).splitlines()[0]}") from error


@lru_cache(maxsize=1)
def _config_file() -> dict[str, Any]:
    text = resources.files("threespo_bench.conf").joinpath("config.yaml").read_text(encoding="utf-8")
    return OmegaConf.to_container(OmegaConf.create(text))  # type: ignore[return-value]
