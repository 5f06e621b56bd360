"""The kit for plugin authors accepts the embedded engine and catches each breach of the contract of engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from threespo_bench.contracts.engine import Generation, Sampling
from threespo_bench.contracts.environment import Message
from threespo_bench.testing import check_engine
from threespo_bench.turns import TurnBatch

pytest.importorskip("torch")
from threespo_plugins.embedded.config import EmbeddedConfig
from threespo_plugins.embedded.critic import ValueFunction
from threespo_plugins.embedded.embeddings import Embedder
from threespo_plugins.embedded.engine import EmbeddedEngine
from threespo_plugins.embedded.learner import EmbeddedLearner
from threespo_plugins.embedded.optimizer import Optimizer
from threespo_plugins.embedded.reference import Reference
from threespo_plugins.embedded.rollout import EmbeddedRollout


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The architecture of household-tiny, smaller and with random weights."""
    from threespo_envs.alfred.vocabulary import vocabulary
    from threespo_plugins.models.word_level import make_model, make_tokenizer

    folder = tmp_path_factory.mktemp("model")
    tokenizer = make_tokenizer(vocabulary())
    make_model(tokenizer, hidden=32, layers=1, heads=2, intermediate=32, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def check(model: Path, capabilities: frozenset[str] = frozenset()) -> None:
    """Check the embedded engine, which declares only ``capabilities``; what it does beyond them is not offered."""

    class Engine(EmbeddedEngine):
        pass

    Engine.capabilities = capabilities
    check_engine(lambda: Engine(EmbeddedConfig(), str(model), 0))


def test_the_embedded_engine_passes(model: Path) -> None:
    check_engine(lambda: EmbeddedEngine(EmbeddedConfig(), str(model), 0))


def test_what_is_not_declared_must_be_refused(model: Path) -> None:
    with pytest.raises(AssertionError, match="does reference, but does not declare it"):
        check(model)


def change_generation(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    original = EmbeddedRollout.generate

    async def changed(self: EmbeddedRollout, messages: list[Message], seed: int, sampling: Sampling, prefix: Sequence[int] = ()) -> Generation:
        return await change(lambda seed=seed, prefix=prefix: original(self, messages, seed, sampling, prefix), seed, prefix)

    monkeypatch.setattr(EmbeddedRollout, "generate", changed)


async def tempered(ask: Any, seed: int, prefix: Sequence[int]) -> Generation:
    answer = await ask()
    return replace(answer, log_probs=answer.log_probs * np.float32(0.9))


async def one_seed(ask: Any, seed: int, prefix: Sequence[int]) -> Generation:
    return await ask(seed=7)


async def old_version(ask: Any, seed: int, prefix: Sequence[int]) -> Generation:
    return replace(await ask(), policy_version=0)


async def no_prefix(ask: Any, seed: int, prefix: Sequence[int]) -> Generation:
    return await ask(prefix=())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (tempered, "differ from the sampler's"),
        (one_seed, "are seeds used"),
        (old_version, "after publish\\(\\) carries another version"),
        (no_prefix, "not those of prompt and prefix"),
    ],
)
def test_generation(model: Path, monkeypatch: pytest.MonkeyPatch, change: Any, says: str) -> None:
    change_generation(monkeypatch, change)
    with pytest.raises(AssertionError, match=says):
        check(model, frozenset({"reference", "critic", "value_tokens", "embeddings", "prompt_embeddings", "prefix"}))


def forget(self: Any, folder: Path) -> None:
    """Stands in the place of a method that saves or loads."""


@pytest.mark.parametrize(
    ("owner", "name", "stand_in", "says"),
    [
        (Optimizer, "load_state", lambda self, state: None, "is the optimiser's state saved"),
        (EmbeddedEngine, "digest", lambda self: "0", "left the weights \\(or their digest\\) as they were"),
        (Reference, "save", forget, "refreshed reference is not part of the checkpoint"),
        (ValueFunction, "load", forget, "critic is not part of the checkpoint"),
        (Embedder, "embed", lambda self, texts: np.arange(4.0) + np.arange(len(texts))[:, None] * len(texts), "changed a vector"),
        (EmbeddedLearner, "prompt_value_logits", lambda self, prompts: np.full(len(prompts), 9.0), "differs from the first column"),
    ],
)
def test_learning_and_state(model: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, stand_in: Any, says: str) -> None:
    monkeypatch.setattr(owner, name, stand_in)
    with pytest.raises(AssertionError, match=says):
        check(model, frozenset({"reference", "critic", "value_tokens", "embeddings", "prompt_embeddings"}))


def test_scores_outside_the_mask(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = EmbeddedLearner.score

    def filled(self: EmbeddedLearner, turns: TurnBatch, policy: str = "actor") -> np.ndarray:
        return np.where(turns.response_mask, original(self, turns, policy), -1.0)

    monkeypatch.setattr(EmbeddedLearner, "score", filled)
    engine = EmbeddedEngine(EmbeddedConfig(), str(model), 0)
    engine._policy.stops = tuple(range(0, 400, 2))  # responses of different lengths
    with pytest.raises(AssertionError, match="under a false response mask"):
        check_engine(lambda: engine)
