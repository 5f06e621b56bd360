"""The kit for authors of rollout servers accepts a server that keeps the contract, and catches each breach of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.host.torch_server import TorchConfig, TorchServer
from threespo_bench.contracts.rollout import Completion, Rollout, RolloutOptions, Weights
from threespo_bench.errors import EngineError
from threespo_bench.testing import check_engine, check_rollout_server
from threespo_plugins.embedded.config import EmbeddedConfig
from threespo_plugins.embedded.engine import EmbeddedEngine


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


def crash(server: TorchServer) -> None:
    server.alive = False


def check(model: Path, target: type[TorchServer], **options: Any) -> None:
    rollout = Rollout("torch", target.Config(), target)
    check_rollout_server(lambda rollout: EmbeddedEngine(EmbeddedConfig(), str(model), 0, rollout), rollout, **{"crash": crash} | options)


def test_a_good_server_passes(model: Path) -> None:
    check(model, TorchServer)


def test_an_engine_with_a_good_server_passes(model: Path) -> None:
    check_engine(lambda: EmbeddedEngine(EmbeddedConfig(), str(model), 0, Rollout("torch", TorchConfig(), TorchServer)))


class Stale(TorchServer):
    def forget(self) -> None:
        pass


class StaleInSilence(Stale):
    async def attempt(self, *arguments: Any) -> Completion | None:
        answer = await super().attempt(*arguments)
        seen = self.__dict__.setdefault("seen", set())
        first = self.version not in seen
        seen.add(self.version)
        return replace(answer, cached_tokens=0) if answer is not None and first else answer


class NoCache(TorchServer):
    async def attempt(self, *arguments: Any) -> Completion | None:
        self.cache.clear()
        answer = await super().attempt(*arguments)
        return None if answer is None else replace(answer, cached_tokens=0)


class Tempered(TorchServer):
    def log_probs(self, logits: torch.Tensor, temperature: float) -> torch.Tensor:
        return (logits / (temperature or 1.0)).log_softmax(-1)


class Cut(TorchServer):
    """Log-probabilities after top-k."""

    def log_probs(self, logits: torch.Tensor, temperature: float) -> torch.Tensor:
        return torch.where(logits >= logits.topk(20).values[-1], logits, -torch.inf).log_softmax(-1)

    def draw(self, logits: torch.Tensor, temperature: float, generator: torch.Generator) -> int:
        return super().draw(self.log_probs(logits, temperature), temperature, generator)


class NoTemperature(TorchServer):
    def draw(self, logits: torch.Tensor, temperature: float, generator: torch.Generator) -> int:
        return super().draw(logits, temperature and 1.0, generator)


class OneSeed(TorchServer):
    def generator(self, seed: int) -> torch.Generator:
        return super().generator(0)


class SharedNoise(TorchServer):
    def generator(self, seed: int) -> torch.Generator:
        return torch.default_generator


class HalfSeed(TorchServer):
    """Only the upper half of a seed counts, as where a seed is cut to fewer bits."""

    def generator(self, seed: int) -> torch.Generator:
        return super().generator(seed >> 32)


class GoesOn(TorchServer):
    def stops(self, token: int) -> bool:
        return False


class OtherEnd(TorchServer):
    """The length limit counts as a stop token."""

    async def attempt(self, *arguments: Any) -> Completion | None:
        answer = await super().attempt(*arguments)
        return None if answer is None else replace(answer, finished=True)


class Forgetful(TorchServer):
    """Reports new weights that it never took."""

    def load(self, weights: Weights) -> None:
        pass


class WrongVersion(TorchServer):
    def answered_version(self) -> int:
        return 0


class SecondMissed(TorchServer):
    def publish(self, weights: Weights, version: int) -> None:
        super().publish(weights, version - version // 2)


class Mixed(TorchServer):
    """Goes on with new weights in the middle of a response, under keys and values of the old ones."""

    async def attempt(self, *arguments: Any) -> Completion | None:
        return await super().attempt(*arguments[:-1], lambda: False)


class ForgetsAfterCrash(TorchServer):
    def publish(self, weights: Weights, version: int) -> None:
        super().publish(_Nothing() if self.starts > 1 else weights, version)


class _Nothing:
    def tensors(self) -> Sequence[tuple[str, torch.Tensor]]:
        return ()


class WrongTokens(TorchServer):
    async def attempt(self, *arguments: Any) -> Completion | None:
        answer = await super().attempt(*arguments)
        return None if answer is None else replace(answer, token_ids=answer.token_ids.astype(np.int64))


class FallsOver(TorchServer):
    """Fails all that it works on when a request is cancelled."""

    broken = False

    async def complete(self, *arguments: Any) -> Completion:
        try:
            return await super().complete(*arguments)
        except BaseException as error:
            self.broken = self.broken or not isinstance(error, Exception)
            raise

    async def attempt(self, *arguments: Any) -> Completion | None:
        answer = await super().attempt(*arguments)
        if self.broken:
            raise EngineError("a request was lost")
        return answer


BREACHES: dict[type[TorchServer], str] = {
    Stale: "from a cache of older weights",
    StaleInSilence: "after a publication .* differ from the learner's",
    NoCache: "nothing of it came from a cache",
    Tempered: "at temperature 0.5 the server's log-probabilities differ",
    Cut: "differ from the learner's",
    NoTemperature: "is the temperature used",
    OneSeed: "16 seeds gave the same response",
    SharedNoise: "equal seeds gave different responses",
    HalfSeed: "16 seeds gave the same response",
    GoesOn: "goes on after a stop token",
    OtherEnd: "a response is finished, and its last token",
    Forgetful: "after a publication .* differ from the learner's",
    WrongVersion: "carries version 0",
    SecondMissed: "is not reported|carries version",
    Mixed: "under way at a publication|came after the publication",
    ForgetsAfterCrash: "after a crash",
    WrongTokens: "int64, not int32",
    FallsOver: "a request failed because others were cancelled",
}


QUICK = (Stale, Tempered, OneSeed, GoesOn, WrongVersion, Forgetful, WrongTokens)
"""What servers get wrong most easily; the others are slow tests."""


@pytest.mark.parametrize("target", [pytest.param(each, marks=[] if each in QUICK else pytest.mark.slow, id=each.__name__) for each in BREACHES])
def test_a_breach_is_caught(model: Path, target: type[TorchServer]) -> None:
    with pytest.raises((AssertionError, EngineError), match=BREACHES[target]):
        check(model, target)


@pytest.mark.slow
def test_a_server_without_a_cache_can_say_so(model: Path) -> None:
    check(model, NoCache, caches=False, crash=None)


def test_an_engine_that_ignores_its_rollout(model: Path) -> None:
    with pytest.raises(AssertionError, match="does it use the rollout"):
        check_rollout_server(lambda rollout: EmbeddedEngine(EmbeddedConfig(), str(model), 0), Rollout("torch", TorchConfig(), TorchServer))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: {"Config": RolloutOptions, "capabilities": frozenset({"critic"})}, "capabilities has critic"),
        (lambda: {"Config": dict}, "no subclass of RolloutOptions"),
    ],
)
def test_wrong_declarations(model: Path, change: Callable[[], dict[str, Any]], message: str) -> None:
    target = type("Broken", (TorchServer,), change())
    with pytest.raises(AssertionError, match=message):
        check(model, target)
