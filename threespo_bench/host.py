"""The plugin host: finds, loads and isolates plugins, and knows the owner of every contribution.

A plugin that cannot be loaded, raises in a hook or hands over something wrong loses that much and nothing else: the failure is
recorded with its distribution, and using a name it would have given says so. Two owners of one name are an error that names both.
"""

from __future__ import annotations

import importlib
import os
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pluggy

from threespo_bench import discovery, hookspecs, identity
from threespo_bench.contracts.entries import (
    AlgorithmEntry,
    EngineEntry,
    Entry,
    EnvironmentEntry,
    LauncherEntry,
    ModelEntry,
    ReportEntry,
    RolloutEntry,
    TrackerEntry,
)
from threespo_bench.discovery import IN_MEMORY, REPLACE_VARIABLE, Choice, Source
from threespo_bench.errors import PluginError, UsageError, suggest
from threespo_bench.hook_checks import check_entry, misspelt_hooks

STRICT_VARIABLE = "THREESPO_BENCH_STRICT"


@dataclass(frozen=True)
class Kind:
    """A kind of contribution: how messages call one, the hook that collects it, the type of its entries."""

    singular: str
    hook: str
    entry: type[Entry]


KINDS: dict[str, Kind] = {
    "algorithms": Kind("algorithm", "threespo_algorithms", AlgorithmEntry),
    "environments": Kind("environment", "threespo_environments", EnvironmentEntry),
    "engines": Kind("engine", "threespo_engines", EngineEntry),
    "rollouts": Kind("rollout", "threespo_rollouts", RolloutEntry),
    "models": Kind("model", "threespo_models", ModelEntry),
    "trackers": Kind("tracker", "threespo_trackers", TrackerEntry),
    "launchers": Kind("launcher", "threespo_launchers", LauncherEntry),
    "reports": Kind("report", "threespo_report_sections", ReportEntry),
}


@dataclass(frozen=True)
class Contribution:
    """One registered thing and its owner."""

    kind: str
    entry: Entry
    source: Source

    @property
    def name(self) -> str:
        """The registered name."""
        return self.entry.name

    @property
    def owner(self) -> str:
        """The name of the distribution it comes from."""
        return self.source.distribution

    @property
    def version(self) -> str:
        """The version of that distribution."""
        return self.source.version

    def load(self) -> Any:
        """The class or function. Raises PluginError, with the owner, if it cannot be imported."""
        try:
            return self.entry.load()
        except PluginError as error:
            raise PluginError(f"{KINDS[self.kind].singular} {error} (from {self.source.owner})", fix=error.fix) from error
        except Exception as error:
            raise PluginError(f"{KINDS[self.kind].singular} {self.name} (from {self.source.owner}) cannot be imported: {one_line(error)}") from error


@dataclass(frozen=True)
class Failure:
    """Something a plugin did wrong. ``kind`` is the kind of contribution that is missing because of it, empty for all kinds."""

    source: Source
    cause: str
    kind: str = ""
    details: str = ""

    def __str__(self) -> str:
        what = f"its {self.kind}" if self.kind else "plugin"
        return f"{self.source.owner}: {what} skipped: {self.cause}"


