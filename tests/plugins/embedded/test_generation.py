"""Generation: independence of the batch, reproducibility, the sampling distribution, lengths and stops."""

import numpy as np
import pytest
import torch

from threespo_bench.contracts.engine import Sampling
from threespo_bench.errors import EngineError, UsageError
from threespo_plugins.embedded import generation
from threespo_plugins.embedded.config import EmbeddedConfig
from threespo_plugins.embedded.engine import EmbeddedEngine
from threespo_plugins.embedded.generation import sample

ARCHITECTURES = ("qwen2", "llama", "gpt2")


def assert_equal(one, other, tolerance=1e-5):
    np.testing.assert_array_equal(one.prompt_ids, other.prompt_ids)
    np.testing.assert_array_equal(one.token_ids, other.token_ids)
    np.testing.assert_allclose(one.log_probs, other.log_probs, atol=tolerance, rtol=0)
    assert (one.text, one.finished, one.policy_version) == (other.text, other.finished, other.policy_version)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_response_does_not_depend_on_its_neighbours(make_engine, bench, architecture):
    engine = make_engine(architecture)
    texts = bench.texts(12)  # 1 to 40 words, so some prompts are mostly padding
    together = bench.generate(engine, texts)
    for i in (0, 3, 7, 11):
        assert_equal(bench.generate(engine, [texts[i]], [i])[0], together[i])
    assert_equal(bench.generate(engine, texts[::-1], list(range(12))[::-1])[0], together[11])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_log_probs_are_those_of_the_model_run_plainly(make_engine, bench, architecture):
    engine = make_engine(architecture)
    for answer in bench.generate(engine, bench.texts(5)):
        ids = torch.from_numpy(np.concatenate([answer.prompt_ids, answer.token_ids])).long()[None]
        with torch.no_grad():
            log_probs = torch.log_softmax(engine._policy.model(input_ids=ids).logits[0].float(), -1)
        start = len(answer.prompt_ids)
        expected = log_probs[start - 1 : -1].gather(1, ids[0, start:, None])[:, 0]
        np.testing.assert_allclose(answer.log_probs, expected.numpy(), atol=1e-5, rtol=0)


def test_architectures_without_ready_masks_give_the_same_responses(make_engine, bench):
    texts = bench.texts(6)
    fast, plain = make_engine("llama"), make_engine("llama")
    plain._policy.forward.takes_masks = False
    plain._policy.forward._last_feed_forward = None
    for one, other in zip(bench.generate(fast, texts), bench.generate(plain, texts), strict=True):
        assert_equal(one, other)


def test_equal_seeds_give_equal_bits(make_engine, bench):
    texts = bench.texts(9)
    first, second = bench.generate(make_engine(), texts), bench.generate(make_engine(), texts)
    for one, other in zip(first, second, strict=True):
        assert_equal(one, other, tolerance=0)


def test_other_seeds_give_other_responses(make_engine, bench):
    answers = bench.generate(make_engine(), ["w1 w2"] * 20)
    assert len({tuple(answer.token_ids) for answer in answers}) > 10


def test_reading_equal_prompts_once_changes_nothing(make_engine, bench, monkeypatch):
    engine = make_engine()
    texts = ["w1 w2 w3", "w9"] * 4 + ["w1 w2 w3", "w8"]
    shared = bench.generate(engine, texts)
    monkeypatch.setattr(generation, "_blocks", lambda prompts, _: [(list(prompts), list(range(len(prompts))))])
    for one, other in zip(shared, bench.generate(engine, texts), strict=True):
        assert_equal(one, other)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_dropping_ended_rows_early_or_never_changes_nothing(make_engine, bench, monkeypatch, share):
    engine = make_engine()
    engine._policy.stops = tuple(range(150))
    texts = bench.texts(16)
    usual = bench.generate(engine, texts)
    assert len({len(answer.token_ids) for answer in usual}) > 3
    monkeypatch.setattr(generation, "DROP_BELOW", share)
    for one, other in zip(usual, bench.generate(engine, texts), strict=True):
        assert_equal(one, other)


def test_blocks_and_small_batches_change_nothing(make_engine, bench, monkeypatch):
    texts = bench.texts(10)
    whole = bench.generate(make_engine(), texts)
    monkeypatch.setitem(generation.BLOCK_TOKENS, "cpu", 60)
    for one, other in zip(whole, bench.generate(make_engine(max_batch=3), texts), strict=True):
        assert_equal(one, other)


def test_greedy_takes_the_most_probable_token_whatever_the_seed(make_engine, bench):
    engine = make_engine()
    one, other = bench.generate(engine, ["w1 w2", "w1 w2"], [1, 2], temperature=0.0)
    np.testing.assert_array_equal(one.token_ids, other.token_ids)
    ids = torch.from_numpy(one.prompt_ids).long()[None]
    assert one.token_ids[0] == engine._policy.model(input_ids=ids).logits[0, -1].argmax().item()


