"""Plugins that cost nothing: one contribution of every kind, for tests of the host, the configuration and the command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType
from typing import ClassVar

from threespo_bench.contracts import entries
from threespo_bench.contracts.algorithm import AlgorithmConfig
from threespo_bench.errors import UsageError
from threespo_bench.hookspecs import hookimpl
from threespo_bench.host import PluginHost


@dataclass
class ToyAlgorithmConfig(AlgorithmConfig):
    """Options of the toy.

    Attributes:
        group_size: rollouts per task, at least 2.
        words, weights: a list and a mapping.
        limit: an optional number. share: a fraction.
    """

    group_size: int = 4
    words: tuple[str, ...] = ("a", "b")
    weights: dict[str, float] = field(default_factory=dict)
    limit: int | None = None
    share: float | None = 0.5
    renamed: ClassVar[dict[str, str]] = {"group": "group_size", "magic": ""}

    def validate(self) -> None:
        super().validate()
        if self.group_size < 2:
            raise UsageError(f"algorithm.group_size={self.group_size} is out of range: must be >= 2")


class ToyAlgorithm:
    """Never run."""

    Config = ToyAlgorithmConfig


@dataclass
class ToyEnvironmentConfig:
    """Attributes:
    rooms: how many.
    games: a folder.
    """

    rooms: int = 1
    games: str | None = None


class ToyEnvironment:
    """Never run."""

    Config = ToyEnvironmentConfig


@dataclass(frozen=True)
class ToyEngineConfig:
    """A frozen one."""

    device: str = "cpu"


class ToyEngine:
    """Never run."""

    Config = ToyEngineConfig


@dataclass
class NoOptions:
    """No options at all."""


class ToyTracker:
    """Never run."""

    Config = NoOptions


class ToyLauncher:
    """Never run."""

    Config = NoOptions


def model_path() -> str:
    """No such folder."""
    return "/nowhere"


def plugin(name: str = "toys", **hooks: object) -> ModuleType:
    """A plugin module; each hook answers with the given entries."""

    def implement(name: str, answer: object) -> object:
        def hook() -> object:
            return answer() if callable(answer) else answer

        hook.__name__ = name
        return hookimpl(hook)

    made = ModuleType(name)
    for hook_name, answer in hooks.items():
        setattr(made, f"threespo_{hook_name}", implement(f"threespo_{hook_name}", answer))
    return made


def toy_plugin() -> ModuleType:
    """One contribution of every kind; ``toy`` is aliased ``3toy``."""
    return plugin(
        algorithms=[
            entries.AlgorithmEntry("toy", "tests.toys:ToyAlgorithm", "a toy", ("3toy",), defaults="tests.config:toy.yaml"),
            entries.AlgorithmEntry("bare", "tests.toys:ToyAlgorithm", "the same without a file"),
        ],
        environments=[
            entries.EnvironmentEntry("household", "tests.toys:ToyEnvironment", "a toy"),
            entries.EnvironmentEntry("rooms", "tests.toys:ToyEnvironment", "a toy with a file", defaults="tests.config:toy_env.yaml"),
        ],
        engines=[entries.EngineEntry("embedded", "tests.toys:ToyEngine", "a toy")],
        rollouts=[entries.RolloutEntry("hf", "threespo_bench.contracts.rollout:OwnSampling", "a toy")],
        trackers=[entries.TrackerEntry("mlflow", "tests.toys:ToyTracker", "a toy"), entries.TrackerEntry("none", "tests.toys:ToyTracker", "a toy")],
        launchers=[entries.LauncherEntry("local", "tests.toys:ToyLauncher", "a toy")],
        models=[entries.ModelEntry("household_tiny", "tests.toys:model_path", "a toy", ("household-tiny",))],
    )


def toy_host() -> PluginHost:
    """A host with the toys and nothing else."""
    return PluginHost.from_plugins([toy_plugin()])
