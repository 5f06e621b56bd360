"""Finds and reads ALFWorld's game files: the packed folder, a tree as ``alfworld-download`` makes it, or single files."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import zlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from threespo_bench.errors import DataError, UsageError, suggest
from threespo_envs.alfred.game import Game
from threespo_envs.alfred.pddl import parse_problem

SPLITS = ("train", "valid_seen", "valid_unseen", "valid_train")
ALIASES = {"eval_in_distribution": "valid_seen", "eval_out_of_distribution": "valid_unseen"}
TASK_TYPES = (
    "look_at_obj_in_light",
    "pick_and_place_simple",
    "pick_clean_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_two_obj_and_place",
)

_GAME_SUFFIX = ".tw-pddl"
_HOW_TO_GET = "run `alfworld-download` (pip install alfworld), or set env.games=PATH to a folder with the games"
_ID_AT_START = re.compile(rb'\{"id": "([\w./-]+)"')
_SENTENCE = re.compile(r"Your task is to: ([^\"\n]*)")
_UNSOLVABLE = re.compile(rb'"solvable":\s*false')
_LEFT_OUT = ("movable", "Sliced")  # ALFRED's tasks that ALFWorld's benchmark leaves out, by their folder's name


def canonical_split(name: str) -> str:
    """The split's name proper, from a name or an alias."""
    name = ALIASES.get(name, name)
    if name not in SPLITS:
        raise UsageError(f"alfworld has no split {name!r}", suggest(name, (*SPLITS, *ALIASES)))
    return name


@dataclass(frozen=True, slots=True)
class Record:
    """One game that was found. ``payload`` is all that is needed to load it in any process: its compressed data or its file's path."""

    game_id: str
    kind: str
    payload: bytes | str


class GameSource(ABC):
    """Some games by split. Splits are read when they are first asked for."""

    def __init__(self) -> None:
        self._records: dict[str, list[Record]] = {}

    def records(self, split: str) -> list[Record]:
        """The games of a split, sorted by id."""
        if split not in self._records:
            records = sorted(self._read(split), key=lambda record: record.game_id)
            for first, second in pairwise(records):
                if first.game_id == second.game_id:
                    raise DataError(f"{self}: two games of split {split} have the id {first.game_id}", _HOW_TO_GET)
            self._records[split] = records
        return self._records[split]

    @abstractmethod
    def splits(self) -> tuple[str, ...]:
        """The splits that are there."""

    @abstractmethod
    def digest(self) -> str:
        """SHA-256 over ids and contents of all splits."""

    @abstractmethod
    def _read(self, split: str) -> Iterator[Record]: ...

    def _require(self, split: str) -> None:
        if split not in self.splits():
            raise DataError(f"{self}: there is no split {split}, only {', '.join(self.splits())}", _HOW_TO_GET)


class PackedGames(GameSource):
    """A folder with one ``<split>.jsonl.xz`` a split, one game a line.

    The lines are kept compressed one by one, so that a game can be loaded alone and the 191 MB of the train split never stay in memory.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __str__(self) -> str:
        return str(self.folder)

    def splits(self) -> tuple[str, ...]:
        return tuple(split for split in SPLITS if self._file(split).is_file())

    def digest(self) -> str:
        digest = hashlib.sha256()
        for split in self.splits():
            digest.update(f"{split} {hashlib.sha256(_read_bytes(self._file(split))).hexdigest()}\n".encode())
        return digest.hexdigest()

    def _file(self, split: str) -> Path:
        return self.folder / f"{split}.jsonl.xz"

    def _read(self, split: str) -> Iterator[Record]:
        self._require(split)
        file = self._file(split)
        number = 0
        try:
            with lzma.open(file, "rb") as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        game_id = _id_of_line(line, f"{file}, line {number}")
                        yield Record(game_id, _kind_of_id(game_id), zlib.compress(line, 1))
        except (lzma.LZMAError, EOFError, OSError) as error:
            raise DataError(f"{file} cannot be read after line {number}: {error}", _HOW_TO_GET) from error


class GameFiles(GameSource):
    """Folders with ``.tw-pddl`` files, one folder or file for each split."""

    def __init__(self, roots: dict[str, Path]) -> None:
        super().__init__()
        self.roots = roots
        self._digests: dict[str, str] = {}

    def __str__(self) -> str:
        return str(next(iter(self.roots.values())))

    def splits(self) -> tuple[str, ...]:
        return tuple(split for split in SPLITS if split in self.roots)

    def digest(self) -> str:
        digest = hashlib.sha256()
        for split in self.splits():
            for record in self.records(split):
                digest.update(f"{split}/{record.game_id} {self._digests[str(record.payload)]}\n".encode())
        return digest.hexdigest()

    def _read(self, split: str) -> Iterator[Record]:
        self._require(split)
        root = self.roots[split]
        for file in _game_files(root):
            game_id = _id_of_file(file, root)
            if any(word in game_id for word in _LEFT_OUT):
                continue
            data = _read_bytes(file)
            if _UNSOLVABLE.search(data):
                continue
            self._digests[str(file)] = hashlib.sha256(data).hexdigest()
            kind = _kind_of_id(game_id) or _game_of_file(game_id, data, file).goal.task_type
            yield Record(game_id, kind, str(file))


def open_games(path: str | None) -> GameSource:
    """The games at ``path``, or at ``$ALFWORLD_DATA`` if that is None."""
    given = path or os.environ.get("ALFWORLD_DATA")
    if not given:
        raise DataError("no ALFWorld games are configured: neither env.games nor $ALFWORLD_DATA is set", _HOW_TO_GET)
    root = Path(given).expanduser()
    if not root.exists():
        raise DataError(f"the ALFWorld games are not there: {root} does not exist", _HOW_TO_GET)
    if root.is_file():
        return GameFiles(dict.fromkeys(SPLITS, root))
    if any((root / f"{split}.jsonl.xz").is_file() for split in SPLITS):
        return PackedGames(root)
    return GameFiles(_split_roots(root))


def _split_roots(root: Path) -> dict[str, Path]:
    """Where each split lies: in a data tree, in a folder of split folders, or, for loose games, the one folder for every split."""
    for parent in (root / "json_2.1.1", root):
        roots = {split: parent / split for split in SPLITS if (parent / split).is_dir()}
        if roots:
            return roots
    if next(_game_files(root), None) is None:
        raise DataError(f"{root} holds no ALFWorld games (*.jsonl.xz, or folders with game.tw-pddl)", _HOW_TO_GET)
    return {root.name: root} if root.name in SPLITS else dict.fromkeys(SPLITS, root)


def _game_files(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    for folder, subfolders, files in os.walk(root):
        subfolders.sort()
        yield from (Path(folder, name) for name in sorted(files) if name.endswith(_GAME_SUFFIX))


def _id_of_file(file: Path, root: Path) -> str:
    """``task folder/trial`` for a file in ALFWorld's layout, as the packed games name it; else the path below ``root``."""
    inner = file.parent if file.name == "game" + _GAME_SUFFIX else file.with_name(file.name.removesuffix(_GAME_SUFFIX))
    if root == file:
        return f"{inner.parent.name}/{inner.name}" if inner == file.parent else inner.name
    relative = inner.relative_to(root)
    return relative.as_posix() if relative.parts else inner.name


