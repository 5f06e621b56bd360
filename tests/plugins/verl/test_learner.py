"""The learner beyond what it shares with the embedded one: failures, checkpoints, LoRA."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.plugins.verl import local_workers, recorded
from threespo_bench.contracts.algorithm import Credit
from threespo_bench.contracts.objective import Optimization, PolicyGradient
from threespo_bench.errors import EngineError, StorageError, UsageError
from threespo_bench.testing.engines import TEXTS, check_engine, credit_of, generate, turns_of
from threespo_plugins.embedded.config import EmbeddedConfig
from threespo_plugins.embedded.engine import EmbeddedEngine

STEP = Optimization(learning_rate=3e-4)


@pytest.fixture
def learner(model, rank):
    return local_workers.make_learner(model)


def batch(learner):
    """A batch of the present policy's own log-probabilities, and advantages."""
    turns = recorded.recorded_turns(learner.score)
    turns.old_log_probs = learner.score(turns)
    return turns, Credit(np.where(turns.response_mask, np.random.default_rng(0).normal(size=(len(turns), 1)), 0.0))


def digest(learner):
    return learner._workers.all("digest")[0]


def test_nothing_selected_changes_nothing(learner):
    turns, credit = batch(learner)
    before = digest(learner)
    credit.selected = np.zeros(len(turns), bool)
    assert learner.update(turns, credit, PolicyGradient(), STEP)["optimizer_steps"] == 0
    assert learner.update(turns, Credit(np.zeros(turns.response_mask.shape)), PolicyGradient(), STEP)["optimizer_steps"] == 0
    assert digest(learner) == before


def test_a_failed_mini_batch_takes_all_back(learner):
    """The first steps of a batch were made; then the loss is not finite."""
    turns, credit = batch(learner)
    learner.update(turns, credit, PolicyGradient(), STEP)  # so that the optimiser has a state
    before = digest(learner)
    bad = replace(credit, advantages=credit.advantages * 1e38 * 100)
    wanted = replace(STEP, mini_batch_turns=12)
    with pytest.raises(EngineError, match=r"the (loss|gradient norm) is (nan|inf); the weights were left"):
        learner.update(turns, bad, PolicyGradient(), wanted)
    assert digest(learner) == before
    again = local_workers.make_learner(learner._policy.folder)
    for each in (learner, again):
        if each is again:
            again.update(turns, credit, PolicyGradient(), STEP)
            again._updates = learner._updates - 1
        each.update(turns, credit, PolicyGradient(), wanted)
    assert digest(learner) == digest(again), "the optimiser's state was not taken back"


def test_tokens_of_another_policy_are_refused(learner):
    turns, credit = batch(learner)
    turns.policy_version = np.zeros(len(turns), int)
    turns.old_log_probs = np.where(turns.response_mask, turns.old_log_probs - 0.01, 0.0)
    for refused in (lambda: learner.update(turns, credit, PolicyGradient(), STEP), lambda: learner.verify(turns)):
        with pytest.raises(EngineError, match="sampler's log-probabilities are not the learner's"):
            refused()
    turns.policy_version = np.full(len(turns), 7)
    with pytest.raises(EngineError, match="stale weights"):
        learner.update(turns, credit, PolicyGradient(), STEP)


