"""Embeddings of texts and prompts: means of the starting weights' last hidden states."""

import numpy as np
import pytest
import torch
import transformers

from threespo_bench.contracts.objective import Optimization, PolicyGradient
from threespo_bench.errors import EngineError
from threespo_plugins.embedded.config import EmbeddedConfig
from threespo_plugins.embedded.engine import EmbeddedEngine
from threespo_plugins.models.household_tiny import path as household_tiny


@pytest.mark.parametrize("architecture", ["qwen2", "llama", "gpt2"])
def test_a_vector_is_the_mean_of_the_hidden_states(make_engine, models, bench, architecture):
    engine, texts = make_engine(architecture), bench.texts(6)
    body = transformers.AutoModelForCausalLM.from_pretrained(models[architecture]).base_model.eval().double()
    found = engine.learner.embed(texts)
    assert found.shape == (6, 128)
    assert found.dtype == np.float64
    for vector, text in zip(found, texts, strict=True):
        ids = torch.tensor([engine._policy.tokenizer.encode(text, add_special_tokens=False)])
        with torch.no_grad():
            expected = body(input_ids=ids).last_hidden_state[0].mean(dim=0)
        np.testing.assert_allclose(vector, expected.numpy(), atol=1e-6, rtol=0)
    for i in (0, 3):
        np.testing.assert_allclose(engine.learner.embed([texts[i]])[0], found[i], atol=1e-6, rtol=0)


def test_the_vector_of_a_prompt_is_that_of_a_text_with_its_tokens(make_engine, bench):
    engine, texts = make_engine(micro_batch_tokens=12), bench.texts(4)
    prompts = [np.array(engine._policy.tokenizer.encode(text, add_special_tokens=False), np.int32) for text in texts]
    np.testing.assert_allclose(engine.learner.embed_prompts(prompts), engine.learner.embed(texts), atol=1e-12, rtol=0)
    assert (engine.learner.embed_prompts([np.zeros(0, np.int32)]) == 0).all()
    assert engine.learner.embed_prompts([]).shape == (0, 128)


def test_a_vector_does_not_depend_on_the_other_texts():
    engine = EmbeddedEngine(EmbeddedConfig(), str(household_tiny()), 0)
    texts = ["You are in the middle of a room. Looking quickly around you, you see a desk 1, and a drawer 2.", "Nothing happens.", "You open the drawer 2."]
    texts += [f"You arrive at shelf {i}. On the shelf {i}, you see a " + "mug 1, a " * (i % 7) + "pen 2." for i in range(20)]
    together = engine.learner.embed(texts)
    for i in (0, 1, 2, 9, 22):
        np.testing.assert_allclose(engine.learner.embed([texts[i]])[0], together[i], atol=1e-6, rtol=0)
    np.testing.assert_array_equal(engine.learner.embed(texts), together)
    small = EmbeddedEngine(EmbeddedConfig(micro_batch_tokens=1), str(household_tiny()), 0)
    np.testing.assert_allclose(small.learner.embed(texts[::-1])[::-1], together, atol=1e-6, rtol=0)
    assert len(np.unique(together.round(6), axis=0)) == len(texts)


def test_they_stay_when_policy_and_reference_move(make_engine, bench):
    engine, texts = make_engine(), bench.texts(3)
    before = make_engine().learner.embed(texts)
    turns = bench.turns(bench.generate(engine, texts))
    engine.learner.update(turns, bench.credit(turns), PolicyGradient(), Optimization(learning_rate=1e-2))
    engine.learner.refresh_reference()
    np.testing.assert_array_equal(engine.learner.embed(texts), before)


def test_empty_and_long_texts(make_engine):
    engine = make_engine(max_context=8)
    found = engine.learner.embed(["", "w1 w2"])
    assert (found[0] == 0).all()
    assert (found[1] != 0).any()
    assert engine.learner.embed([]).shape == (0, 128)
    with pytest.raises(EngineError, match="a text of 9 tokens does not fit the model's context of 8 tokens"):
        engine.learner.embed(["w1 " * 9])
