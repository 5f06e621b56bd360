"""A comparison written down as a YAML file: what it may hold, read with the line of everything that is wrong.

name: group-size                 # the experiment's folder; by default the name of the file
algorithms:                      # names, NAME@PRESET, or mappings
  - 3spo
  - grpo@dr_grpo
  - {name: grpo, label: large groups, overrides: {algorithm.group_size: 16}}
environments: [household]        # by default household
seeds: 0..4                      # by default 0..2; also a number or a list
budget: {env_steps: 16000}
overrides: {evaluation.episodes: 64}
baseline: grpo
jobs: 2
launcher: {name: ray, gpus: 1}   # by default local
out: runs
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from threespo_bench.budget import Limits
from threespo_bench.errors import UsageError, suggest
from threespo_bench.experiment_plan import Variant

_KEYS = ("name", "algorithms", "environments", "seeds", "budget", "overrides", "baseline", "jobs", "launcher", "out")
_ALGORITHM_KEYS = ("name", "preset", "label", "overrides")
_PLAIN = re.compile(r"[A-Za-z0-9_./:-]+")
_WORDS = ("true", "false", "null", "nan", "inf")


@dataclass(frozen=True)
class ExperimentFile:
    """What a file says; what it leaves open is empty or None.

    Attributes:
        name: the experiment. algorithms: with what only their runs get. environments, seeds: as lists. budget, overrides: override texts for every run.
        baseline, jobs, out: as the options of ``compare``. launcher: overrides that choose it.
    """

    name: str
    algorithms: tuple[Variant, ...]
    environments: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    budget: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    baseline: str | None = None
    jobs: int | None = None
    launcher: tuple[str, ...] = ()
    out: str | None = None


def read_experiment_file(path: Path) -> ExperimentFile:
    """Read and check a file.

    Raises:
        UsageError: it cannot be read, or a key or value is wrong; names the file and the line.
    """
    data, lines = _load(path)
    reader = _Reader(path, lines)
    reader.keys(data, (), _KEYS)
    if not data.get("algorithms"):
        raise reader.wrong(("algorithms",), "no algorithms are named", "add algorithms: [NAME, NAME]; threespo-bench list shows them")
    return ExperimentFile(
        name=reader.text(data, "name") or path.stem,
        algorithms=tuple(reader.variant(value, ("algorithms", i)) for i, value in enumerate(reader.sequence(data, "algorithms"))),
        environments=tuple(reader.word(value, ("environments", i)) for i, value in enumerate(reader.sequence(data, "environments"))),
        seeds=tuple(reader.seeds(data.get("seeds"))),
        budget=tuple(reader.budget(data.get("budget"))),
        overrides=tuple(reader.overrides(data.get("overrides"), ("overrides",))),
        baseline=reader.text(data, "baseline"),
        jobs=reader.jobs(data.get("jobs")),
        launcher=tuple(reader.launcher(data.get("launcher"))),
        out=reader.text(data, "out"),
    )


def override_text(key: str, value: Any) -> str:
    """``key=value`` as the command line takes it; a text that would be read as something else is quoted."""
    return f"{key}={_written(value)}"


Place = tuple[str | int | float, ...]


class _Reader:
    """Checks the values of one file; messages name the file and the line."""

    def __init__(self, path: Path, lines: Mapping[Place, int]) -> None:
        self._path, self._lines = path, lines

    def wrong(self, place: Place, message: str, fix: str = "") -> UsageError:
        """The error for what stands at ``place``, or nearest above it."""
        line = next((self._lines[place[:end]] for end in range(len(place), -1, -1) if place[:end] in self._lines), 1)
        return UsageError(f"{self._path}, line {line}: {message}", fix)

    def keys(self, value: Any, place: Place, known: Sequence[str]) -> None:
        """Refuse anything but a mapping with known keys."""
        if not isinstance(value, dict):
            raise self.wrong(place, f"a mapping is needed, not {_shown(value)}", f"its keys are {', '.join(known)}")
        for key in value:
            if key not in known:
                raise self.wrong((*place, key), f"unknown key {key!r}", suggest(str(key), known))

    def text(self, data: Mapping[str, Any], key: str) -> str | None:
        """A text, or None if it is not there."""
        return None if data.get(key) is None else self.word(data[key], (key,))

    def word(self, value: Any, place: Place) -> str:
        """A text that is not empty; numbers are taken as they are written."""
        if isinstance(value, bool) or not isinstance(value, (str, int, float)) or not str(value).strip():
            raise self.wrong(place, f"a name is needed, not {_shown(value)}")
        return str(value).strip()

    def sequence(self, data: Mapping[str, Any], key: str) -> list[Any]:
        """A list; one value alone is a list of it."""
        value = data.get(key)
        if isinstance(value, dict):
            raise self.wrong((key,), f"{key} must be a list, not a mapping", "write '- ' before each of them")
        return value if isinstance(value, list) else [] if value is None else [value]

    def variant(self, value: Any, place: Place) -> Variant:
        """An algorithm, by name or as a mapping."""
        if not isinstance(value, dict):
            name, preset = self._preset(self.word(value, place), place)
            return Variant(name, preset)
        self.keys(value, place, _ALGORITHM_KEYS)
        if not value.get("name"):
            raise self.wrong(place, "the algorithm has no name", "add name: NAME; threespo-bench list shows them")
        name, preset = self._preset(self.word(value["name"], (*place, "name")), place)
        if value.get("preset") is not None:
            if preset:
                raise self.wrong((*place, "preset"), "the preset is given twice, after '@' and as preset:")
            preset = (override_text("algorithm.preset", self.word(value["preset"], (*place, "preset"))),)
        label = "" if value.get("label") is None else self.word(value["label"], (*place, "label"))
        return Variant(name, (*preset, *self.overrides(value.get("overrides"), (*place, "overrides"))), label)

    def _preset(self, text: str, place: Place) -> tuple[str, tuple[str, ...]]:
        name, at, preset = text.partition("@")
        if not name or (at and not preset):
            raise self.wrong(place, f"{text!r} is neither NAME nor NAME@PRESET")
        return name, (override_text("algorithm.preset", preset),) if at else ()

    def seeds(self, value: Any) -> list[int]:
        """A number, a list of numbers, or a text like ``0..4,7``."""
        from threespo_bench.cli.overrides import seeds

        if value is None:
            return []
        parts = value if isinstance(value, list) else [value]
        if not parts or any(isinstance(part, (bool, float, dict, list)) or part is None for part in parts):
            raise self.wrong(("seeds",), f"seeds are whole numbers, not {_shown(value)}", "write seeds: 0..4 or seeds: [0, 3, 5]")
        try:
            return seeds(",".join(str(part) for part in parts))
        except UsageError as error:
            raise self.wrong(("seeds",), str(error).replace("--seeds ", "seeds: ", 1), "write seeds: 0..4 or seeds: [0, 3, 5]") from error

    def budget(self, value: Any) -> Iterator[str]:
        """Limits by name, as overrides."""
        if value is None:
            return
        known = [limit.name for limit in fields(Limits)]
        self.keys(value, ("budget",), known)
        for name, limit in value.items():
            yield override_text(f"budget.{name}", limit)

    def jobs(self, value: Any) -> int | None:
        """A positive whole number, or None."""
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise self.wrong(("jobs",), f"jobs must be a whole number of at least 1, not {_shown(value)}")
        return value

    def launcher(self, value: Any) -> Iterator[str]:
        """A name, or a mapping of options with the name among them, as overrides."""
        if value is None:
            return
        options = value if isinstance(value, dict) else {"name": value}
        if "name" in options:
            yield override_text("launcher", self.word(options["name"], ("launcher", "name")))
        yield from self._nested({key: item for key, item in options.items() if key != "name"}, ("launcher",), "launcher.")

    def overrides(self, value: Any, place: Place) -> list[str]:
        """Overrides as a mapping of keys, nested or dotted, or as a list of ``key=value``."""
        if value is None:
            return []
        if isinstance(value, dict):
            return list(self._nested(value, place, ""))
        if not isinstance(value, list):
            raise self.wrong(place, f"overrides are a mapping of keys or a list of key=value, not {_shown(value)}")
        for number, text in enumerate(value):
            if not isinstance(text, str) or "=" not in text:
                raise self.wrong((*place, number), f"{_shown(text)} is no override: it has no '='", "write key=value")
        return value

    def _nested(self, value: Mapping[Any, Any], place: Place, prefix: str) -> Iterator[str]:
        for key, item in value.items():
            if not isinstance(key, str) or "=" in key or not key:
                raise self.wrong((*place, key), f"{_shown(key)} is no key of an option")
            if isinstance(item, dict) and item:
                yield from self._nested(item, (*place, key), f"{prefix}{key}.")
            else:
                yield override_text(prefix + key, item)


def _load(path: Path) -> tuple[dict[str, Any], dict[Place, int]]:
    """The content and the line of every key and item."""
    try:
        loader = yaml.SafeLoader(path.read_text(encoding="utf-8"))
        try:
            node = loader.get_single_node()
            lines: dict[Place, int] = {}
            data = {} if node is None else _value(loader, node, (), lines, path)
        finally:
            loader.dispose()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the experiment file {path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UsageError(f"{path}{line}: no valid YAML: {getattr(error, 'problem', None) or ' '.join(str(error).split())}") from error
    return data, lines


def _value(loader: yaml.SafeLoader, node: yaml.Node, place: Place, lines: dict[Place, int], path: Path) -> Any:
    lines.setdefault(place, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        return [_value(loader, item, (*place, number), lines, path) for number, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return loader.construct_object(node)
    made: dict[Any, Any] = {}
    written = [(key.value, key.start_mark.line + 1) for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
    for number, (key, line) in enumerate(written):
        if key in [earlier for earlier, _ in written[:number]]:
            raise UsageError(f"{path}, line {line}: the key {key!r} comes twice")
    loader.flatten_mapping(node)
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, (str, int, float, bool)):
            raise UsageError(f"{path}, line {key_node.start_mark.line + 1}: a key must be a word")
        lines[(*place, key)] = key_node.start_mark.line + 1
        made[key] = _value(loader, value_node, (*place, key), lines, path)
    return made


def _written(value: Any) -> str:
    """A value in the grammar of overrides."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(_written(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_written(item)}" for key, item in value.items()) + "}"
    text = str(value)
    if not isinstance(value, str) or _is_number(text) or (_PLAIN.fullmatch(text) and text.lower() not in _WORDS):
        return text
    escaped = re.sub(r'(\\*)"', r'\1\1\\"', text)  # as Hydra's grammar wants it: backslashes count only before a quote
    trailing = len(text) - len(text.rstrip("\\"))
    return f'"{escaped}{chr(92) * trailing}"'


def _is_number(text: str) -> bool:
    """YAML reads 1e-4 as a text, which nobody means."""
    try:
        float(text)
    except ValueError:
        return False
    return text.strip() == text and text.lower() not in ("nan", "inf", "infinity")


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    return "nothing" if value is None else repr(value)
