"""Making household-tiny from nothing: supervised learning on demonstrations, first of an expert, then of an expert who hesitates.

The hesitation is deliberate. A model that copies a good expert well leaves reinforcement learning nothing to do; one that copies it badly
does not know the commands, and small updates break what little it knows. Taught in two stages, it knows what to do and wastes its turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from threespo_bench.errors import UsageError
from threespo_envs.alfred.vocabulary import vocabulary
from threespo_envs.household.demonstrations import demonstrations
from threespo_envs.household.environment import HouseholdConfig, HouseholdEnvironment
from threespo_plugins.models.supervised import Lesson, Progress, SmallModelOptions, make_small_model


@dataclass
class WarmStartOptions(SmallModelOptions):
    """How household-tiny is made.

    Attributes:
        episodes: demonstrations of the first stage, each used once; they teach what the expert does.
        hesitant_episodes: demonstrations of the second stage; they teach to hesitate too. hesitation: how often an expert of the second stage does.
        detour: chance that a turn of a demonstration goes astray. expert: ``searcher`` or ``oracle``.
        max_turns: length limit of a demonstration.
    """

    episodes: int = 7500
    hesitant_episodes: int = 1500
    detour: float = 0.25
    hesitation: float = 0.6
    expert: str = "searcher"
    max_turns: int = 30

    def validate(self) -> None:
        """Raises UsageError naming the option for a value out of range."""
        super().validate()
        if not 0 <= self.detour <= 1:
            raise UsageError(f"detour={self.detour} is out of range: must be in [0, 1]")
        self.at_least_one("episodes", "hesitant_episodes", "max_turns")


def warm_start(out: Path, seed: int = 0, options: WarmStartOptions | None = None, progress: Progress = lambda *_: None) -> Path:
    """Make the model and write it to ``out`` as a Hugging Face folder; see :func:`~threespo_plugins.models.supervised.make_small_model`."""
    options = options or WarmStartOptions()
    options.validate()
    stages = [lessons(options, seed, hesitant) for hesitant in (False, True)]
    return make_small_model(out, vocabulary(), stages, options, seed, progress)


def lessons(options: WarmStartOptions, seed: int, hesitant: bool) -> Iterator[Lesson]:
    """All turns of one stage's demonstrations."""
    environment = HouseholdEnvironment(HouseholdConfig())
    count, hesitation = (options.hesitant_episodes, options.hesitation) if hesitant else (options.episodes, 0.0)
    for turn in demonstrations(environment, count, 2 * seed + hesitant, options.detour, options.max_turns, hesitation, options.expert):
        yield turn.messages, turn.response
