"""The launcher of a comparison and its options: settings of the comparison, never of a run, so they are in no run's configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from threespo_bench.config import overrides as grammar
from threespo_bench.config.compose import show
from threespo_bench.config.defaults import load_defaults
from threespo_bench.config.names import Keys
from threespo_bench.config.options import Option, describe, whole_number
from threespo_bench.config.plain import build
from threespo_bench.config.schema import Component
from threespo_bench.errors import UsageError
from threespo_bench.host import PluginHost

SECTION = "launcher"
DEFAULT_LAUNCHER = "local"


def compose_launcher(texts: Sequence[str], host: PluginHost, *, jobs: int | None = None) -> Component:
    """The chosen launcher with its options.

    Args:
        texts: overrides, the later wins; ``launcher=NAME`` chooses, by default ``local``. Options that stand before the choice of another launcher are dropped.
        host: where names are looked up.
        jobs: the default of ``launcher.jobs``.

    Raises:
        UsageError: an unknown launcher or option, a value of the wrong type or out of range.
        PluginError: the launcher's options are broken.
    """
    name, settings = _choose(texts)
    contribution = host.find("launchers", name)
    defaults = load_defaults(contribution, SECTION)
    known = {option.key: option for option in describe(defaults.config, SECTION, OmegaConf.to_container(defaults.node))}
    keys = Keys(known, {SECTION: contribution.name}, {}, {})
    node = defaults.node
    if jobs is not None:
        OmegaConf.update(node, "jobs", jobs)
    for text in settings:
        _set(node, keys.find(grammar.split(text)[0], text), text)
    options = build(node)
    check = getattr(options, "validate", None)
    if check is not None:
        check()
    return Component(contribution.name, options)


def _choose(texts: Sequence[str]) -> tuple[str, list[str]]:
    name, settings = DEFAULT_LAUNCHER, []
    for text in texts:
        if grammar.split(text)[0] != SECTION:
            settings.append(text)
            continue
        chosen = str(grammar.read(text).value)
        if chosen != name:
            name, settings = chosen, []
    return name, settings


def _set(node: Any, option: Option, text: str) -> None:
    override = grammar.read(text)
    whole = whole_number(option, override.value)
    try:
        OmegaConf.update(node, override.key.removeprefix(f"{SECTION}."), override.value if whole is None else whole, force_add=option.open)
    except OmegaConfBaseException as error:
        raise UsageError(f"{text}: must be of type {option.type}", fix=f"the default is {option.key}={show(option.default)}") from error