def test_a_checkpoint_goes_on_exactly(learner, model, tmp_path):
    turns, credit = batch(learner)
    learner.update(turns, credit, PolicyGradient(kl_coef=0.1), STEP)
    learner.refresh_reference()
    learner.save(tmp_path / "state")
    other = local_workers.make_learner(model, seed=5)
    other.load(tmp_path / "state")
    assert digest(other) == digest(learner)
    np.testing.assert_array_equal(other.score(turns, "reference"), learner.score(turns, "actor"))
    other._streams = learner._streams
    for each in (learner, other):
        each.update(turns, credit, PolicyGradient(kl_coef=0.1), replace(STEP, mini_batch_turns=12))
    assert digest(other) == digest(learner)
    assert (tmp_path / "state" / "actor" / "huggingface" / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()


def test_a_damaged_checkpoint_is_a_storage_error(learner, tmp_path):
    learner.save(tmp_path / "state")
    shard = tmp_path / "state" / "actor" / "model_world_size_1_rank_0.pt"
    shard.rename(shard.with_suffix(".away"))
    with pytest.raises(StorageError, match="lacks the shard of rank 0"):
        learner.load(tmp_path / "state")
    with pytest.raises(StorageError, match="not a usable checkpoint"):
        learner.load(tmp_path / "nowhere")
    text = (tmp_path / "state" / "actor.json").read_text()
    (tmp_path / "state" / "actor.json").write_text(text.replace('"ranks": 1', '"ranks": 2'))
    with pytest.raises(StorageError, match="written by 2 ranks, and there are 1"):
        learner.load(tmp_path / "state")


def test_the_export_is_what_the_embedded_engine_scores(learner, tmp_path):
    turns, credit = batch(learner)
    learner.update(turns, credit, PolicyGradient(), STEP)
    learner.export(tmp_path / "model")
    again = EmbeddedEngine(EmbeddedConfig(), str(tmp_path / "model"), 0)
    assert again.digest() == digest(learner)
    np.testing.assert_allclose(again.learner.score(turns), learner.score(turns), atol=1e-5)


def test_lora_trains_adapters_only_and_exports_them_merged(model, rank, tmp_path):
    learner = local_workers.make_learner(model, lora_rank=4, lora_alpha=8, lora_targets=["q_proj", "v_proj"])
    turns, credit = batch(learner)
    start = learner.score(turns)
    np.testing.assert_allclose(learner.score(turns, "reference"), start, atol=1e-5)
    for _ in range(3):
        learner.update(turns, credit, PolicyGradient(kl_coef=0.05), replace(STEP, learning_rate=1e-2))
    moved = learner.score(turns)
    assert np.abs(moved - start).max() > 1e-3
    np.testing.assert_allclose(learner.score(turns, "reference"), start, atol=1e-5)
    learner.export(tmp_path / "model")
    merged = EmbeddedEngine(EmbeddedConfig(), str(tmp_path / "model"), 0)
    np.testing.assert_allclose(merged.learner.score(turns), moved, atol=1e-4)
    learner.refresh_reference()
    np.testing.assert_allclose(learner.score(turns, "reference"), moved, atol=1e-4)
    learner.save(tmp_path / "state")
    other = local_workers.make_learner(model, lora_rank=4, lora_alpha=8, lora_targets=["q_proj", "v_proj"])
    other.load(tmp_path / "state")
    assert digest(other) == digest(learner)


def test_without_ray_the_engine_keeps_the_contract(model, rank):
    check_engine(lambda: local_workers.LocalEngine(model))


def test_adapters_reach_the_server(model, rank):
    engine = local_workers.LocalEngine(model, lora_rank=4, lora_alpha=8, lora_targets=["q_proj", "down_proj"])
    for number in range(3):
        turns = turns_of(generate(engine, TEXTS))
        np.testing.assert_allclose(engine.learner.score(turns), turns.old_log_probs, atol=1e-4)
        engine.learner.update(turns, credit_of(turns), PolicyGradient(), replace(STEP, learning_rate=2e-2))
        with pytest.raises(EngineError, match="not published"):
            generate(engine, TEXTS)
        assert engine.publish() == number + 1
    assert np.abs(engine.learner.score(turns) - turns.old_log_probs)[turns.response_mask].max() > 1e-2


def test_what_needs_a_critic_says_so(learner):
    with pytest.raises(UsageError, match="no critic"):
        learner.values(recorded.recorded_turns(learner.score))


def test_adapters_start_at_the_same_values_for_a_seed(model, rank):
    """A run that is resumed in another process starts from the weights that it had."""
    import torch

    options = {"lora_rank": 4, "lora_targets": ["q_proj"]}
    digests = []
    for state, seed in ((1, 0), (2, 0), (3, 5)):
        torch.manual_seed(state)
        _, workers = local_workers.policy_workers(model, seed, **options)
        digests.append(workers.all("digest")[0])
    assert digests[0] == digests[1] != digests[2]
