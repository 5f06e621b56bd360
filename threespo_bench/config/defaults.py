"""A plugin's own defaults: its Config dataclass, overridden by its YAML file, overridden by a preset of that file.

# threespo.yaml: keys are those of the Config class, and three more
group_size: 8
preset: threespo          # the preset that is used unless another is asked for
presets:
  paper: {alpha: 50}
  threespo: {alpha: 0.3}
run:                      # environments only: defaults of the run's own settings
  evaluation: {split: test}
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from importlib import resources
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from threespo_bench.errors import PluginError, UsageError, suggest
from threespo_bench.host import Contribution


@dataclass
class Defaults:
    """The defaults of one contribution.

    Attributes:
        config: its Config class. node: the values, typed.
        presets: names of the presets it has; preset: the one that is applied, or empty.
        run: defaults of the run's own settings.
        where: file and owner, for messages.
    """

    config: type
    node: DictConfig
    presets: tuple[str, ...] = ()
    preset: str = ""
    run: dict[str, Any] = field(default_factory=dict)
    where: str = ""


def load_defaults(contribution: Contribution, section: str, preset: str | None = None) -> Defaults:
    """Read the defaults of a contribution.

    Args:
        contribution: an algorithm, environment, engine or tracker.
        section: where its options are, for messages.
        preset: the preset asked for; None takes the one that the file names.

    Raises:
        UsageError: there is no such preset.
        PluginError: the file is missing or does not fit the Config class.
    """
    config = config_class(contribution)
    where = f"{contribution.entry.defaults or contribution.entry.target} (from {contribution.source.owner})"
    data = _read(contribution, where)
    presets, run = data.pop("presets", None) or {}, data.pop("run", None) or {}
    chosen = preset if preset is not None else data.pop("preset", None) or ""
    data.pop("preset", None)
    if run and section != "env":
        raise PluginError(f"{where}: only an environment can have defaults under 'run'")
    if chosen and chosen not in presets:
        if preset is None:
            raise PluginError(f"{where}: its preset {chosen!r} is not among its presets")
        raise UsageError(f"{contribution.name} has no preset {chosen!r}", fix=suggest(chosen, presets))
    try:
        node = OmegaConf.merge(structured(config), data, presets.get(chosen) or {})
    except OmegaConfBaseException as error:
        raise PluginError(f"{where}: {' '.join(str(error).split())}") from error
    if chosen and any(f.name == "preset" for f in fields(config)):
        node.preset = chosen
    return Defaults(config, node, tuple(presets), chosen, run, where)  # type: ignore[arg-type]


def structured(config: type) -> DictConfig:
    """A typed, writable node with a dataclass's defaults (a frozen dataclass by itself would give a read-only one)."""
    node = OmegaConf.structured(config)
    OmegaConf.set_readonly(node, False)
    return node


def config_class(contribution: Contribution) -> type:
    """The Config dataclass of a contribution. Raises PluginError if it has none."""
    config = getattr(contribution.load(), "Config", None)
    if not isinstance(config, type) or not is_dataclass(config):
        raise PluginError(f"{contribution.entry.target} (from {contribution.source.owner}) has no dataclass named Config")
    return config


def _read(contribution: Contribution, where: str) -> dict[str, Any]:
    package, _, name = contribution.entry.defaults.partition(":")
    if not package:
        return {}
    try:
        text = resources.files(package).joinpath(name).read_text(encoding="utf-8")
        data: Any = OmegaConf.to_container(OmegaConf.create(text), resolve=False) if text.strip() else {}
    except Exception as error:  # no such package or file, not UTF-8, no valid YAML: all are the plugin's fault
        raise PluginError(f"{where}: cannot be read: {type(error).__name__}: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise PluginError(f"{where}: is no mapping of option names to values")
    return data
