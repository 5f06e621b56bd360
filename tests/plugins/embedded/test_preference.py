"""Updates by preferences: the exact gradient, mini-batches of whole pairs, the moving reference, and what is refused."""

import numpy as np
import pytest
import torch

from threespo_bench.contracts.algorithm import Credit, Item, Preferences
from threespo_bench.contracts.objective import Optimization, Preference
from threespo_bench.errors import DataError, EngineError
from threespo_bench.objectives.preference import preference_losses
from threespo_bench.seeding import Streams
from threespo_plugins.embedded import preference

STILL = Optimization(learning_rate=0.0, weight_decay=0.0, gradient_clip=1e9)
MOVE = Optimization(learning_rate=1e-3, weight_decay=0.0)
TEXTS = ["w1 w2 w3"] * 4 + ["w4", "w5 w6", "w4", "w5 w6"]


def item(*rows, weights=None):
    return Item(np.array(rows), np.ones(len(rows)) if weights is None else np.array(weights))


PAIRS = Preferences([item(0, 4, weights=[1.0, 0.4]), item(1), item(0)], [item(1, 5, weights=[1.0, 0.6]), item(2), item(3)])
LISTS = Preferences([item(0, 4), item(1)], [item(2), item(3, 5), item(6)], paired=False)


def batch(engine, bench):
    turns = bench.turns(bench.generate(engine, TEXTS))
    turns.response_mask[1, 3:] = False
    return turns


def credit(turns, preferences=PAIRS, **columns):
    return Credit(np.zeros(turns.response_mask.shape), preferences=preferences, **columns)


def gradient(engine, turns, given, objective):
    engine.learner.update(turns, given, objective, STILL)
    return torch.cat([parameter.grad.flatten().clone() for parameter in engine._policy.model.parameters()])


def away_from_the_reference(turns):
    """Reference log-probabilities that are not the policy's, so that the slopes of the pairs differ."""
    turns.ref_log_probs = turns.old_log_probs + np.random.default_rng(3).normal(size=turns.response_mask.shape)


def plain_gradient(engine, turns, preferences, objective):
    """The gradient by one backward pass through everything, with each row computed alone."""
    model = engine._policy.model
    model.zero_grad()
    sums = {}
    for row in range(len(turns)):
        prompt, count = len(turns.prompt_ids[row]), int(turns.response_mask[row].sum())
        ids = torch.from_numpy(np.concatenate([turns.prompt_ids[row], turns.response_ids[row, :count]])).long()
        log_probs = torch.log_softmax(model(input_ids=ids[None]).logits[0], -1)[prompt - 1 : -1].gather(1, ids[prompt:, None])[:, 0]
        sums[row] = (log_probs - torch.from_numpy(turns.ref_log_probs[row, :count])).sum()

    def ratio(one):
        total = sum(weight * sums[row] for row, weight in zip(one.rows.tolist(), one.weights.tolist(), strict=True))
        return total / int(turns.response_mask[one.rows].sum()) if objective.average_log_prob else total

    chosen, rejected = (torch.stack([ratio(one) for one in side]) for side in (preferences.chosen, preferences.rejected))
    loss = preference_losses(objective, chosen, rejected).losses.mean()
    loss.backward()
    return loss.item(), torch.cat([parameter.grad.flatten().clone() for parameter in model.parameters()])


@pytest.mark.parametrize(
    ("objective", "preferences"),
    [
        (Preference(label_smoothing=0.1), PAIRS),
        (Preference(average_log_prob=True, beta=0.5), PAIRS),
        (Preference(loss="ipo"), PAIRS),
        (Preference(loss="kto"), PAIRS),
        (Preference(loss="kto", undesirable_weight=0.5), LISTS),
    ],
)
def test_the_gradient_is_that_of_the_plain_loss_however_it_is_divided(make_engine, bench, objective, preferences):
    found = []
    for micro_batch_tokens in (100_000, 1):
        engine = make_engine(micro_batch_tokens=micro_batch_tokens)
        turns = batch(engine, bench)
        away_from_the_reference(turns)
        found.append(gradient(engine, turns, credit(turns, preferences), objective))
    loss, expected = plain_gradient(engine, turns, preferences, objective)
    assert engine.learner.update(turns, credit(turns, preferences), objective, STILL)["loss"] == pytest.approx(loss, rel=1e-5)
    for one in found:
        assert ((one - expected).norm() / expected.norm()).item() < 1e-5


