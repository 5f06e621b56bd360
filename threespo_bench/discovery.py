"""Which plugins are installed, and from which distribution each one comes; nothing is imported here.

Everything that Python would settle by the order of ``sys.path`` (two distributions with one entry-point name, one distribution
installed in two places) is found here and named, because what then runs would depend on the order of installation.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import unquote, urlsplit

from threespo_bench.errors import UsageError

GROUP = "threespo_bench"
REPLACE_VARIABLE = "THREESPO_BENCH_REPLACE"
IN_MEMORY = "(in memory)"


@dataclass(frozen=True)
class Source:
    """One entry point of an installed distribution.

    Attributes:
        distribution, version: its owner.
        entry_point: the name in the entry-point group. module: what it points to.
        location: the folder the distribution's code is imported from.
    """

    distribution: str
    version: str
    entry_point: str
    module: str
    location: str = ""

    @property
    def owner(self) -> str:
        """The distribution and its version, as messages name it."""
        return f"{self.distribution} {self.version}".strip()


@dataclass(frozen=True)
class Choice:
    """One part of the replacement setting: of all owners of ``key`` (``kind:name``), ``winner`` is meant."""

    key: str
    winner: str

    def picks(self, source: Source) -> bool:
        """True if ``source`` is the one meant, by its distribution or by its location."""
        return normal_name(self.winner) == normal_name(source.distribution) or (bool(source.location) and self.winner == source.location)


def installed(paths: list[str] | None = None) -> list[Source]:
    """Every entry point of the group, in the order of ``sys.path``. One that is visible twice from one place is given once."""
    found: dict[tuple[str, str, str], Source] = {}
    for distribution in distributions() if paths is None else distributions(path=paths):
        for source in _sources(distribution):
            found.setdefault((normal_name(source.distribution), source.entry_point, source.location), source)
    return list(found.values())


def _sources(distribution: Distribution) -> list[Source]:
    try:
        points = [point for point in distribution.entry_points if point.group == GROUP]
        if not points:
            return []
        name, version = distribution.metadata["Name"] or "(unnamed)", distribution.version or "?"
    except Exception:  # damaged metadata of a distribution that need not have anything to do with us
        return []
    location = _location(distribution)
    return [Source(name, version, point.name, point.value, location) for point in points]


def _location(distribution: Distribution) -> str:
    """The project folder of an editable installation, else the folder that holds the metadata."""
    try:
        url = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        url = {}
    if url.get("dir_info", {}).get("editable") and url.get("url", "").startswith("file:"):
        return os.path.realpath(unquote(urlsplit(url["url"]).path))
    return os.path.realpath(str(distribution.locate_file("")))


def settle(sources: Iterable[Source], choices: Mapping[str, Choice]) -> tuple[list[Source], list[str], dict[str, Source]]:
    """Keep one source per entry-point name.

    Returns:
        the sources to load, sorted by distribution and entry point; a message for every name with several owners and no choice;
        and the winners of choices, by ``plugins:NAME``.
    """
    by_name: dict[str, list[Source]] = {}
    for source in sources:
        owners = by_name.setdefault(source.entry_point, [])
        if not any(_same_place(source, other) for other in owners):
            owners.append(source)
    kept, conflicts, winners = [], [], {}
    for name, owners in by_name.items():
        choice = choices.get(f"plugins:{name}")
        chosen = [source for source in owners if choice and choice.picks(source)]
        if len(owners) == 1:
            kept += owners
        elif len(chosen) == 1:
            kept += chosen
            winners[f"plugins:{name}"] = chosen[0]
        else:
            conflicts.append(_conflict(name, owners))
    kept.sort(key=lambda source: (normal_name(source.distribution), source.entry_point))
    return kept, sorted(set(conflicts)), winners


def _same_place(one: Source, other: Source) -> bool:
    """An editable installation and the metadata that its build left in the project folder are one thing seen twice."""
    if normal_name(one.distribution) != normal_name(other.distribution):
        return False
    a, b = Path(one.location), Path(other.location)
    return a.is_relative_to(b) or b.is_relative_to(a)


def _conflict(name: str, owners: list[Source]) -> str:
    if len({normal_name(source.distribution) for source in owners}) == 1:
        places = " and ".join(sorted(f"{source.version} in {source.location}" for source in owners))
        return f"{owners[0].distribution} is installed {len(owners)} times: {places}"
    return f"the plugin name {name!r} is used by {' and by '.join(sorted(source.owner for source in owners))}"


def read_choices(text: str | None = None) -> dict[str, Choice]:
    """Parse ``kind:name=distribution,...``, by default from the environment variable.

    Raises:
        UsageError: a part has another form.
    """
    text = os.environ.get(REPLACE_VARIABLE, "") if text is None else text
    choices = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, winner = (piece.strip() for piece in part.partition("="))
        kind, colon, name = key.partition(":")
        if not (equals and colon and kind and name and winner):
            raise UsageError(f"{REPLACE_VARIABLE}: {part!r} has not the form kind:name=distribution", fix="for example algorithms:grpo=my-package")
        choices[key] = Choice(key, winner)
    return choices


def normal_name(distribution: str) -> str:
    """A distribution's name as package indexes compare it."""
    return distribution.lower().replace("_", "-").replace(".", "-")
