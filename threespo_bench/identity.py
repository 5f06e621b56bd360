"""The identity of a set of plugins: which distributions, which contributions, which source code. Compared between processes and runs."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threespo_bench import __version__
from threespo_bench.discovery import IN_MEMORY, Source

if TYPE_CHECKING:
    from threespo_bench.host import Contribution


def describe(sources: Iterable[Source], contributions: Iterable[Contribution], replacements: Mapping[str, str]) -> dict[str, Any]:
    """Plain data (JSON types) about a host: its plugins, its contributions with a digest of their code, its explicit replacements."""
    return {
        "host": {"version": __version__, "digest": _digest(_host_files())},
        "plugins": {
            source.entry_point: {
                "distribution": source.distribution,
                "version": source.version,
                "module": source.module,
                "digest": "" if source.module == IN_MEMORY else _digest(_package_files(source.module.partition(":")[0])),
            }
            for source in sources
        },
        "contributions": {
            f"{contribution.kind}:{contribution.name}": {
                "distribution": contribution.owner,
                "version": contribution.version,
                "target": contribution.entry.target,
                "digest": contribution_digest(contribution),
            }
            for contribution in contributions
        },
        "replacements": dict(replacements),
    }


def contribution_digest(contribution: Contribution) -> str:
    """Digest of the source of a contribution's module and of its defaults; empty if there is no source file."""
    files = [module_file(contribution.entry.target.partition(":")[0]), defaults_file(contribution.entry.defaults)]
    return _digest([file for file in files if file is not None])


def sources(identity: Mapping[str, Any]) -> list[Source]:
    """The sources that an identity names."""
    return [Source(plugin["distribution"], plugin["version"], name, plugin["module"]) for name, plugin in identity["plugins"].items()]


def replace_setting(identity: Mapping[str, Any]) -> str:
    """The replacement setting that reproduces an identity's replacements."""
    return ",".join(f"{key}={winner}" for key, winner in identity["replacements"].items())


def differences(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> list[str]:
    """What differs, one phrase per plugin or contribution."""
    found = []
    if expected["host"] != actual["host"]:
        found.append(f"threespo-bench itself: {actual['host']} here and {expected['host']} there")
    for name, plugin in expected["plugins"].items():
        here = actual["plugins"].get(name)
        if plugin["module"] == IN_MEMORY:
            found.append(f"plugin {name} exists only in the memory of the process that started this one: install it as a distribution")
        elif here is None:
            found.append(f"plugin {name} of {plugin['distribution']} {plugin['version']} is not installed or cannot be loaded here")
        elif here["version"] != plugin["version"]:
            found.append(f"{plugin['distribution']} is {here['version']} here and {plugin['version']} there")
        elif here["digest"] != plugin["digest"]:
            found.append(f"the source code of plugin {name} ({plugin['distribution']} {plugin['version']}) differs")
    lost_plugins = {plugin["distribution"] for name, plugin in expected["plugins"].items() if name not in actual["plugins"]}
    for name, contribution in expected["contributions"].items():
        here = actual["contributions"].get(name)
        if here is None:
            if contribution["distribution"] not in lost_plugins:
                found.append(f"{name} of {contribution['distribution']} is missing")
        elif here["distribution"] != contribution["distribution"] or here["target"] != contribution["target"]:
            found.append(f"{name} is {here['target']} of {here['distribution']} here and {contribution['target']} of {contribution['distribution']} there")
        elif here["digest"] != contribution["digest"]:
            found.append(f"the source code of {name} differs")
    return found


def module_file(module: str) -> Path | None:
    """The source file of a module, found without importing it (only the path of its top-level package is looked up)."""
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if not rest:
        return Path(spec.origin) if spec.origin and Path(spec.origin).is_file() else None
    for root in spec.submodule_search_locations or ():
        base = Path(root).joinpath(*rest)
        for file in (base.with_name(base.name + ".py"), base / "__init__.py"):
            if file.is_file():
                return file
    return None


def defaults_file(defaults: str) -> Path | None:
    """The file of an entry's ``package:file.yaml``; None if it has none or the file is missing."""
    package, _, name = defaults.partition(":")
    init = module_file(package) if package else None
    file = init.parent / name if init is not None and name else None
    return file if file is not None and file.is_file() else None


def mentions(module: str, name: str) -> bool:
    """True if the source of a plugin module has ``name`` as a string: then it probably contributes it."""
    file = module_file(module.partition(":")[0])
    if file is None:
        return False
    text = file.read_text(encoding="utf-8", errors="replace")
    return f'"{name}"' in text or f"'{name}'" in text


def _package_files(module: str) -> list[Path]:
    """All Python and YAML files of the top-level package of a module, or the module's file if it is not in a package."""
    file = module_file(module.partition(".")[0])
    if file is None:
        return []
    if file.name != "__init__.py":
        return [file]
    return sorted(path for path in file.parent.rglob("*") if path.suffix in (".py", ".yaml") and path.is_file())


def _host_files() -> list[Path]:
    """The host's files that can change what a run measures: not its commands, what only reads runs, and the kit for plugin authors."""
    here = Path(__file__).parent
    return [file for file in _package_files("threespo_bench") if file.relative_to(here).parts[0] not in ("cli", "inspection", "testing", "__main__.py")]


def _digest(files: list[Path]) -> str:
    if not files:
        return ""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + _file_digest(file, file.stat().st_mtime_ns))
    return digest.hexdigest()[:16]


@lru_cache(maxsize=4096)
def _file_digest(file: Path, changed: int) -> bytes:
    return hashlib.sha256(file.read_bytes()).digest()
