"""What a plugin hands to the host: an entry per contribution. Entries are light: they name classes by import path and load them on use,
so listing what is installed imports no torch, no tracker and no environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from threespo_bench.errors import PluginError


@dataclass(frozen=True)
class Entry:
    """One contribution.

    Attributes:
        name: the identifier and configuration key (letters, digits, underscore; not a digit first), e.g. ``threespo``.
        target: import path of the class or function, ``package.module:Name``.
        summary: one line for ``list``.
        aliases: further names a user may type, e.g. ``3spo``.
        defaults: import path of the package and file name of a YAML with defaults, ``package:file.yaml``, or empty.
        extra: the extra of this distribution that must be installed, or empty.
        tags: free words shown by ``list`` and ``info``.
    """

    name: str
    target: str
    summary: str
    aliases: tuple[str, ...] = ()
    defaults: str = ""
    extra: str = ""
    tags: tuple[str, ...] = field(default=())

    def load(self) -> Any:
        """The class or function. Raises PluginError saying which contribution could not be imported and why."""
        module, _, attribute = self.target.partition(":")
        try:
            return getattr(import_module(module), attribute)
        except ImportError as error:
            fix = f"pip install 'threespo-bench[{self.extra}]'" if self.extra else ""
            raise PluginError(f"{self.name}: cannot import {self.target}: {error}", fix=fix) from error
        except AttributeError as error:
            raise PluginError(f"{self.name}: {module} has no {attribute}") from error


class AlgorithmEntry(Entry):
    """``target`` is an :class:`~threespo_bench.contracts.algorithm.Algorithm`."""


class EnvironmentEntry(Entry):
    """``target`` is an :class:`~threespo_bench.contracts.environment.Environment`."""


class EngineEntry(Entry):
    """``target`` is an :class:`~threespo_bench.contracts.engine.Engine`."""


class RolloutEntry(Entry):
    """``target`` is a :class:`~threespo_bench.contracts.rollout.RolloutServer`."""


@dataclass(frozen=True)
class ModelEntry(Entry):
    """``target`` is a function without arguments that returns the path of a Hugging Face folder.

    Attributes:
        env: the environment that the model was made for, which is then the default of commands that are given the model's name; empty for none.
    """

    env: str = ""


class TrackerEntry(Entry):
    """``target`` is a :class:`~threespo_bench.contracts.tracker.Tracker`."""


class LauncherEntry(Entry):
    """``target`` is a :class:`~threespo_bench.contracts.launcher.Launcher`."""


class ReportEntry(Entry):
    """``target`` is a class of report section (:mod:`threespo_bench.contracts.report`), or one of four functions that the host calls by name:
    ``curve`` (run folder, file to write), ``comparison`` (run folders, folder to write), ``credit`` (turns, advantages by algorithm, file to write) and
    ``interval`` (a value per seed)."""