def test_metrics_say_how_well_the_pairs_are_told_apart(make_engine, bench):
    engine = make_engine()
    turns = batch(engine, bench)
    objective = Preference(beta=0.5)
    first = engine.learner.update(turns, credit(turns), objective, MOVE)
    assert set(first) == {
        "rows", "tokens", "pairs", "optimizer_steps", "loss", "margin_mean", "accuracy", "grad_norm", "logprob_gap_max", "logprob_gap_mean"
    }  # fmt: skip
    assert all(isinstance(value, float) and np.isfinite(value) for value in first.values())
    assert (first["rows"], first["pairs"], first["optimizer_steps"]) == (6.0, 3.0, 1.0)
    assert first["tokens"] == turns.response_mask[:6].sum()
    assert first["loss"] == pytest.approx(np.log(2), abs=1e-5)  # the policy is the reference still
    assert first["margin_mean"] == pytest.approx(0.0, abs=1e-5)
    assert 0.0 < first["logprob_gap_max"] < 1e-5
    for _ in range(10):
        last = engine.learner.update(turns, credit(turns), objective, MOVE)
    assert last["accuracy"] == 1.0
    assert last["margin_mean"] > 0.2
    assert last["loss"] < first["loss"]


def test_the_scale_of_a_credit_and_selected_tokens(make_engine, bench):
    engine = make_engine()
    turns = batch(engine, bench)
    away_from_the_reference(turns)
    objective = Preference()
    whole = gradient(engine, turns, credit(turns), objective)
    torch.testing.assert_close(gradient(engine, turns, credit(turns, scale=0.5), objective), 0.5 * whole, atol=1e-8, rtol=1e-4)
    chosen = np.zeros_like(turns.response_mask)
    chosen[:, 0] = True
    metrics = engine.learner.update(turns, credit(turns, selected_tokens=chosen), objective, STILL)
    assert metrics["tokens"] == 6.0


@pytest.mark.parametrize("garbage", [np.nan, np.inf])
def test_garbage_in_masked_slots_changes_nothing(make_engine, bench, garbage):
    found = []
    for fill in (0.0, garbage):
        engine = make_engine()
        turns = batch(engine, bench)
        away_from_the_reference(turns)
        turns.ref_log_probs[~turns.response_mask] = fill
        turns.old_log_probs[~turns.response_mask] = fill
        found.append(gradient(engine, turns, credit(turns), Preference()))
    assert torch.equal(*found)


def test_mini_batches_are_whole_pairs_in_seeded_order():
    every = [preference.Comparison(item(*range(n)), item(*range(n))) for n in (1, 1, 1, 3, 1)]  # 2, 2, 2, 6 and 2 turns

    def run(seed, **options):
        number = {id(one): i for i, one in enumerate(every)}
        return [[number[id(one)] for one in part] for part in preference.mini_batches(every, Optimization(**options), Streams(seed), 0)]

    whole = run(0, epochs=2)
    assert [sorted(part) for part in whole] == [[0, 1, 2, 3, 4]] * 2
    assert whole[0] != whole[1]
    for seed in range(4):
        parts = run(seed, mini_batch_turns=4)
        assert all(sum(every[i].turns for i in part) <= 4 or part == [3] for part in parts)
        assert [i for part in parts for i in part] == run(seed)[0]
    assert run(0, mini_batch_turns=1) != run(1, mini_batch_turns=1)


def test_an_update_makes_a_step_for_each_mini_batch(make_engine, bench):
    engine = make_engine()
    turns = batch(engine, bench)
    optimization = Optimization(learning_rate=1e-3, epochs=2, mini_batch_turns=2)
    assert engine.learner.update(turns, credit(turns), Preference(), optimization)["optimizer_steps"] == 6.0
    assert engine.publish() == 1


def test_a_step_that_fails_takes_the_others_back(make_engine, bench, monkeypatch):
    engine = make_engine()
    turns = batch(engine, bench)
    before, calls = engine.digest(), []
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_: calls.append(1) or torch.tensor(float("nan") if len(calls) == 2 else 1.0))
    with pytest.raises(EngineError, match="gradient norm is nan"):
        engine.learner.update(turns, credit(turns), Preference(), Optimization(learning_rate=1e-3, mini_batch_turns=2))
    assert len(calls) == 2
    assert engine.digest() == before


