"""What a rollout server offers: token sequences from weights that it holds in memory of its own.

``rollout=hf``, the default, is the engine's own sampling in process. Any other choice is a :class:`RolloutServer` beside the engine, and every
new set of weights is handed over to it. It speaks tokens only; chat templates and text stay with the engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from threespo_bench.errors import EngineError, UsageError

ROLLOUT_CAPABILITIES = frozenset({"prefix", "value_tokens"})
"""The capabilities of an engine that its rollout must have too."""


@dataclass
class RolloutOptions:
    """Options under ``rollout.`` that every rollout has.

    Attributes:
        max_turns: the step limit of an episode; null takes the environment's.
        max_new_tokens: the length limit of a response; null takes the environment's.
        stall_seconds: a run in which no response comes for so long, and no update is under way, fails.
        environment_workers: processes in which episodes live; 0 plays them in the process of the run.
        environment_timeout: seconds that a step in such a process may take; one that takes longer costs the process, and is tried again in a fresh one.
    """

    max_turns: int | None = None
    max_new_tokens: int | None = None
    stall_seconds: float = 3600.0
    environment_workers: int = 0
    environment_timeout: float = 300.0

    def validate(self) -> None:
        """Raises UsageError naming the key for a value out of range."""
        require(self.max_turns is None or self.max_turns >= 1, "max_turns", self.max_turns, ">= 1, or null")
        require(self.max_new_tokens is None or self.max_new_tokens >= 1, "max_new_tokens", self.max_new_tokens, ">= 1, or null")
        require(self.stall_seconds > 0, "stall_seconds", self.stall_seconds, "> 0")
        require(self.environment_workers >= 0, "environment_workers", self.environment_workers, ">= 0")
        require(self.environment_timeout > 0, "environment_timeout", self.environment_timeout, "> 0")


@dataclass(frozen=True)
class Rollout:
    """The rollout that was chosen: its registered ``name``, its ``options``, and its class (:class:`OwnSampling` or a :class:`RolloutServer`)."""

    name: str
    options: Any
    target: type[OwnSampling] | type[RolloutServer]


class OwnSampling:
    """The rollout ``hf``: the engine samples with transformers itself."""

    Config: ClassVar[type[RolloutOptions]] = RolloutOptions
    capabilities: ClassVar[frozenset[str]] = ROLLOUT_CAPABILITIES


class ServerGone(EngineError):
    """The server does not answer any more; it can be restarted, and the request asked again."""


@dataclass(frozen=True)
class ServedModel:
    """What a server is started with.

    Attributes:
        folder: a Hugging Face folder with the starting weights and the tokenizer.
        dtype: ``float32`` or ``bfloat16``, the precision of the learner's forward pass.
        device: ``cpu`` or ``cuda``.
        max_context: tokens of prompt and response together.
        stop_ids: tokens that end a response.
        seed: of the run. threads: of one operation on the CPU.
    """

    folder: Path
    dtype: str
    device: str
    max_context: int
    stop_ids: tuple[int, ...]
    seed: int
    threads: int = 1


class Weights(ABC):
    """The learner's present weights, in the two forms in which servers take them."""

    @abstractmethod
    def tensors(self) -> Iterator[tuple[str, Any]]:
        """(name, torch tensor on its device) as a Hugging Face checkpoint names them; of tied ones, the first only."""

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Write an ordinary Hugging Face folder: configuration, ``model.safetensors``, tokenizer."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One generated sequence.

    Attributes:
        token_ids: (T,) int32, the new tokens, the stop token included if one was generated.
        log_probs: (T,) float32, under the untempered softmax over the whole vocabulary.
        version: the weights that made it, as the server names them.
        finished: it ended by a stop token, not by the length limit.
        cached_tokens: tokens of the prompt whose keys and values came from a cache.
    """

    token_ids: np.ndarray
    log_probs: np.ndarray
    version: int
    finished: bool
    cached_tokens: int = 0


class RolloutServer(ABC):
    """Generates tokens from weights of its own.

    Attributes:
        Config: options under ``rollout.``, a subclass of :class:`RolloutOptions`.
        capabilities: those of :data:`ROLLOUT_CAPABILITIES` that it has. Every server takes a prompt of any tokens, so ``prefix`` is one.
        deterministic: equal requests are answered equally bit for bit, whatever else is asked at the same time.
        gathers: as that of a :class:`RolloutEngine`.
    """

    Config: ClassVar[type[RolloutOptions]]
    capabilities: ClassVar[frozenset[str]] = frozenset({"prefix"})
    deterministic: ClassVar[bool] = False
    gathers: bool = False

    def __init__(self, config: Any, model: ServedModel) -> None:
        self.config, self.model = config, model

    @classmethod
    def check(cls, config: Any, folder: Path) -> None:
        """Before anything heavy starts: raises EngineError or UsageError in one line if it cannot run here, or not with the model in ``folder``."""

    @abstractmethod
    def start(self) -> None:
        """Load the starting weights, as version 0.

        Raises:
            EngineError: it does not come up.
        """

    @abstractmethod
    async def complete(self, prompt_ids: np.ndarray, seed: int, temperature: float, max_new_tokens: int) -> Completion:
        """Continue (P,) int32 tokens. Temperature 0 takes the most probable token. Requests that wait at the same time may be batched.

        A cancelled call frees what it held on the server.

        Raises:
            ServerGone: the server crashed, or cannot be reached.
            EngineError: it answered with an error.
        """

    @abstractmethod
    def publish(self, weights: Weights, version: int) -> None:
        """Hold these weights, under this version, before the next request; what was cached of older ones is dropped.

        Raises:
            EngineError: the server refused them, or still reports another version.
        """

    def restart(self, weights: Weights, version: int) -> None:
        """Come up again after a crash, with these weights."""
        self.close()
        self.start()
        self.publish(weights, version)

    @abstractmethod
    def close(self) -> None:
        """Stop it, and every process that belongs to it. May be called more than once."""


def require(good: bool, option: str, value: object, allowed: str) -> None:
    """Raises UsageError naming the key ``rollout.<option>`` unless ``good``."""
    if not good:
        raise UsageError(f"rollout.{option}={value} is out of range: must be {allowed}")
