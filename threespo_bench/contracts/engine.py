"""What an engine offers: token sequences with their log-probabilities, and a policy that learns from them.

An engine is two parts. A :class:`RolloutEngine` generates; a :class:`Learner` scores and updates. :class:`Engine` joins them, and its
:meth:`Engine.publish` is the only way by which new weights reach the rollout engine; every generation carries the version that made it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from threespo_bench.contracts.environment import Message
from threespo_bench.contracts.objective import Critic, Objective, Optimization
from threespo_bench.contracts.rollout import OwnSampling, Rollout, RolloutServer
from threespo_bench.errors import UsageError

if TYPE_CHECKING:
    from threespo_bench.contracts.algorithm import Credit
    from threespo_bench.turns import TurnBatch

CAPABILITIES = {
    "reference": "log-probabilities of a frozen reference policy, which can be moved to the present weights",
    "preference": "updates by a loss on preferences",
    "critic": "a value function of its own, one value before each token",
    "value_tokens": "values read from two reserved tokens of the policy, which are never sampled",
    "embeddings": "vectors of texts, by the frozen reference policy",
    "prompt_embeddings": "vectors of prompts, by the frozen reference policy",
    "prefix": "responses that go on from given tokens",
}
"""What an engine may be able to do beyond the base contract, by the name that an algorithm's ``needs`` uses."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; temperature 0 takes the most probable ones. Log-probabilities are those of the distribution at temperature 1."""

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
    """Generates responses.

    Attributes:
        version: the policy version whose weights it holds.
        gathers: it makes one batch of all requests that wait, and nothing else goes on meanwhile. It is then not asked while an environment in another
            process is being waited for, so that batches are as large as they can be, and the same wherever environments live.
    """

    version: int
    gathers: bool = False

    @abstractmethod
    async def generate(self, messages: list[Message], seed: int, sampling: Sampling, prefix: Sequence[int] = ()) -> Generation:
        """One response to a chat prompt. Requests that wait at the same time may be batched; equal (messages, prefix, seed, weights) give equal tokens.

        Args:
            messages: the prompt. seed: of the response's own random numbers. sampling: how tokens are drawn.
            prefix: tokens the response begins with (capability ``prefix``). The answer's ``token_ids`` and ``log_probs`` are those of the new tokens,
                ``prompt_ids`` ends with the prefix, and ``text`` is that of prefix and new tokens together; the length limit counts both.

        Raises:
            EngineError: the prompt does not fit the model's context.
        """

    @abstractmethod
    def encode(self, messages: list[Message], response: str | None = None) -> np.ndarray:
        """(P,) int32 tokens of a prompt as :meth:`generate` would read it; with ``response``, those of that text with the end-of-sequence token."""


class Learner(ABC):
    """The policy being trained."""

    @abstractmethod
    def score(self, turns: TurnBatch, policy: str = "actor") -> np.ndarray:
        """Log-probabilities (N, T) of the response tokens under ``actor`` or ``reference``; entries under a false mask are 0."""

    @abstractmethod
    def update(self, turns: TurnBatch, credit: Credit, objective: Objective, optimization: Optimization) -> dict[str, float]:
        """Optimiser steps on the rows that ``credit`` selects (or on its preferences); returns metrics. Nothing to learn from: no step, no change.

        Raises:
            EngineError: loss or gradient is not finite (the weights are left as they were).
        """

    def verify(self, turns: TurnBatch) -> None:
        """Require that the present weights made these turns, where the rollout engine has weights of its own: it may have forgotten a publication.

        Called with some turns of every evaluation, which no update looks at. By default nothing is checked.

        Raises:
            EngineError: the turns' ``old_log_probs`` are not those of the present weights.
        """

    def refresh_reference(self) -> None:
        """Make the present weights the reference policy (capability ``reference``); part of what :meth:`save` writes."""
        raise _lacks(self, "reference")

    def values(self, turns: TurnBatch) -> np.ndarray:
        """(N, T) float64 values of the state before each response token, 0 under a false mask (capability ``critic``).

        Column 0 is the value of the state that the turn acts in, read at the last token of its prompt.
        """
        raise _lacks(self, "critic")

    def prompt_values(self, prompts: Sequence[np.ndarray]) -> np.ndarray:
        """(M,) float64 values of the states that these prompts (int32 tokens) show; an empty prompt has value 0 (capability ``critic``)."""
        raise _lacks(self, "critic")

    def update_critic(self, turns: TurnBatch, credit: Credit, critic: Critic) -> dict[str, float]:
        """Regress the value function on ``credit.returns``, clipped around ``turns.values``; returns metrics (capability ``critic``)."""
        raise _lacks(self, "critic")

    def value_logits(self, turns: TurnBatch) -> np.ndarray:
        """(N, 2) float64 ``z_plus - z_minus`` of the reserved tokens before and after each response (capability ``value_tokens``)."""
        raise _lacks(self, "value_tokens")

    def prompt_value_logits(self, prompts: Sequence[np.ndarray]) -> np.ndarray:
        """(M,) float64 ``z_plus - z_minus`` at the end of each prompt; 0 for an empty one (capability ``value_tokens``)."""
        raise _lacks(self, "value_tokens")

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """(M, D) float64: the mean of the last hidden states of the starting weights over each text's tokens (capability ``embeddings``)."""
        raise _lacks(self, "embeddings")

    def embed_prompts(self, prompts: Sequence[np.ndarray]) -> np.ndarray:
        """(M, D) float64, as :meth:`embed` makes them, of prompts that are int32 tokens already (capability ``prompt_embeddings``)."""
        raise _lacks(self, "prompt_embeddings")

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

    def __init__(self, config: Any, model: str, seed: int, rollout: Rollout | None = None) -> None:
        self.config, self.model, self.seed = config, model, seed

    @classmethod
    def works_with(cls, rollout: Rollout) -> bool:
        """It can generate by this rollout; by default with its own sampling only."""
        return issubclass(rollout.target, OwnSampling)

    @classmethod
    def check(cls, config: Any, model: Path, rollout: Rollout) -> None:
        """Before anything heavy starts: raises EngineError, DataError or UsageError in one line if engine or rollout cannot run here with this model."""
        if issubclass(rollout.target, RolloutServer):
            rollout.target.check(rollout.options, model)

    @classmethod
    def gpus(cls, config: Any) -> int:
        """GPUs that a run with these options takes at once, where it cannot do with fewer; 0 by default."""
        return 0

    @classmethod
    def check_checkpoint(cls, config: Any, folder: Path) -> None:
        """Before anything heavy starts: raises StorageError in one line if an engine with these options could not :meth:`Learner.load` this folder.

        By default nothing is checked: loading it will tell.
        """

    def prepare(self, needs: frozenset[str]) -> None:
        """Set up what an algorithm needs of :attr:`capabilities` (a critic, reserved tokens ...). Called once, before anything else.

        Raises:
            UsageError: it cannot be done with this model.
        """

    @abstractmethod
    def publish(self) -> int:
        """Make the learner's weights the rollout engine's, under a new policy version, and return that version."""

    @abstractmethod
    def digest(self) -> str:
        """Digest of the weights the learner holds now: equal starting weights have equal digests."""

    def close(self) -> None:
        """Release what the engine holds."""


def _lacks(part: object, capability: str) -> UsageError:
    return UsageError(f"{type(part).__name__} does not offer {capability}: {CAPABILITIES[capability]}", fix="choose another engine, or another algorithm")