class PluginHost:
    """All contributions of the loaded plugins. Made by :meth:`discover`, :meth:`from_plugins` or :meth:`from_identity`.

    Attributes:
        sources: the loaded plugins. failures, hints: what was skipped and what looks like a slip, see :attr:`warnings`.
        conflicts: names with several owners; not empty only for a host made with ``check=False``.
        replacements: by ``kind:name``, the owner that an explicit setting has chosen over another.
        seconds: import time by entry point.
    """

    def __init__(self, choices: Mapping[str, Choice] | None = None) -> None:
        self.sources: list[Source] = []
        self.failures: list[Failure] = []
        self.hints: list[str] = []
        self.conflicts: list[str] = []
        self.replacements: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self._choices = dict(choices or {})
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._found: dict[str, dict[str, Contribution]] = {kind: {} for kind in KINDS}
        self._aliases: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}

    @classmethod
    def discover(cls, *, strict: bool | None = None, replace: str | None = None, check: bool = True, only: Sequence[Source] | None = None) -> PluginHost:
        """Load every installed plugin, one by one.

        Args:
            strict: a failure or hint is an error; by default what the environment variable THREESPO_BENCH_STRICT says.
            replace: explicit winners, ``kind:name=distribution,...``; by default those of THREESPO_BENCH_REPLACE.
            check: raise for conflicts; without it they are only listed (for ``doctor``).
            only: load no other entry points than those named by these sources.

        Raises:
            PluginError: two owners of one name, or anything at all in strict mode.
        """
        host = cls(discovery.read_choices(replace))
        sources = discovery.installed()
        if only is not None:
            wanted = {(discovery.normal_name(source.distribution), source.entry_point) for source in only}
            sources = [source for source in sources if (discovery.normal_name(source.distribution), source.entry_point) in wanted]
        kept, host.conflicts, winners = discovery.settle(sources, host._choices)
        host.replacements = {key: source.distribution for key, source in winners.items()}
        host._load((source, None) for source in kept)
        strict = os.environ.get(STRICT_VARIABLE, "") not in ("", "0") if strict is None else strict
        host._raise(strict=strict, check=check)
        return host

    @classmethod
    def from_plugins(cls, plugins: Iterable[Any], *, strict: bool = False, replace: str = "") -> PluginHost:
        """A host of plugin objects that are in memory only, for tests. Workers cannot rebuild it."""
        host = cls(discovery.read_choices(replace))
        names = [(plugin, getattr(plugin, "__name__", type(plugin).__name__)) for plugin in plugins]
        host._load((Source(name, "", name, IN_MEMORY), plugin) for plugin, name in names)
        host._raise(strict=strict, check=True)
        return host

    @classmethod
    def from_identity(cls, expected: Mapping[str, Any]) -> PluginHost:
        """Rebuild, in another process, the host that :meth:`identity` described, and verify that it is the same.

        Raises:
            PluginError: a distribution, a contribution or its source code differs; the message lists what.
        """
        host = cls.discover(strict=False, check=True, only=identity.sources(expected), replace=identity.replace_setting(expected))
        differences = identity.differences(expected, host.identity())
        if differences:
            raise PluginError(
                "the plugins of this process differ from those of the process that started it: " + "; ".join(differences),
                fix="install the same distributions and versions on every machine that takes part",
            )
        return host

    def identity(self) -> dict[str, Any]:
        """Plain data by which another process can rebuild and verify this host."""
        contributions = [contribution for found in self._found.values() for contribution in found.values()]
        return identity.describe(self.sources, contributions, self.replacements)

    @property
    def algorithms(self) -> Mapping[str, Contribution]:
        """Algorithms by name."""
        return MappingProxyType(self._found["algorithms"])

    @property
    def environments(self) -> Mapping[str, Contribution]:
        """Environments by name."""
        return MappingProxyType(self._found["environments"])

    @property
    def engines(self) -> Mapping[str, Contribution]:
        """Engines by name."""
        return MappingProxyType(self._found["engines"])

    @property
    def rollouts(self) -> Mapping[str, Contribution]:
        """Rollouts by name."""
        return MappingProxyType(self._found["rollouts"])

    @property
    def models(self) -> Mapping[str, Contribution]:
        """Models by name."""
        return MappingProxyType(self._found["models"])

    @property
    def trackers(self) -> Mapping[str, Contribution]:
        """Trackers by name."""
        return MappingProxyType(self._found["trackers"])

    @property
    def launchers(self) -> Mapping[str, Contribution]:
        """Launchers by name."""
        return MappingProxyType(self._found["launchers"])

    @property
    def reports(self) -> Mapping[str, Contribution]:
        """Report sections by name."""
        return MappingProxyType(self._found["reports"])

    @property
    def warnings(self) -> list[str]:
        """One line for every failure and hint."""
        return [str(failure) for failure in self.failures] + self.hints

    def all(self, kind: str) -> Mapping[str, Contribution]:
        """The contributions of a kind by name."""
        return MappingProxyType(self._found[kind])

    def names(self, kind: str) -> list[str]:
        """Every name and alias of a kind."""
        return [*self._found[kind], *self._aliases[kind]]

    def find(self, kind: str, name: str) -> Contribution:
        """The contribution of a kind by name or alias.

        Raises:
            UsageError: there is none; the message has the close matches and the plugin that probably failed to give it.
        """
        name = str(name)
        found = self._found[kind].get(self._aliases[kind].get(name, name))
        if found is not None:
            return found
        message = f"unknown {KINDS[kind].singular} {name!r}"
        failures = [failure for failure in self.failures if failure.kind in ("", kind)]
        likely = [failure for failure in failures if identity.mentions(failure.source.module, name)]
        if likely:
            raise UsageError(f"{message}: it comes with a plugin that could not be loaded: {likely[0]}", fix="threespo-bench doctor shows the details")
        fix = suggest(name, self.names(kind))
        if failures:
            fix += f" (not loaded: {', '.join(failure.source.owner for failure in failures)}; threespo-bench doctor shows why)"
        raise UsageError(message, fix=fix)

    def _load(self, plugins: Iterable[tuple[Source, Any]]) -> None:
        """Load, register and ask each plugin by itself; then give every name to its owner."""
        offered = []
        for source, plugin in plugins:
            start = time.perf_counter()
            if plugin is None:
                plugin = self._import(source)
            self.seconds[source.entry_point] = time.perf_counter() - start
            if plugin is None or not self._register(source, plugin):
                continue
            self.sources.append(source)
            self.hints += [f"{source.owner}: {hint}" for hint in misspelt_hooks(plugin, [kind.hook for kind in KINDS.values()])]
            for kind in KINDS:
                offered += self._ask(source, plugin, kind)
        for kind in KINDS:
            self._assign(kind, [contribution for contribution in offered if contribution.kind == kind])
        if not self.conflicts:
            unused = [choice for key, choice in self._choices.items() if key not in self.replacements]
            self.hints += [f"{REPLACE_VARIABLE} has {choice.key}={choice.winner}, but there is nothing to choose between" for choice in unused]

    def _import(self, source: Source) -> Any:
        module, _, attribute = source.module.partition(":")
        try:
            plugin = importlib.import_module(module)
            for part in filter(None, attribute.split(".")):
                plugin = getattr(plugin, part)
            return plugin
        except (Exception, SystemExit) as error:
            self._fail(source, f"cannot import {source.module}: {one_line(error)}")
            return None

    def _register(self, source: Source, plugin: Any) -> bool:
        try:
            hash(plugin)  # pluggy keeps plugins in sets
            self._manager.register(plugin, name=f"{source.distribution}:{source.entry_point}")
            return True
        except Exception as error:  # a hook with arguments that the specification does not have, one object under two names
            self._fail(source, one_line(error))
            return False

    def _ask(self, source: Source, plugin: Any, kind: str) -> list[Contribution]:
        others = [other for other in self._manager.get_plugins() if other is not plugin]
        caller = self._manager.subset_hook_caller(KINDS[kind].hook, remove_plugins=others)
        try:
            entries = [entry for answer in caller() for entry in answer]
        except (Exception, SystemExit) as error:
            self._fail(source, f"{KINDS[kind].hook} raised {one_line(error)}", kind)
            return []
        good: list[Contribution] = []
        taken: set[str] = set()
        for entry in entries:
            problem = check_entry(entry, KINDS[kind].entry, taken)
            if problem:
                self._fail(source, problem, kind)
                continue
            taken |= {entry.name, *entry.aliases}
            good.append(Contribution(kind, entry, source))
        return good

    def _assign(self, kind: str, offered: list[Contribution]) -> None:
        claims: dict[str, list[Contribution]] = {}
        for contribution in offered:
            for name in (contribution.name, *contribution.entry.aliases):
                claims.setdefault(name, []).append(contribution)
        owners = {name: self._settle(kind, name, claimants) for name, claimants in claims.items()}
        for contribution in offered:
            if owners[contribution.name] is contribution:
                self._found[kind][contribution.name] = contribution
                self._aliases[kind] |= {alias: contribution.name for alias in contribution.entry.aliases if owners[alias] is contribution}

    def _settle(self, kind: str, name: str, claimants: list[Contribution]) -> Contribution | None:
        """The owner of a name; None, and a conflict, if several plugins claim it and no setting chooses one."""
        if len(claimants) == 1:
            return claimants[0]
        key = f"{kind}:{name}"
        choice = self._choices.get(key)
        chosen = [contribution for contribution in claimants if choice and choice.picks(contribution.source)]
        if len(chosen) == 1:
            self.replacements[key] = chosen[0].owner
            return chosen[0]
        both = " and by ".join(sorted(contribution.source.owner for contribution in claimants))
        self.conflicts.append(f"the {KINDS[kind].singular} name {name!r} is claimed by {both}")
        return None

    def _fail(self, source: Source, cause: str, kind: str = "") -> None:
        self.failures.append(Failure(source, cause, kind, traceback.format_exc()))

    def _raise(self, *, strict: bool, check: bool) -> None:
        if self.conflicts and check:
            more = f" (and {len(self.conflicts) - 1} more)" if len(self.conflicts) > 1 else ""
            raise PluginError(
                self.conflicts[0] + more,
                fix=f"uninstall one of them, or choose one with {REPLACE_VARIABLE}=kind:name=distribution; threespo-bench doctor shows the details",
            )
        if strict and self.warnings and check:
            raise PluginError(f"strict mode: {self.warnings[0]}", fix=f"mend or uninstall it, or unset {STRICT_VARIABLE}")


def one_line(error: BaseException) -> str:
    """Type and message of an exception on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
