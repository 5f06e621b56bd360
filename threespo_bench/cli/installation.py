"""What ``doctor`` finds out about the installed distributions: which are missing, too old or too new, or cannot be imported."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threespo_bench.host import one_line

if TYPE_CHECKING:
    from packaging.requirements import Requirement

DISTRIBUTION = "threespo-bench"
FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""What the package is imported from."""
_MODULES = {"hydra-core": "hydra", "pyyaml": "yaml"}
"""Of distributions whose module has another name."""
_PIP = f"{sys.executable} -m pip"


@dataclass(frozen=True)
class Damage:
    """Something wrong with what every part of the bench stands on: one line, its fix, and the modules that cannot be counted on because of it."""

    cause: str
    fix: str
    modules: tuple[str, ...] = ()


def damages() -> list[Damage]:
    """What is wrong with the distributions that threespo-bench always needs. All of them are imported, which takes seconds."""
    if installed(DISTRIBUTION) is None:
        return [Damage(f"{DISTRIBUTION} is not installed, only found in {FOLDER}: it has no plugins", f"{_PIP} install -e {shlex.quote(FOLDER)}")]
    try:
        needed = requirements(DISTRIBUTION)
    except ImportError as error:
        return [Damage(f"packaging cannot be used: {one_line(error)}", f"{_PIP} install --force-reinstall packaging", ("packaging",))]
    unmet = [requirement for requirement in needed if lack(requirement)]
    found = []
    if unmet:
        wanted = " ".join(shlex.quote(f"{requirement.name}{requirement.specifier}") for requirement in unmet)
        found.append(Damage(f"{DISTRIBUTION} needs packages that are not here: {lacks(unmet)}", f"{_PIP} install {wanted}", tuple(map(_module, unmet))))
    return found + _broken([requirement for requirement in needed if requirement not in unmet], {_module(requirement) for requirement in unmet})


def requirements(distribution: str, extra: str = "") -> list[Requirement]:
    """What a distribution always needs, or what one of its extras adds. Raises PackageNotFoundError or, without packaging, ImportError."""
    from packaging.requirements import InvalidRequirement, Requirement

    found = []
    for line in _declared(distribution, extra):
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        always = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if wanted and (not extra or not always or (distribution == DISTRIBUTION and _project())):
            found.append(requirement)
    return found


def extras() -> list[str]:
    """The names of our own extras. Raises PackageNotFoundError if there is no installation to ask."""
    return sorted(_project().get("optional-dependencies") or metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or [])


def _declared(distribution: str, extra: str) -> list[str]:
    project = _project() if distribution == DISTRIBUTION else {}
    if project:
        return list(project["optional-dependencies"].get(extra, ()) if extra else project["dependencies"])
    return metadata.requires(distribution) or []


@cache
def _project() -> dict[str, Any]:
    """What the pyproject.toml of a checkout says, since the metadata of an editable installation are as old as the last ``pip install``."""
    import tomllib

    try:
        project = tomllib.loads(Path(FOLDER, "pyproject.toml").read_text(encoding="utf-8"))["project"]
    except (OSError, ValueError, KeyError):
        return {}
    return project if project.get("name") == DISTRIBUTION and {"dependencies", "optional-dependencies"} <= set(project) else {}


def installed(distribution: str) -> str | None:
    """Its version; None if it is not installed, and empty if its metadata are damaged and do not say."""
    try:
        return metadata.version(distribution) or ""
    except metadata.PackageNotFoundError:
        return None
    except KeyError:
        return ""


def lack(requirement: Requirement) -> str:
    """How a requirement is not met, in words; empty if it is."""
    version = installed(requirement.name)
    if not version:
        return f"{requirement.name} is not installed" if version is None else f"{requirement.name} is installed without a version"
    return "" if requirement.specifier.contains(version, prereleases=True) else f"{requirement.name} is {version} and must be {requirement.specifier}"


def lacks(unmet: list[Requirement]) -> str:
    """How several requirements are not met: those that are not installed in one phrase, then the wrong versions."""
    phrases = [lack(requirement) for requirement in unmet]
    absent = [requirement.name for requirement, phrase in zip(unmet, phrases, strict=True) if phrase.endswith("is not installed")]
    said = [f"{listing(absent)} {'is' if len(absent) == 1 else 'are'} not installed"] if absent else []
    return "; ".join(said + [phrase for phrase in phrases if phrase and not phrase.endswith("is not installed")])


def listing(names: list[str]) -> str:
    """Names as a sentence has them."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def passed_through(error: BaseException | None) -> set[str]:
    """The top-level modules that an error and its causes name or came through."""
    found: set[str] = set()
    while error is not None:
        if isinstance(error, ImportError) and error.name:
            found.add(error.name.partition(".")[0])
        step = error.__traceback__
        while step is not None:
            found.add(step.tb_frame.f_globals.get("__name__", "").partition(".")[0])
            step = step.tb_next
        error = error.__cause__ or error.__context__
    return found


def root(error: BaseException) -> BaseException:
    """The first cause of an error."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _module(requirement: Requirement) -> str:
    return _MODULES.get(requirement.name.lower(), requirement.name.lower().replace("-", "_"))


def _broken(present: list[Requirement], absent: set[str]) -> list[Damage]:
    """Distributions that are there but cannot be imported, without those that fail only because another one does."""
    errors: dict[str, tuple[Requirement, BaseException]] = {}
    for requirement in present:
        try:
            import_module(_module(requirement))
        except (Exception, SystemExit) as error:  # a missing shared library is an OSError, a wrong one an ImportError, an old NumPy an AttributeError
            errors[_module(requirement)] = requirement, error
    first = [found for module, found in errors.items() if not passed_through(found[1]) & (absent | set(errors)) - {module}]
    if not first and not absent:  # each fails in the other
        first = list(errors.values())
    return [_damage(requirement, error) for requirement, error in first]


def _damage(requirement: Requirement, error: BaseException) -> Damage:
    cause = f"{requirement.name} {installed(requirement.name)} is installed but cannot be imported: {one_line(error)}"
    lacking = (getattr(root(error), "name", None) or "").partition(".")[0]
    if isinstance(root(error), ModuleNotFoundError) and lacking and lacking != _module(requirement):
        return Damage(cause, f"{_PIP} check names the package that {requirement.name} lacks; install that", (_module(requirement),))
    again = f"{_PIP} install --force-reinstall --no-deps '{requirement.name}{requirement.specifier}'"
    return Damage(cause, f"install it again, from the index that it came from: {again}", (_module(requirement),))
