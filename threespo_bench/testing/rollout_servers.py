"""Does a rollout server keep its contract? It is used as a run uses it: by an engine that learns and hands over weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from threespo_bench.contracts.engine import Engine, Generation, Sampling
from threespo_bench.contracts.objective import Optimization, PolicyGradient
from threespo_bench.contracts.rollout import ROLLOUT_CAPABILITIES, Completion, Rollout, RolloutOptions, RolloutServer
from threespo_bench.testing.engines import TEXTS, chat, credit_of, generate, largest_gap, same_tokens, turns_of
from threespo_bench.turns import TurnBatch

SAMPLING = Sampling(temperature=1.0, max_new_tokens=8)
LONG = Sampling(temperature=1.0, max_new_tokens=64)
STEP = Optimization(learning_rate=3e-3, weight_decay=0.0)
_LONG_PROMPT = 300  # words; more than any block of a cache of keys and values
_MANY = 16
_ROUNDS = 16
_UNDER_WAY = 8


def check_rollout_server(
    make: Callable[[Rollout], Engine],
    rollout: Rollout,
    texts: Sequence[str] = TEXTS,
    tolerance: float = 1e-4,
    caches: bool = True,
    crash: Callable[[RolloutServer], None] | None = None,
) -> None:
    """Check log-probabilities, seeds, stop tokens, publication of weights, cancellation, and the return after a crash. The server is started once.

    Args:
        make: builds an engine that generates by the given rollout, e.g. ``lambda rollout: EmbeddedEngine(EmbeddedConfig(), folder, 0, rollout)``.
        rollout: its name, its options, and the class to check.
        texts: what the prompts say, at least three of different lengths.
        tolerance: the largest difference between log-probabilities that should be equal (nats).
        caches: it keeps keys and values of prompts, as set up here, and says so in ``cached_tokens``.
        crash: ends the server as a crash would; None leaves that out.

    Raises:
        AssertionError: says what is wrong.
    """
    _check_declarations(rollout)
    servers: list[RolloutServer] = []

    class Watched(rollout.target):  # type: ignore[misc,name-defined]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            servers.append(self)

    engine = make(replace(rollout, target=Watched))
    try:
        assert len(servers) == 1, f"the engine made {len(servers)} servers instead of one: does it use the rollout that it is given?"
        _Check(engine, servers[0], list(texts), tolerance).run(caches, crash)
    finally:
        engine.close()
    servers[0].close()  # a second time


class _Check:
    def __init__(self, engine: Engine, server: RolloutServer, texts: list[str], tolerance: float) -> None:
        self.engine, self.server, self.texts, self.tolerance = engine, server, texts, tolerance
        self.turns: TurnBatch | None = None

    def run(self, caches: bool, crash: Callable[[RolloutServer], None] | None) -> None:
        self.log_probs()
        self.seeds()
        self.temperature()
        self.stop_tokens()
        self.publication(caches)
        self.publication_while_generating()
        self.cancellation()
        if crash is not None:
            self.crash(crash)

    def log_probs(self) -> None:
        answers = generate(self.engine, self.texts, sampling=SAMPLING)
        for answer in answers:
            assert 1 <= len(answer.token_ids) <= SAMPLING.max_new_tokens, f"{len(answer.token_ids)} tokens, but the limit is {SAMPLING.max_new_tokens}"
            assert answer.token_ids.dtype == np.int32, f"tokens are {answer.token_ids.dtype}, not int32"
            assert answer.log_probs.dtype == np.float32, f"log-probabilities are {answer.log_probs.dtype}, not float32"
            assert answer.log_probs.shape == answer.token_ids.shape, "there is not one log-probability for each token"
        self.equal(answers, "at temperature 1")
        for temperature in (0.5, 2.0, 0.0):
            self.equal(generate(self.engine, self.texts, sampling=replace(SAMPLING, temperature=temperature)), f"at temperature {temperature:g}")

    def seeds(self) -> None:
        together = generate(self.engine, self.texts, sampling=SAMPLING)
        again = generate(self.engine, self.texts, sampling=SAMPLING)
        assert all(map(same_tokens, together, again)), "equal seeds gave different responses"
        for i in (0, 2):
            alone = generate(self.engine, self.texts[i : i + 1], [i], sampling=SAMPLING)[0]
            assert same_tokens(alone, together[i]), "the other requests of a batch changed a response"
            gap = float(np.abs(alone.log_probs - together[i].log_probs).max())
            assert gap <= self.tolerance, f"the other requests of a batch changed a log-probability by {gap:.2e}"
        large = 2**63 - 1  # seeds have 63 bits
        many = generate(self.engine, [self.texts[0]] * 16, [large - i for i in range(16)], sampling=SAMPLING)
        assert len({answer.token_ids.tobytes() for answer in many}) > 1, "16 seeds gave the same response: are seeds used?"
        greedy = generate(self.engine, [self.texts[1]] * 2, sampling=replace(SAMPLING, temperature=0.0))
        assert same_tokens(*greedy), "at temperature 0 the seed changed a response"

    def temperature(self) -> None:
        def mean(temperature: float) -> float:
            answers = generate(self.engine, [self.texts[1]] * _MANY, sampling=Sampling(temperature, 4))
            return float(np.concatenate([answer.log_probs for answer in answers]).mean())

        cold, hot = mean(0.25), mean(2.0)
        assert cold > hot, f"tokens are no more probable at temperature 0.25 ({cold:.2f} nats) than at 2 ({hot:.2f}): is the temperature used?"

    def stop_tokens(self) -> None:
        stops = self.server.model.stop_ids
        limit = 4 * SAMPLING.max_new_tokens
        answers = generate(self.engine, [self.texts[1]] * _MANY, sampling=replace(SAMPLING, max_new_tokens=limit))
        hot = Sampling(2.0, limit)  # the most that every server takes: a model that hardly ever stops does so sooner
        for number in range(1, _ROUNDS + 1):
            if not any(np.isin(answer.token_ids, stops).any() for answer in answers):
                answers += generate(self.engine, [self.texts[1]] * _MANY, range(number * _MANY, (number + 1) * _MANY), sampling=hot)
        for answer in answers:
            stopped = np.isin(answer.token_ids, stops)
            assert not stopped[:-1].any(), "a response goes on after a stop token"
            assert answer.finished == stopped[-1], f"a response is {'' if answer.finished else 'not '}finished, and its last token is {answer.token_ids[-1]}"
            assert answer.finished or len(answer.token_ids) == limit, "a response is neither finished nor as long as the limit"
        assert any(answer.finished for answer in answers), f"of {len(answers)} responses none was finished by {stops}: are the stop tokens used?"

    def publication(self, caches: bool) -> None:
        words = " ".join(self.texts).split()
        text = " ".join((words * (_LONG_PROMPT // len(words) + 1))[:_LONG_PROMPT])
        old, cached = generate(self.engine, [text], sampling=SAMPLING)[0], self.ask(text)
        if caches:
            assert cached.cached_tokens > 0, f"a prompt of {len(old.prompt_ids)} tokens was asked twice, and nothing of it came from a cache"
        version = self.learn(self.texts)
        moved = largest_gap(self.scores([old]), turns_of([old]).old_log_probs, turns_of([old]).response_mask)
        assert moved > 10 * self.tolerance, f"the update moved log-probabilities by {moved:.2e} only, too little for this check"
        first = self.ask(text)
        assert first.version == version, f"after version {version} was published a completion carries version {first.version}"
        assert first.cached_tokens == 0, f"{first.cached_tokens} tokens of a prompt came from a cache of older weights"
        answers = generate(self.engine, [text, *self.texts], sampling=SAMPLING)
        assert all(answer.policy_version == version for answer in answers), f"after version {version} was published a response carries another"
        self.equal(answers, "after a publication (old weights, or keys and values of old ones?)")
        again = self.engine.publish()
        assert self.ask(text).version == again == version + 1, "a second publication, of the same weights, is not reported"

    def publication_while_generating(self) -> None:
        """Responses that were under way are either of the old weights altogether and done, or of the new ones."""
        texts = [self.texts[i % len(self.texts)] for i in range(_UNDER_WAY)]

        async def ask() -> tuple[int, list[bool], list[Generation]]:
            tasks = [asyncio.ensure_future(self.engine.rollout.generate(chat(text), seed, LONG)) for seed, text in enumerate(texts)]
            await asyncio.sleep(0.1)
            done = [task.done() for task in tasks]
            version = self.learn(self.texts, fresh=False)
            return version, done, await asyncio.gather(*tasks)

        version, done, answers = asyncio.run(asyncio.wait_for(ask(), 600))
        for answer, early in zip(answers, done, strict=True):
            expected = version - early
            assert answer.policy_version == expected, f"a response that came after the publication of version {version} carries {answer.policy_version}"
        self.equal([answer for answer, early in zip(answers, done, strict=True) if not early], "of requests that were under way at a publication")

    def cancellation(self) -> None:
        before = generate(self.engine, self.texts, sampling=SAMPLING)

        async def cancel() -> list[Any]:
            tasks = [asyncio.ensure_future(self.engine.rollout.generate(chat(self.texts[1]), seed, LONG)) for seed in range(_UNDER_WAY)]
            await asyncio.sleep(0.05)
            for task in tasks[1:]:
                task.cancel()
            return await asyncio.gather(*tasks, return_exceptions=True)

        kept, *others = asyncio.run(asyncio.wait_for(cancel(), 600))
        assert isinstance(kept, Generation), f"a request failed because others were cancelled: {kept!r}"
        assert all(isinstance(other, (Generation, asyncio.CancelledError)) for other in others), "a cancelled request ended with another error"
        after = generate(self.engine, self.texts, sampling=SAMPLING)
        assert all(map(same_tokens, before, after)), "responses differ after requests were cancelled"

    def crash(self, crash: Callable[[RolloutServer], None]) -> None:
        version = self.learn(self.texts)
        before = generate(self.engine, self.texts, sampling=SAMPLING)
        crash(self.server)
        after = generate(self.engine, self.texts, sampling=SAMPLING)
        assert all(answer.policy_version == version for answer in after), "after a crash responses carry another version"
        self.equal(after, "after a crash (were the published weights handed over again?)")
        assert all(map(same_tokens, before, after)), "equal seeds gave different responses after a crash"
        crash(self.server)
        version = self.engine.publish()
        assert self.ask(self.texts[0]).version == version, "a publication to a crashed server was lost"

    def learn(self, texts: Sequence[str], fresh: bool = True) -> int:
        """One update on responses to ``texts``, or on those of last time unless ``fresh``, and its publication; returns the new version."""
        if fresh or self.turns is None:
            self.turns = turns_of(generate(self.engine, texts, sampling=SAMPLING))
        turns = replace(self.turns, policy_version=None, old_log_probs=self.engine.learner.score(self.turns))  # type: ignore[arg-type]
        metrics = self.engine.learner.update(turns, credit_of(turns), PolicyGradient(), STEP)
        assert metrics.get("optimizer_steps") == 1, "an update of the engine made no step"
        return self.engine.publish()

    def ask(self, text: str) -> Completion:
        prompt = self.engine.rollout.encode(chat(text))
        return asyncio.run(self.server.complete(prompt, 0, SAMPLING.temperature, SAMPLING.max_new_tokens))

    def scores(self, answers: Sequence[Generation]) -> np.ndarray:
        return self.engine.learner.score(turns_of(answers))

    def equal(self, answers: Sequence[Generation], where: str) -> None:
        """The server's log-probabilities are the learner's."""
        if answers:
            turns = turns_of(answers)
            gap = largest_gap(self.scores(answers), turns.old_log_probs, turns.response_mask)
            assert gap <= self.tolerance, f"{where} the server's log-probabilities differ from the learner's by {gap:.2e}"


def _check_declarations(rollout: Rollout) -> None:
    target = rollout.target
    assert issubclass(target, RolloutServer), f"{target.__name__} is no subclass of RolloutServer"
    assert issubclass(target.Config, RolloutOptions), f"{target.__name__}.Config is no subclass of RolloutOptions"
    assert isinstance(rollout.options, target.Config), f"the options are no {target.Config.__name__}"
    rollout.options.validate()
    unknown = sorted(target.capabilities - ROLLOUT_CAPABILITIES)
    assert not unknown, f"{target.__name__}.capabilities has {', '.join(unknown)}; known are {', '.join(sorted(ROLLOUT_CAPABILITIES))}"
