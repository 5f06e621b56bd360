"""The ALFWorld text games, played by our own engine from the benchmark's game files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import ClassVar

from threespo_bench.contracts.environment import Task
from threespo_bench.errors import DataError, UsageError
from threespo_envs.alfred import prompts
from threespo_envs.alfred.environment import AlfredConfig, AlfredEnvironment
from threespo_envs.alfred.game import Game
from threespo_envs.alfred.world import RULES_VERSION
from threespo_envs.alfworld.games import GameCache, GameSource, canonical_split, open_games


@dataclass
class AlfworldConfig(AlfredConfig):
    """Options of the ``alfworld`` environment.

    Attributes:
        games: where the games are: a folder with ``<split>.jsonl.xz`` files, a data tree with ``json_2.1.1/<split>/`` (or the folder
            with the splits in it), a folder of ``.tw-pddl`` files or one such file. None means ``$ALFWORLD_DATA``. Loose games belong
            to every split.
        max_games: play only so many games of each split, the first by id.
    """

    games: str | None = None
    max_games: int | None = None


class AlfworldEnvironment(AlfredEnvironment):
    """ALFWorld's games. The splits are ``train``, ``valid_seen`` (also ``eval_in_distribution``), ``valid_unseen`` (also
    ``eval_out_of_distribution``) and ``valid_train``."""

    Config: ClassVar[type] = AlfworldConfig

    def __init__(self, config: AlfworldConfig) -> None:
        super().__init__(config)
        if config.max_games is not None and config.max_games < 1:
            raise UsageError(f"env.max_games must be at least 1, not {config.max_games}")
        self._shared = _Shared(config.games)

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split, sorted by key. A key is ``split/game id``, under the split's own name also where an alias was used."""
        name = canonical_split(split)
        records = self._shared.source.records(name)[: self.config.max_games]
        if not records:
            raise DataError(f"{self._shared.source}: split {name} has no games")
        return [Task(f"{name}/{record.game_id}", record.kind, name, payload=record.payload) for record in records]

    def load_game(self, task: Task) -> Game:
        """The parsed game. The task's payload holds it, so a worker that was sent the task reads no split."""
        payload = task.payload
        if payload is None:
            payload = self._payload_of(task)
        return self._shared.cache.load(task.key, task.key.partition("/")[2], payload)

    def digest(self) -> str:
        """SHA-256 of the games, the version of the rules that play them, and the prompt."""
        config = self.config
        prompt = (prompts.template_named(config.template).version, config.history_length, config.list_admissible)
        return sha256(repr((self._shared.source.digest(), RULES_VERSION, *prompt)).encode()).hexdigest()

    def _payload_of(self, task: Task) -> bytes | str:
        game_id = task.key.partition("/")[2]
        for record in self._shared.source.records(canonical_split(task.split)):
            if record.game_id == game_id:
                return record.payload
        raise DataError(f"{self._shared.source}: there is no game {game_id} in split {task.split}")


class _Shared:
    """What all live episodes of one configured environment share; opened when it is first needed."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.cache = GameCache()
        self._source: GameSource | None = None

    @property
    def source(self) -> GameSource:
        if self._source is None:
            self._source = open_games(self.path)
        return self._source