def _id_of_line(line: bytes, where: str) -> str:
    found = _ID_AT_START.match(line)
    if found:
        return found[1].decode()
    game_id = _read_object(line, where).get("id")
    if not isinstance(game_id, str) or not game_id:
        raise DataError(f"{where}: the game has no id", _HOW_TO_GET)
    return game_id


def _kind_of_id(game_id: str) -> str:
    """The task type that an id begins with, or "" if it does not name one."""
    kind = game_id.partition("-")[0]
    return kind if kind in TASK_TYPES else ""


def _read_bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}", _HOW_TO_GET) from error


def _read_object(data: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON: {error}", _HOW_TO_GET) from error
    if not isinstance(value, dict):
        raise DataError(f"{where}: not a game", _HOW_TO_GET)
    return value


def _game_of_line(game_id: str, payload: bytes) -> Game:
    where = f"game {game_id}"
    try:
        line = zlib.decompress(payload)
    except zlib.error as error:
        raise DataError(f"{where}: its data are damaged: {error}", _HOW_TO_GET) from error
    data = _read_object(line, where)
    return _game(game_id, data, data.get("task"), where)


def _game_of_file(game_id: str, content: bytes, file: Path) -> Game:
    data = _read_object(content, str(file))
    grammar = data.get("grammar")
    found = _SENTENCE.search(grammar) if isinstance(grammar, str) else None
    if not found:
        raise DataError(f"{file}: its grammar states no task", _HOW_TO_GET)
    return _game(game_id, data, found[1], str(file))


def _game(game_id: str, data: dict[str, Any], sentence: object, where: str) -> Game:
    problem = data.get("pddl_problem")
    walkthrough = data.get("walkthrough") or []
    for name, value in (("pddl_problem", problem), ("task sentence", sentence)):
        if not isinstance(value, str):
            raise DataError(f"{where}: the {name} is missing or no text", _HOW_TO_GET)
    if not isinstance(walkthrough, list) or not all(isinstance(command, str) for command in walkthrough):
        raise DataError(f"{where}: the walkthrough is no list of commands", _HOW_TO_GET)
    return parse_problem(str(problem), game_id=game_id, sentence=str(sentence), walkthrough=walkthrough)


class GameCache:
    """Parsed games, the most recently used of them; shared by the live episodes of an environment."""

    def __init__(self, capacity: int = 256) -> None:
        self.capacity = capacity
        self._games: OrderedDict[str, Game] = OrderedDict()

    def load(self, key: str, game_id: str, payload: bytes | str) -> Game:
        """The game that a record's payload holds."""
        game = self._games.get(key)
        if game is None:
            if isinstance(payload, bytes):
                game = _game_of_line(game_id, payload)
            else:
                game = _game_of_file(game_id, _read_bytes(Path(payload)), Path(payload))
            self._games[key] = game
            if len(self._games) > self.capacity:
                self._games.popitem(last=False)
        else:
            self._games.move_to_end(key)
        return game
