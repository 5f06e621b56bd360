"""What is checked of a plugin before the host relies on it: the names of its hooks and the entries it hands over."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from typing import Any

from threespo_bench.contracts.entries import Entry, ModelEntry
from threespo_bench.errors import suggest
from threespo_bench.hookspecs import PROJECT

PREFIX = "threespo_"
_MARK = f"{PROJECT}_impl"  # the attribute by which pluggy knows an implementation
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_DEFAULTS = re.compile(r"([A-Za-z_][\w.]*:\S+)?")


def misspelt_hooks(plugin: Any, hooks: Collection[str]) -> list[str]:
    """A hint for every function of a plugin that was probably meant to be a hook and will never be called."""
    hints, found = [], False
    for name in dir(plugin):
        value = inspect.getattr_static(plugin, name, None)
        function = getattr(value, "__func__", value)
        if not inspect.isfunction(function) or function.__module__ == "threespo_bench.hookspecs":
            continue
        marked = hasattr(function, _MARK)
        found = found or (marked and name in hooks)
        if marked and name not in hooks:
            hints.append(f"{name} is no hook: {suggest(name, hooks)}")
        elif not marked and name in hooks:
            hints.append(f"{name} is never called: mark it with @hookimpl")
        elif not marked and name.startswith(PREFIX):
            hints.append(f"{name} is no hook and not marked with @hookimpl: {suggest(name, hooks)}")
    if not found and not hints:
        hints.append("it implements no hook")
    return hints


def check_entry(entry: Any, expected: type[Entry], taken: Collection[str]) -> str:
    """What is wrong with an entry, or the empty string. ``taken`` are the names this plugin has already used for the kind."""
    if not isinstance(entry, expected):
        return f"{entry!r} is not of type {expected.__name__}"
    fields = {"name": entry.name, "target": entry.target, "summary": entry.summary, "defaults": entry.defaults, "extra": entry.extra}
    if isinstance(entry, ModelEntry):
        fields["env"] = entry.env
    for field, value in fields.items():
        if not isinstance(value, str):
            return f"the {field} of entry {entry.name!r} is {value!r}, not a string"
    if not _NAME.fullmatch(entry.name):
        return f"{entry.name!r} is no valid name: letters, digits and underscores, no digit first (other spellings can be aliases)"
    if not _TARGET.fullmatch(entry.target):
        return f"the target {entry.target!r} of {entry.name} has not the form package.module:Name"
    if not _DEFAULTS.fullmatch(entry.defaults):
        return f"the defaults {entry.defaults!r} of {entry.name} have not the form package:file.yaml"
    if isinstance(entry.aliases, str) or not all(isinstance(alias, str) and _ALIAS.fullmatch(alias) for alias in entry.aliases):
        return f"the aliases {entry.aliases!r} of {entry.name} are not all words of letters, digits, '.', '_' and '-'"
    names = [entry.name, *entry.aliases]
    for name in names:
        if name in taken or names.count(name) > 1:
            return f"the name {name!r} is used twice by this plugin"
    return ""
