"""Making webshop-tiny from nothing: supervised learning on demonstrations, first of an expert, then of an expert who is hasty.

The haste is deliberate. A model that copies a good expert well leaves reinforcement learning nothing to do; one that copies it badly does not know the
commands. Taught in two stages, it knows how to compare products and often buys without doing so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from threespo_bench.errors import UsageError
from threespo_envs.webshop.demonstrations import demonstrations
from threespo_envs.webshop.environment import WebShopConfig, WebShopEnvironment
from threespo_envs.webshop.prompts import COMPACT_WORDS
from threespo_envs.webshop.words import vocabulary
from threespo_plugins.models.supervised import Lesson, Progress, SmallModelOptions, make_small_model


@dataclass
class WarmStartOptions(SmallModelOptions):
    """How webshop-tiny is made.

    Attributes:
        episodes: demonstrations of the first stage; they teach what the expert does.
        hasty_episodes: demonstrations of the second stage; they teach haste too. haste: how often an expert of the second stage is hasty.
        detour: chance that a turn of a demonstration goes astray. patience: products that the expert looks at.
        max_turns: length limit of a demonstration.
    """

    episodes: int = 12000
    hasty_episodes: int = 3000
    detour: float = 0.15
    haste: float = 0.25
    patience: int = 4
    max_turns: int = 15
    batch_turns: int = 32
    learning_rate: float = 2e-3

    def validate(self) -> None:
        """Raises UsageError naming the option for a value out of range."""
        super().validate()
        for name in ("detour", "haste"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name}={getattr(self, name)} is out of range: must be in [0, 1]")
        self.at_least_one("episodes", "hasty_episodes", "patience", "max_turns")


def warm_start(out: Path, seed: int = 0, options: WarmStartOptions | None = None, progress: Progress = lambda *_: None) -> Path:
    """Make the model and write it to ``out`` as a Hugging Face folder; see :func:`~threespo_plugins.models.supervised.make_small_model`."""
    options = options or WarmStartOptions()
    options.validate()
    words = sorted({*vocabulary(), *COMPACT_WORDS})
    return make_small_model(out, words, [lessons(options, seed, hasty) for hasty in (False, True)], options, seed, progress)


def lessons(options: WarmStartOptions, seed: int, hasty: bool) -> Iterator[Lesson]:
    """All turns of one stage's demonstrations."""
    environment = WebShopEnvironment(WebShopConfig())
    count, haste = (options.hasty_episodes, options.haste) if hasty else (options.episodes, 0.0)
    for turn in demonstrations(environment, count, 2 * seed + hasty, options.detour, options.max_turns, haste, options.patience):
        yield turn.messages, turn.response
