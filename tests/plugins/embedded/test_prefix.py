"""Going on from the first tokens of a response, and encoding a response that was not generated."""

import asyncio

import numpy as np
import pytest

from threespo_bench.contracts.engine import Sampling
from threespo_bench.errors import EngineError, UsageError
from threespo_bench.turns import TurnBatch, pad_tokens
from threespo_plugins.embedded.config import EmbeddedConfig
from threespo_plugins.embedded.engine import EmbeddedEngine
from threespo_plugins.models.household_tiny import path as household_tiny

TEXTS = ["w1 w2 w3", "w9", "w1 w2 w3", "w4 w5 w6 w7 w8"]


def go_on(engine, bench, texts, prefixes, limit=8, temperature=1.0, seeds=None):
    """Responses that begin with the prefixes, all asked at once."""

    async def all_of_them():
        asked = (
            engine.rollout.generate(bench.chat(text), seed, Sampling(temperature, limit), prefix)
            for text, prefix, seed in zip(texts, prefixes, seeds or range(len(texts)), strict=True)
        )
        return await asyncio.gather(*asked, return_exceptions=True)

    return asyncio.run(all_of_them())


def whole_turns(generations, prefixes):
    """One row per response, prefix and continuation together."""
    responses = [np.append(np.array(prefix, np.int32), answer.token_ids) for prefix, answer in zip(prefixes, generations, strict=True)]
    prompts = np.empty(len(generations), object)
    prompts[:] = [answer.prompt_ids[: len(answer.prompt_ids) - len(prefix)] for prefix, answer in zip(prefixes, generations, strict=True)]
    width = max(map(len, responses))
    number = np.zeros(len(responses), int)
    return TurnBatch(
        group_id=number,
        traj_id=np.arange(len(responses)),
        step_id=number,
        step_reward=number,
        response_mask=pad_tokens([np.ones(len(response), bool) for response in responses], width, bool),
        response_ids=pad_tokens(responses, width, np.int32),
        prompt_ids=prompts,
    )


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
def test_log_probs_are_those_of_the_whole_response(make_engine, bench, architecture):
    engine = make_engine(architecture)
    first = bench.generate(engine, TEXTS, max_new_tokens=8)
    prefixes = [answer.token_ids[:k].tolist() for answer, k in zip(first, (1, 3, 0, 7), strict=True)]
    answers = go_on(engine, bench, TEXTS, prefixes)
    turns = whole_turns(answers, prefixes)
    scores = engine.learner.score(turns)
    for row, (answer, prefix, begun) in enumerate(zip(answers, prefixes, first, strict=True)):
        np.testing.assert_array_equal(answer.prompt_ids, [*begun.prompt_ids, *prefix])
        assert len(answer.token_ids) == len(answer.log_probs) == 8 - len(prefix)  # the limit counts both; no response stops here
        np.testing.assert_allclose(answer.log_probs, scores[row, len(prefix) : 8], atol=1e-5)
        whole = engine._policy.tokenizer.decode(turns.response_ids[row], skip_special_tokens=True)
        assert answer.text == whole
    np.testing.assert_array_equal(answers[2].token_ids, first[2].token_ids)  # no prefix is as before


def test_a_continuation_depends_on_its_prompt_prefix_and_seed_only(make_engine, bench):
    engine = make_engine()
    prefixes = [[40, 41], [42], [40, 41], []]
    together = go_on(engine, bench, TEXTS, prefixes, seeds=[5, 6, 5, 7])
    np.testing.assert_array_equal(together[0].token_ids, together[2].token_ids)
    (alone,) = go_on(engine, bench, TEXTS[1:2], prefixes[1:2], seeds=[6])
    np.testing.assert_array_equal(alone.token_ids, together[1].token_ids)
    np.testing.assert_allclose(alone.log_probs, together[1].log_probs, atol=1e-5)
    (other,) = go_on(engine, bench, TEXTS[:1], prefixes[:1], seeds=[8])
    assert not np.array_equal(other.token_ids, together[0].token_ids)


def test_the_greedy_response_goes_on_as_it_was(make_engine, bench):
    engine = make_engine()
    whole = bench.generate(engine, TEXTS, temperature=0.0, max_new_tokens=8)
    for k in (1, 4, 7):
        answers = go_on(engine, bench, TEXTS, [answer.token_ids[:k].tolist() for answer in whole], temperature=0.0)
        for answer, begun in zip(answers, whole, strict=True):
            np.testing.assert_array_equal(answer.token_ids, begun.token_ids[k:])
            np.testing.assert_allclose(answer.log_probs, begun.log_probs[k:], atol=1e-5)
            assert (answer.text, answer.finished) == (begun.text, begun.finished)


def test_it_ends_at_a_stop_token(make_engine, bench):
    engine = make_engine()
    engine._policy.stops = tuple(range(200))  # many stops: continuations of many lengths
    answers = go_on(engine, bench, ["w1 w2"] * 20, [[300]] * 20)
    assert {len(answer.token_ids) for answer in answers} >= {1, 2, 3}
    for answer in answers:
        stops = np.isin(answer.token_ids, engine._policy.stops)
        assert not stops[:-1].any()
        assert answer.finished == stops[-1]
        assert answer.finished or len(answer.token_ids) == 7


def test_prefixes_that_leave_nothing_to_generate_are_refused(make_engine, bench):
    engine = make_engine(max_context=12)
    full, ended, long, fits = go_on(engine, bench, ["w1"] * 4, [[40] * 8, [40, 1], [40] * 9, [40] * 7], limit=8)
    assert isinstance(full, UsageError)
    assert "leaves no room" in str(full)
    assert isinstance(ended, UsageError)
    assert "ends responses" in str(ended)
    assert isinstance(long, UsageError)
    assert len(fits.token_ids) == 1
    (context,) = go_on(engine, bench, ["w1"], [[40] * 8], limit=100)
    assert isinstance(context, EngineError)
    assert "12 tokens" in str(context)


@pytest.fixture(scope="module")
def household() -> EmbeddedEngine:
    return EmbeddedEngine(EmbeddedConfig(), str(household_tiny()), 0)


def test_an_encoded_response_has_the_end_mark_and_decodes_to_the_text(household, bench):
    tokenizer = household._policy.tokenizer
    for text in ("go to drawer 2", "take mug 1 from desk 1", "Zürich? {xyzzy}", ""):
        ids = household.rollout.encode(bench.chat("w"), text)
        assert ids.dtype == np.int32
        assert ids[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(ids).strip() == f"{text}<|im_end|>"
    prompt = household.rollout.encode(bench.chat("w"))
    assert tokenizer.decode(prompt) == "<|user|> w<|im_end|>\n<|assistant|>"


def test_generated_text_encodes_to_the_generated_tokens(household, bench):
    answers = bench.generate(household, ["go to kitchen", "put the mug on the desk", "heat it"], temperature=0.0, max_new_tokens=16)
    finished = [answer for answer in answers if answer.finished]
    assert finished
    for answer in finished:
        np.testing.assert_array_equal(household.rollout.encode(bench.chat("x"), answer.text), answer.token_ids)
        np.testing.assert_array_equal(household.rollout.encode(bench.chat("x"), answer.text.strip()), answer.token_ids)


def test_a_response_is_encoded_as_the_template_writes_it(make_engine, bench):
    engine = make_engine()
    assert engine._policy.tokenizer.decode(engine.rollout.encode(bench.chat("w1"), "w2 w3")) == "w2 w3 <eos>"
