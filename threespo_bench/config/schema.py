"""The configuration of one run, as typed data. Hydra composes it (:mod:`threespo_bench.config.compose`); its keys are the override keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from threespo_bench.budget import Limits
from threespo_bench.errors import UsageError


@dataclass
class Evaluation:
    """Evaluation on held-out tasks, the same tasks with the same sampling noise every time and for every algorithm.

    Attributes:
        every_env_steps: evaluate when training has spent this many more environment steps (and at the start and the end).
        episodes: number of tasks, the first ones of the split. split: a split of the environment.
        temperature: sampling temperature, ALFWorld's 0.4.
    """

    every_env_steps: int = 4000
    episodes: int = 128
    split: str = "valid_unseen"
    temperature: float = 0.4


@dataclass
class Checkpoint:
    """Checkpoints.

    Attributes:
        every_iterations: one at the end of every so many iterations. keep: how many of the newest stay.
    """

    every_iterations: int = 5
    keep: int = 2


@dataclass
class Component:
    """A chosen plugin and its options: ``name`` is the registered name, ``options`` an instance of its Config dataclass, ``preset`` where they began."""

    name: str
    options: Any
    preset: str = ""


@dataclass
class Model:
    """The policy's starting weights.

    Attributes:
        name: a registered model. path: a Hugging Face folder; wins over the name.
    """

    name: str = "household_tiny"
    path: str | None = None


@dataclass
class RunConfig:
    """One run, completely.

    Attributes:
        seed: of every random stream of the run. out: the runs folder. experiment: its subfolder, and the tracker's experiment.
        save_turns: keep every batch of turns as Parquet in the run folder. train_split: the split to train on.
    """

    algorithm: Component
    env: Component
    engine: Component
    rollout: Component
    tracker: Component
    model: Model = field(default_factory=Model)
    seed: int = 0
    out: str = "runs"
    experiment: str = "default"
    budget: Limits = field(default_factory=lambda: Limits(env_steps=16_000))
    evaluation: Evaluation = field(default_factory=Evaluation)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    save_turns: bool = False
    train_split: str = "train"

    def validate(self) -> None:
        """Raises UsageError naming the key for a value out of range."""
        self.budget.validate()
        for component in (self.algorithm, self.env, self.engine, self.rollout, self.tracker):
            check = getattr(component.options, "validate", None)
            if check is not None:
                check()
        checks = {
            "seed": (self.seed, self.seed >= 0, ">= 0"),
            "evaluation.every_env_steps": (self.evaluation.every_env_steps, self.evaluation.every_env_steps >= 1, ">= 1"),
            "evaluation.episodes": (self.evaluation.episodes, self.evaluation.episodes >= 1, ">= 1"),
            "evaluation.temperature": (self.evaluation.temperature, self.evaluation.temperature >= 0, ">= 0"),
            "checkpoint.every_iterations": (self.checkpoint.every_iterations, self.checkpoint.every_iterations >= 1, ">= 1"),
            "checkpoint.keep": (self.checkpoint.keep, self.checkpoint.keep >= 1, ">= 1"),
        }
        for key, (value, good, allowed) in checks.items():
            if not good:
                raise UsageError(f"{key}={value} is out of range: must be {allowed}")