def test_temperature_changes_the_choice_but_not_the_meaning_of_log_probs(make_engine, bench):
    engine = make_engine()
    cold, hot = (bench.generate(engine, ["w1"] * 40, temperature=temperature) for temperature in (0.3, 3.0))
    means = [np.mean([answer.log_probs[0] for answer in answers]) for answers in (cold, hot)]
    assert means[0] > means[1]
    ids = torch.from_numpy(cold[0].prompt_ids).long()[None]
    raw = torch.log_softmax(engine._policy.model(input_ids=ids).logits[0, -1].float(), -1)
    for answer in cold + hot:
        assert answer.log_probs[0] == pytest.approx(raw[answer.token_ids[0]].item(), abs=1e-5)


def test_sampled_frequencies_follow_the_tempered_distribution():
    draws, temperature = 20_000, 0.6
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -30.0])
    uniform = torch.from_numpy(np.random.default_rng(0).random(draws))
    token, log_probs = sample(logits.expand(draws, -1), torch.full((draws,), temperature, dtype=torch.float64), uniform)
    expected = torch.softmax(logits.double() / temperature, -1)[:4].numpy() * draws
    observed = np.bincount(token.numpy(), minlength=5)
    assert observed[4] == 0
    assert ((observed[:4] - expected) ** 2 / expected).sum() < 16.3  # chi-square, 3 degrees of freedom, p = 0.001
    torch.testing.assert_close(log_probs, torch.log_softmax(logits, -1)[token])


@pytest.mark.parametrize("uniform", [0.0, 0.5, np.nextafter(1.0, 0.0)])
def test_sampling_never_takes_a_token_of_probability_zero(uniform):
    logits = torch.tensor([[-torch.inf, 1.0, -torch.inf, 1.0, -torch.inf]])
    token, _ = sample(logits, torch.ones(1, dtype=torch.float64), torch.tensor([uniform], dtype=torch.float64))
    assert token.item() in (1, 3)


def test_responses_end_at_a_stop_token_or_at_the_limit(make_engine, bench):
    engine = make_engine()
    with torch.no_grad():
        engine._policy.stops = tuple(range(100))  # many stops: responses of many lengths
    answers = bench.generate(engine, bench.texts(30), max_new_tokens=5)
    assert {len(answer.token_ids) for answer in answers} >= {1, 2, 3, 5}
    for answer in answers:
        stops = np.isin(answer.token_ids, engine._policy.stops)
        assert not stops[:-1].any()
        assert answer.finished == stops[-1]
        assert answer.finished or len(answer.token_ids) == 5
        assert len(answer.log_probs) == len(answer.token_ids)


def test_requests_of_different_limits_share_a_batch(make_engine, bench):
    import asyncio

    engine = make_engine()

    async def main():
        return await asyncio.gather(*(engine.rollout.generate(bench.chat("w1 w2"), 7, Sampling(1.0, limit)) for limit in (1, 4, 8)))

    short, middle, long = asyncio.run(main())
    assert [len(answer.token_ids) for answer in (short, middle, long)] == [1, 4, 8]
    np.testing.assert_array_equal(middle.token_ids, long.token_ids[:4])


def test_text_has_no_special_tokens(make_engine, bench):
    engine = make_engine()
    answer = bench.generate(engine, ["w1"])[0]
    words = [engine._policy.tokenizer.convert_ids_to_tokens(int(i)) for i in answer.token_ids]
    assert answer.text == " ".join(word for word in words if word.startswith("w"))


def test_prompts_are_those_of_the_chat_template(make_engine, bench):
    engine = make_engine()
    answer = bench.generate(engine, ["w1 w2"])[0]
    assert engine._policy.tokenizer.decode(answer.prompt_ids) == "<user> w1 w2 <eos> <assistant>"


def test_a_prompt_that_does_not_fit_is_an_error_for_its_own_request_only(make_engine, bench):
    import asyncio

    engine = make_engine(max_context=10)

    async def main():
        asked = (engine.rollout.generate(bench.chat(text), 0, Sampling(1.0, 8)) for text in ("w1 " * 30, "w1 w2 w3"))
        return await asyncio.gather(*asked, return_exceptions=True)

    error, answer = asyncio.run(main())
    assert isinstance(error, EngineError)
    assert "33 tokens" in str(error)
    assert "10 tokens" in str(error)
    assert len(answer.token_ids) == 4  # 6 of prompt and 4 of response are all that fits


def test_rows_that_reach_the_end_of_the_model_do_not_disturb_the_others(short_model, bench):
    engine = EmbeddedEngine(EmbeddedConfig(), str(short_model), 0)
    answers = bench.generate(engine, ["w1 " * 11, "w1", "w2"], max_new_tokens=10)
    assert [len(answer.token_ids) for answer in answers] == [2, 10, 10]
    assert_equal(answers[1], bench.generate(engine, ["w1"], [1], max_new_tokens=10)[0])


@pytest.mark.parametrize("options", [{"temperature": -1.0}, {"max_new_tokens": 0}])
def test_impossible_sampling_is_refused(make_engine, bench, options):
    with pytest.raises(UsageError, match="out of range"):
        bench.generate(make_engine(), ["w1"], **options)
