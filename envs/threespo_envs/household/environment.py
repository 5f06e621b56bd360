"""The household environment: procedural games of the ALFWorld domain; no data, no dependency, any number of tasks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from threespo_bench.contracts.environment import Task
from threespo_bench.errors import UsageError, suggest
from threespo_envs.alfred import prompts
from threespo_envs.alfred.environment import AlfredConfig, AlfredEnvironment
from threespo_envs.alfred.game import Game
from threespo_envs.alfred.world import RULES_VERSION
from threespo_envs.household.generator import SPLITS, TASK_TYPES, VERSION, Shape, household_game, task_type_of

_DEMONSTRATIONS = 4096


@dataclass
class HouseholdConfig(AlfredConfig):
    """Options of the household environment.

    Attributes:
        receptacles_min: the least number of places in a room, from 6.
        receptacles_max: the greatest, up to 30.
        train_tasks: how many tasks the split ``train`` has.
        eval_tasks: how many each of ``valid_seen`` (rooms of the training split, other arrangements and goals) and ``valid_unseen``
            (other rooms) has.
        task_types: the types of task; None for all six.
        house_seed: another seed gives other rooms and other tasks.
    """

    receptacles_min: int = 10
    receptacles_max: int = 14
    train_tasks: int = 256
    eval_tasks: int = 128
    task_types: list[str] | None = None
    house_seed: int = 0


class HouseholdEnvironment(AlfredEnvironment):
    """Generated households. A task is its key: the same key is the same game in every process, given the configuration."""

    Config: ClassVar[type] = HouseholdConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        prompts.template_named(config.template)
        for name in ("train_tasks", "eval_tasks"):
            if getattr(config, name) < 1:
                raise UsageError(f"{name} is {getattr(config, name)}", "give at least 1")
        self.shape = Shape(
            receptacles_min=config.receptacles_min,
            receptacles_max=config.receptacles_max,
            house_seed=config.house_seed,
            task_types=TASK_TYPES if config.task_types is None else tuple(config.task_types),
        )
        self._sizes = {
            "train": config.train_tasks,
            "valid_seen": config.eval_tasks,
            "valid_unseen": config.eval_tasks,
            "demonstrations": _DEMONSTRATIONS,
        }

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split, the task types taking turns."""
        if split not in self._sizes:
            raise UsageError(f"household has no split {split!r}", suggest(split, SPLITS))
        return [self.task(split, index) for index in range(self._sizes[split])]

    def task(self, split: str, index: int) -> Task:
        """Task ``index`` of a split, which may lie beyond the size that :meth:`tasks` goes to."""
        return Task(f"household/{split}/{index:05d}", task_type_of(self.shape, index), split)

    def load_game(self, task: Task) -> Game:
        """The game that a task's key names."""
        head, split, number = [*task.key.split("/"), "", ""][:3]
        if head != "household" or split not in SPLITS or not number.isdecimal():
            raise UsageError(f"{task.key!r} is no task of the household environment", "its tasks are named like household/train/00017")
        return _game(self.shape, split, int(number))

    def digest(self) -> str:
        """Of the versions of generator and rules, the shape of the houses and the prompt."""
        config = self.config
        template = prompts.template_named(config.template)
        parts = (VERSION, RULES_VERSION, self.shape, template.version, config.history_length, config.list_admissible)
        return hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()


@lru_cache(maxsize=2048)
def _game(shape: Shape, split: str, index: int) -> Game:
    return household_game(shape, split, index)