@pytest.mark.parametrize("paired", [True, False])
def test_no_preferences_are_no_step(make_engine, bench, paired):
    engine = make_engine()
    turns = batch(engine, bench)
    before = engine.digest()
    metrics = engine.learner.update(turns, credit(turns, Preferences([], [], paired)), Preference(loss="kto"), Optimization(learning_rate=1.0))
    assert metrics == {"rows": 0.0, "tokens": 0.0, "pairs": 0.0, "optimizer_steps": 0.0}
    assert engine.digest() == before


def test_the_first_update_checks_the_sampler(make_engine, bench):
    engine = make_engine()
    turns = batch(engine, bench)
    turns.old_log_probs[4] += 0.2
    with pytest.raises(EngineError, match="log-probabilities are not the learner's: row 4"):
        engine.learner.update(turns, credit(turns), Preference(), MOVE)


@pytest.mark.parametrize(
    ("preferences", "objective", "error", "says"),
    [
        (None, Preference(), DataError, "the credit has none"),
        (Preferences([item(0)], []), Preference(), DataError, "1 chosen and 0 rejected items"),
        (LISTS, Preference(loss="ipo"), DataError, "loss=ipo needs pairs"),
        (Preferences([item(0)], [item(9)]), Preference(), DataError, "rejected item 0 .* rows \\[9\\]"),
        (Preferences([item(0)], [item(7)]), Preference(), DataError, "rejected item 0 .* rows \\[7\\]"),  # padding
        (Preferences([item(0, weights=[np.nan])], [item(1)]), Preference(), DataError, "chosen item 0 .* weight"),
        (Preferences([item(0), item(6)], [item(1), item(2)]), Preference(), EngineError, "chosen item 1 .* no tokens \\(rows \\[6\\]\\)"),
        (Preferences([item(0)], [item()]), Preference(), EngineError, "rejected item 0 .* no turns"),
    ],
)
def test_preferences_that_cannot_be_learned_from_are_named(make_engine, bench, preferences, objective, error, says):
    engine = make_engine()
    turns = batch(engine, bench)
    turns.response_mask[6] = False
    turns.padding = np.arange(8) == 7
    with pytest.raises(error, match=says):
        engine.learner.update(turns, credit(turns, preferences), objective, MOVE)


def test_a_refreshed_reference_is_the_present_policy(make_engine, bench):
    engine = make_engine()
    turns = batch(engine, bench)
    start = engine.learner.score(turns)
    engine.learner.update(turns, credit(turns), Preference(), MOVE)
    moved = engine.learner.score(turns)
    assert np.abs(moved - start).max() > 1e-3
    np.testing.assert_array_equal(engine.learner.score(turns, "reference"), start)
    engine.learner.refresh_reference()
    np.testing.assert_array_equal(engine.learner.score(turns, "reference"), moved)
    assert engine.learner.update(turns, credit(turns), Preference(), MOVE)["margin_mean"] == pytest.approx(0.0, abs=1e-6)
    np.testing.assert_array_equal(engine.learner.score(turns, "reference"), moved)  # it does not follow the policy


def test_a_checkpoint_has_the_reference_only_if_it_moved(make_engine, bench, tmp_path):
    engine = make_engine()
    turns = batch(engine, bench)
    engine.learner.update(turns, credit(turns), Preference(), MOVE)
    engine.learner.save(tmp_path / "before")
    start = engine.learner.score(turns, "reference")
    engine.learner.refresh_reference()
    engine.learner.update(turns, credit(turns), Preference(), MOVE)
    engine.learner.save(tmp_path / "after")
    turns.policy_version = None  # the log-probabilities of the batch are those of an earlier policy
    assert not (tmp_path / "before" / "reference.safetensors").exists()

    resumed = make_engine()
    resumed.learner.load(tmp_path / "after")
    np.testing.assert_array_equal(resumed.learner.score(turns, "reference"), engine.learner.score(turns, "reference"))
    resumed.learner.save(tmp_path / "again")
    assert (tmp_path / "again" / "reference.safetensors").read_bytes() == (tmp_path / "after" / "reference.safetensors").read_bytes()
    for one in (engine, resumed):
        one.learner.update(turns, credit(turns), Preference(), MOVE)
    assert engine.digest() == resumed.digest()
    resumed.learner.load(tmp_path / "before")  # back to the starting weights
    np.testing.assert_array_equal(resumed.learner.score(turns, "reference"), start)
