"""Does an engine keep its contract?"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from pathlib import Path

import numpy as np

from threespo_bench.contracts.algorithm import Credit
from threespo_bench.contracts.engine import CAPABILITIES, Engine, Generation, Learner, RolloutEngine, Sampling
from threespo_bench.contracts.environment import Message
from threespo_bench.contracts.objective import Optimization, PolicyGradient
from threespo_bench.turns import TurnBatch, object_column, pad_tokens

TEXTS = ("look", "go to the desk 1", "open the drawer and look at what is in it", "look", "take the mug 2 from the desk 1, then go to the shelf 3")
SAMPLING = Sampling(temperature=1.0, max_new_tokens=8)
STEP = Optimization(learning_rate=1e-3, weight_decay=0.0)


def check_engine(make: Callable[[], Engine], texts: Sequence[str] = TEXTS, tolerance: float = 1e-4) -> None:
    """Check generation, scores, updates, versions, checkpoints, and what the engine declares to be capable of.

    Args:
        make: builds the engine from the same model and seed each time; called several times.
        texts: what the prompts say, at least three of different lengths.
        tolerance: the largest difference between log-probabilities that should be equal (nats).

    Raises:
        AssertionError: says what is wrong.
    """
    from threespo_bench.testing.engine_capabilities import check_capabilities

    engine = make()
    _check_declarations(engine)
    answers = generate(engine, texts)
    _check_answers(engine, answers, texts)
    _check_scores(engine, answers, tolerance)
    if engine.deterministic:
        _check_seeds(engine, texts, tolerance)
    _check_update(engine, answers, texts, tolerance)
    with tempfile.TemporaryDirectory() as folder:
        _check_checkpoint(engine, make(), Path(folder) / "learner", texts, tolerance)
        engine.learner.export(Path(folder) / "model")
        assert (Path(folder) / "model" / "config.json").is_file(), "export() wrote no config.json: it should write a Hugging Face folder"
    engine.close()
    check_capabilities(make, texts, tolerance)


def chat(text: str) -> list[Message]:
    """A prompt of one message."""
    return [{"role": "user", "content": text}]


def generate(
    engine: Engine, texts: Sequence[str], seeds: Sequence[int] | None = None, prefixes: Sequence[Sequence[int]] | None = None, sampling: Sampling = SAMPLING
) -> list[Generation]:
    """One response to each text, all asked at once; the seeds are 0, 1, 2 ... unless given."""
    seeds = range(len(texts)) if seeds is None else seeds

    async def ask() -> list[Generation]:
        if prefixes is None:
            return await asyncio.gather(*(engine.rollout.generate(chat(text), seed, sampling) for text, seed in zip(texts, seeds, strict=True)))
        requests = zip(texts, seeds, prefixes, strict=True)
        return await asyncio.gather(*(engine.rollout.generate(chat(text), seed, sampling, prefix) for text, seed, prefix in requests))

    return asyncio.run(ask())


def turns_of(answers: Sequence[Generation]) -> TurnBatch:
    """One row per response."""
    number, width = len(answers), max(len(answer.token_ids) for answer in answers)
    return TurnBatch(
        group_id=np.zeros(number, np.int64),
        traj_id=np.arange(number),
        step_id=np.zeros(number, np.int64),
        step_reward=np.zeros(number),
        response_mask=pad_tokens([np.ones(len(answer.token_ids), bool) for answer in answers], width, bool),
        response_ids=pad_tokens([answer.token_ids for answer in answers], width, np.int32),
        old_log_probs=pad_tokens([answer.log_probs for answer in answers], width, np.float64),
        policy_version=np.array([answer.policy_version for answer in answers]),
        prompt_ids=object_column([answer.prompt_ids for answer in answers]),
    )


def credit_of(turns: TurnBatch) -> Credit:
    """Advantages of 1 and -1 by turns."""
    sign = np.where(np.arange(len(turns)) % 2, -1.0, 1.0)
    return Credit(np.where(turns.response_mask, sign[:, None], 0.0))


def largest_gap(one: np.ndarray, other: np.ndarray, mask: np.ndarray) -> float:
    """The largest difference under a mask."""
    return float(np.abs(one - other)[mask].max(initial=0.0))


def _check_declarations(engine: Engine) -> None:
    name = type(engine).__name__
    assert isinstance(engine, Engine), f"{name} is no subclass of Engine"
    assert is_dataclass(engine.Config), f"{name}.Config is no dataclass"
    assert isinstance(engine.rollout, RolloutEngine), f"{name}.rollout is no RolloutEngine"
    assert isinstance(engine.learner, Learner), f"{name}.learner is no Learner"
    unknown = sorted(engine.capabilities - CAPABILITIES.keys())
    assert not unknown, f"{name}.capabilities has {', '.join(unknown)}; known are {', '.join(CAPABILITIES)}"


def _check_answers(engine: Engine, answers: Sequence[Generation], texts: Sequence[str]) -> None:
    for answer, text in zip(answers, texts, strict=True):
        assert 1 <= len(answer.token_ids) <= SAMPLING.max_new_tokens, f"a response has {len(answer.token_ids)} tokens, the limit is {SAMPLING.max_new_tokens}"
        assert answer.token_ids.dtype == answer.prompt_ids.dtype == np.int32, "tokens are not int32"
        assert answer.log_probs.shape == answer.token_ids.shape, "a response does not have one log-probability for each token"
        assert np.isfinite(answer.log_probs).all(), "a log-probability is not finite"
        assert (answer.log_probs <= 0).all(), "a log-probability is above 0"
        assert answer.finished or len(answer.token_ids) == SAMPLING.max_new_tokens, "a response is shorter than the limit, but not finished"
        assert answer.policy_version == engine.rollout.version, f"a response carries version {answer.policy_version}, the engine {engine.rollout.version}"
        assert np.array_equal(engine.rollout.encode(chat(text)), answer.prompt_ids), "encode() gives other tokens than the prompt of a response has"
    written = engine.rollout.encode(chat(texts[0]), texts[1])
    assert written.dtype == np.int32, "encode() of a response is not int32"
    assert len(written) > 1, "encode() of a response has no tokens before the end mark"


def _check_scores(engine: Engine, answers: Sequence[Generation], tolerance: float) -> None:
    turns = turns_of(answers)
    scores = engine.learner.score(turns)
    assert scores.shape == turns.response_mask.shape, f"scores have shape {scores.shape}, expected {turns.response_mask.shape}"
    assert (scores[~turns.response_mask] == 0).all(), "a score under a false response mask is not 0"
    gap = largest_gap(scores, turns.old_log_probs, turns.response_mask)
    assert gap <= tolerance, f"the learner's log-probabilities differ from the sampler's by {gap:.2e}"


def _check_seeds(engine: Engine, texts: Sequence[str], tolerance: float) -> None:
    together = generate(engine, texts)
    again = generate(engine, texts)
    assert all(same_tokens(one, other) for one, other in zip(together, again, strict=True)), "equal seeds gave different responses"
    alone = generate(engine, texts[2:3], [2])[0]
    assert same_tokens(alone, together[2]), "the other requests of a batch changed a response"
    assert np.abs(alone.log_probs - together[2].log_probs).max() <= tolerance, "the other requests of a batch changed a log-probability"
    many = generate(engine, [texts[0]] * 16)
    assert len({answer.token_ids.tobytes() for answer in many}) > 1, "16 seeds gave the same response: are seeds used?"
    greedy = generate(engine, [texts[0]] * 2, sampling=Sampling(0.0, SAMPLING.max_new_tokens))
    assert same_tokens(*greedy), "at temperature 0 the seed changed a response"


def _check_update(engine: Engine, answers: Sequence[Generation], texts: Sequence[str], tolerance: float) -> None:
    turns, before, version = turns_of(answers), engine.digest(), engine.rollout.version
    credit = credit_of(turns)
    none = Credit(credit.advantages, selected=np.zeros(len(turns), bool))
    engine.learner.update(turns, none, PolicyGradient(), STEP)
    assert engine.digest() == before, "an update without selected rows changed the weights"
    metrics = engine.learner.update(turns, credit, PolicyGradient(), STEP)
    assert all(np.isfinite(value) for value in metrics.values()), f"a metric of an update is not finite: {metrics}"
    assert metrics.get("optimizer_steps") == 1, "a batch that is one step did not report optimizer_steps 1"
    assert engine.digest() != before, "an update left the weights (or their digest) as they were"
    published = engine.publish()
    assert published > version, f"publish() returned version {published} after {version}"
    assert engine.rollout.version == published, f"after publish() the rollout engine has version {engine.rollout.version}, not {published}"
    moved = generate(engine, texts)
    assert all(answer.policy_version == published for answer in moved), "a response after publish() carries another version"
    _check_scores(engine, moved, tolerance)


def _check_checkpoint(engine: Engine, other: Engine, folder: Path, texts: Sequence[str], tolerance: float) -> None:
    """``engine`` was trained, ``other`` is fresh: after the checkpoint they go on alike."""
    assert other.digest() != engine.digest(), "two different sets of weights have one digest"
    folder.mkdir()
    engine.learner.save(folder)
    other.learner.load(folder)
    assert other.digest() == engine.digest(), "the weights differ after load()"
    assert other.rollout.version == engine.rollout.version, f"the version after load() is {other.rollout.version}, saved was {engine.rollout.version}"
    pairs = []
    for each in (engine, other):
        answers = generate(each, texts)
        turns = turns_of(answers)
        each.learner.update(turns, credit_of(turns), PolicyGradient(), STEP)
        each.publish()
        pairs.append((answers, each.learner.score(turns), each.digest()))
    (answers, scores, digest), (later_answers, later_scores, later_digest) = pairs
    if engine.deterministic:
        assert all(same_tokens(one, two) for one, two in zip(answers, later_answers, strict=True)), "the responses after load() differ"
        gap = largest_gap(scores, later_scores, scores != 0)
        assert gap <= tolerance, f"the first update after load() went elsewhere (log-probabilities differ by {gap:.2e}): is the optimiser's state saved?"
        assert later_digest == digest, "the first update after load() is not the same bit for bit: is everything saved?"
    other.close()


def same_tokens(one: Generation, other: Generation) -> bool:
    """The two responses are of equal tokens."""
    return np.array_equal(one.token_ids, other.token_ids)
