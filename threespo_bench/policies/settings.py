"""The configuration in which a policy is played: that of its run with changes on top, or one composed anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib.util import find_spec
from typing import Any

from threespo_bench.config.overrides import read
from threespo_bench.config.plain import COMPONENTS, flatten, from_plain, to_plain
from threespo_bench.config.schema import RunConfig
from threespo_bench.contracts.engine import Engine
from threespo_bench.errors import DataError, UsageError, suggest
from threespo_bench.host import PluginHost
from threespo_bench.policies.source import MODEL, RUN, SHARDING_ENGINE, Source, as_shards
from threespo_bench.store import read_config

_PRESETS = frozenset(f"{section}.preset" for section in COMPONENTS)  # where the options began; a run keeps its own
_FIXED = {"model": "the policy is the one that was named", "algorithm": "nothing is trained", "budget": "nothing is trained"}


def configure(source: Source, host: PluginHost, env: str = "", overrides: Sequence[str] = (), report: Callable[[str], None] = lambda text: None) -> RunConfig:
    """The configuration of playing ``source``.

    A run's options are kept. Where another environment is named, it has its own defaults, except for the options that both have from a
    common ancestor: two environments of one domain are then prompted alike. A run of verl is played by the default engine where verl is not installed.

    Args:
        env: an environment's name; empty for that of the run or of a registered model, or else the default. overrides: ``key=value``, the later wins.
        report: told if the run is played by another engine than it had.

    Raises:
        UsageError: an unknown name or key, or a value out of range. DataError: the saved configuration cannot be read.
        StorageError: the run's engine cannot load the checkpoint with these options.
    """
    for text in overrides:
        head = read(text).key.partition(".")[0]
        if head in _FIXED:
            raise UsageError(f"{text} cannot be set here: {_FIXED[head]}", fix=f"leave {head} out")
    if source.kind == RUN:
        assert source.path is not None
        return _of_run(source, host, env, overrides, report)
    from threespo_bench.config.compose import compose, environment_of

    env = env or environment_of(source.text if source.kind == MODEL else source.base, host)
    return compose(host.names("algorithms")[0], env, overrides, host)  # the algorithm is never asked for anything


def _of_run(source: Source, host: PluginHost, env: str, overrides: Sequence[str], report: Callable[[str], None]) -> RunConfig:
    assert source.path is not None
    config = from_plain(read_config(source.path), host)
    written_by = config.engine.name
    if config.engine.name == SHARDING_ENGINE and find_spec("verl") is None and as_shards(source) is not None:
        _change_engine(config, host)
        report(f"verl is not installed here: the checkpoint is merged, in bfloat16, and played with engine={config.engine.name}")
    if env and host.find("environments", env).name != config.env.name:
        _change_environment(config, host, env)
    if overrides:
        config = _changed(config, host, overrides)
    if source.checkpoint is not None and config.engine.name == written_by:  # for another engine it is merged, and fits any options
        engine: type[Engine] = host.find("engines", config.engine.name).load()
        engine.check_checkpoint(config.engine.options, source.checkpoint.folder / "learner")
    return config


def _changed(config: RunConfig, host: PluginHost, overrides: Sequence[str]) -> RunConfig:
    """The configuration with overrides of options that the run has."""
    data = to_plain(config)
    known = {key for key in flatten(data) if key not in COMPONENTS and key not in _PRESETS}
    for text in overrides:
        override = read(text)
        if override.key not in known:
            raise _unknown(override.key, text, known)
        _set(data, override.key, override.value)
    try:
        return from_plain(data, host)
    except DataError as error:
        raise UsageError(f"{' '.join(overrides)}: {error}") from error


def _change_engine(config: RunConfig, host: PluginHost) -> None:
    """The default engine and rollout, with the options that the run's have under the same names."""
    from threespo_bench.config.compose import compose

    fresh = compose(config.algorithm.name, config.env.name, (), host)
    for new, old in ((fresh.engine.options, config.engine.options), (fresh.rollout.options, config.rollout.options)):
        for name in {field.name for field in fields(new)} & {field.name for field in fields(old)}:
            setattr(new, name, getattr(old, name))
    config.engine, config.rollout = fresh.engine, fresh.rollout


def _change_environment(config: RunConfig, host: PluginHost, env: str) -> None:
    from threespo_bench.config.compose import compose

    fresh = compose(config.algorithm.name, env, (), host)
    for name in _inherited_by_both(type(fresh.env.options), type(config.env.options)):
        setattr(fresh.env.options, name, getattr(config.env.options, name))
    config.env, config.evaluation.split = fresh.env, fresh.evaluation.split


def _inherited_by_both(one: type, other: type) -> set[str]:
    shared = [base for base in one.__mro__ if base in other.__mro__ and is_dataclass(base)]
    return {field.name for base in shared for field in fields(base)}


def _unknown(key: str, text: str, known: set[str]) -> UsageError:
    if key in COMPONENTS:
        return UsageError(f"{text}: the {key} of a run cannot be changed here", fix="leave it out")
    return UsageError(f"unknown key {key!r}: the run has no such option", fix=suggest(key, known))


def _set(data: dict[str, Any], key: str, value: Any) -> None:
    head, *inner = key.split(".")
    if head in COMPONENTS:
        inner = ["options", *inner]
    place: Any = data
    for name in (head, *inner)[:-1]:
        place = place[name]
        if not isinstance(place, Mapping):
            raise UsageError(f"{key} has no parts")
    place[(head, *inner)[-1]] = value
