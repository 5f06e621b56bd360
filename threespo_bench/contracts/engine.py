"""What an engine offers: token sequences with their log-probabilities, and a policy that learns from them.

An engine is two parts. A :class:`RolloutEngine` generates; a :class:`Learner` scores and updates. :class:`Engine` joins them, and its
:meth:`Engine.publish` is the only way by which new weights reach the rollout engine; every generation carries the version that made it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from threespo_bench.contracts.environment import Message
from threespo_bench.contracts.objective import Optimization, PolicyGradient

if TYPE_CHECKING:
    from threespo_bench.contracts.algorithm import Credit
    from threespo_bench.turns import TurnBatch


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Log-probabilities are always those of the distribution that was sampled from at temperature 1."""

    temperature: float = 1.0
    max_new_tokens: int = 16


@dataclass(frozen=True, slots=True)
class Generation:
    """One generated response.

    Attributes:
        prompt_ids: (P,) int32, the tokens of the prompt.
        token_ids: (T,) int32, the generated tokens, end-of-sequence included if it was generated.
        log_probs: (T,) float32, log-probability of each generated token under the untempered policy (the raw softmax).
        text: the decoded response without special tokens.
        policy_version: the published weights that made it.
        finished: it ended by end-of-sequence, not by the length limit.
    """

    prompt_ids: np.ndarray
    token_ids: np.ndarray
    log_probs: np.ndarray
    text: str
    policy_version: int
    finished: bool


class RolloutEngine(ABC):
    """Generates responses. ``version`` is the policy version whose weights it holds."""

    version: int

    @abstractmethod
    async def generate(self, messages: list[Message], seed: int, sampling: Sampling) -> Generation:
        """One response to a chat prompt. Requests that wait at the same time may be batched; equal (messages, seed, weights) give equal tokens.

        Raises:
            EngineError: the prompt does not fit the model's context.
        """


class Learner(ABC):
    """The policy being trained."""

    @abstractmethod
    def score(self, turns: TurnBatch, policy: str = "actor") -> np.ndarray:
        """Log-probabilities (N, T) of the response tokens under ``actor`` or ``reference``; entries under a false mask are 0."""

    @abstractmethod
    def update(self, turns: TurnBatch, credit: Credit, objective: PolicyGradient, optimization: Optimization) -> dict[str, float]:
        """Optimiser steps on the rows that ``credit.selected`` names; returns metrics. No selected row: no step, no change of the weights.

        Raises:
            EngineError: loss or gradient is not finite (the weights are left as they were).
        """

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write weights, optimiser and whatever else :meth:`load` needs for an exact continuation."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Continue from :meth:`save`, bit for bit; the rollout engine of the same engine is at the saved version afterwards."""

    @abstractmethod
    def export(self, folder: Path) -> None:
        """Write the policy as an ordinary Hugging Face folder: weights, configuration, tokenizer."""


class Engine(ABC):
    """A rollout engine and a learner over one model.

    Attributes:
        Config: dataclass of options under ``engine.``.
        rollout, learner: the two parts.
        capabilities: what it can do beyond the base contract, e.g. ``reference``, ``critic``.
        deterministic: equal runs are equal bit for bit.
    """

    Config: ClassVar[type]
    capabilities: ClassVar[frozenset[str]] = frozenset()
    deterministic: ClassVar[bool] = False

    rollout: RolloutEngine
    learner: Learner

    def __init__(self, config: Any, model: str, seed: int) -> None:
        self.config, self.model, self.seed = config, model, seed

    @abstractmethod
    def publish(self) -> int:
        """Make the learner's weights the rollout engine's, under a new policy version, and return that version."""

    @abstractmethod
    def digest(self) -> str:
        """Digest of the weights the learner holds now: equal starting weights have equal digests."""

    def close(self) -> None:
        """Release what the engine holds."""
