"""The learner: agreement with the sampler, exact accumulation, masks, KL, and what an update does to the weights."""

import numpy as np
import pytest
import torch

from threespo_bench.contracts.algorithm import Credit
from threespo_bench.contracts.objective import AGGREGATIONS, Optimization, PolicyGradient
from threespo_bench.errors import DataError, EngineError, UsageError
from threespo_bench.turns import TurnBatch
from threespo_plugins.embedded import gradient as gradient_module
from threespo_plugins.embedded.config import EmbeddedConfig
from threespo_plugins.embedded.engine import EmbeddedEngine

ARCHITECTURES = ("qwen2", "llama", "gpt2")
STILL = Optimization(learning_rate=0.0, weight_decay=0.0)


def gradient(engine, turns, credit, objective=None, optimization=STILL):
    """The gradient of one update that moves nothing, as one vector."""
    engine.learner.update(turns, credit, objective or PolicyGradient(), optimization)
    return torch.cat([parameter.grad.flatten().clone() for parameter in engine._policy.model.parameters()])


def relative(one, other):
    return ((one - other).norm() / other.norm()).item()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_learner_and_sampler_agree(make_engine, bench, architecture):
    engine = make_engine(architecture)
    turns = bench.turns(bench.generate(engine, bench.texts(8) + ["w1 w2"] * 6))
    gap = np.abs(engine.learner.score(turns) - turns.old_log_probs)[turns.response_mask]
    assert gap.max() < 1e-5
    metrics = engine.learner.update(turns, bench.credit(turns), PolicyGradient(), Optimization())
    assert metrics["logprob_gap_max"] < 1e-5
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["rows"] == 14


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_scores_do_not_depend_on_padding_packing_or_order(make_engine, bench, architecture):
    engine = make_engine(architecture)
    turns = bench.turns(bench.generate(engine, bench.texts(6) + ["w5"] * 4))
    together = engine.learner.score(turns)
    for i in range(len(turns)):
        np.testing.assert_allclose(engine.learner.score(turns.take(np.array([i])))[0], together[i], atol=1e-5)
    order = np.random.default_rng(0).permutation(len(turns))
    np.testing.assert_allclose(engine.learner.score(turns.take(order)), together[order], atol=1e-5)
    engine._policy.forward.takes_masks = False  # one plain sequence per row
    np.testing.assert_allclose(engine.learner.score(turns), together, atol=1e-5)


def test_packs_may_be_longer_than_the_model_has_positions(short_model, bench):
    engine = EmbeddedEngine(EmbeddedConfig(), str(short_model), 0)
    turns = bench.turns(bench.generate(engine, ["w1 w2 w3 w4 w5 w6 w7"] * 3 + ["w1"]))
    assert engine._policy.limit == 16
    scores = engine.learner.score(turns)
    np.testing.assert_allclose(scores[turns.response_mask], turns.old_log_probs[turns.response_mask], atol=1e-5)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_gradient_does_not_depend_on_the_division_into_micro_batches(make_engine, bench, aggregation):
    texts = bench.texts(7) + ["w1 w2 w3"] * 5
    objective = PolicyGradient(aggregation=aggregation, kl_coef=0.1, entropy_coef=0.01)
    gradients = []
    for micro_batch_tokens in (100_000, 150, 1):
        engine = make_engine(micro_batch_tokens=micro_batch_tokens)
        turns = bench.turns(bench.generate(engine, texts))
        turns.response_mask[1, 3:] = False  # responses of different lengths
        gradients.append(gradient(engine, turns, bench.credit(turns), objective))
    assert relative(gradients[1], gradients[0]) < 5e-6  # float32 rounding; a wrong denominator would show at 1e-2
    assert relative(gradients[2], gradients[0]) < 5e-6


def test_sharing_prompts_does_not_change_the_gradient(make_engine, bench):
    gradients = []
    for shares in (True, False):
        engine = make_engine()
        turns = bench.turns(bench.generate(engine, ["w1 w2 w3 w4 w5"] * 6 + ["w7"] * 3))
        engine._policy.forward.takes_masks = shares
        gradients.append(gradient(engine, turns, bench.credit(turns)))
    assert relative(*gradients) < 1e-5


def test_the_gradient_is_that_of_the_plain_loss(make_engine, bench):
    engine = make_engine()
    turns = bench.turns(bench.generate(engine, bench.texts(3)))
    credit = bench.credit(turns)
    found = gradient(engine, turns, credit)
    engine._policy.model.zero_grad()
    loss = 0.0
    for i in range(3):
        prompt, count = len(turns.prompt_ids[i]), int(turns.response_mask[i].sum())
        ids = torch.from_numpy(np.concatenate([turns.prompt_ids[i], turns.response_ids[i, :count]])).long()
        log_probs = torch.log_softmax(engine._policy.model(input_ids=ids[None]).logits[0], -1)[prompt - 1 : -1].gather(1, ids[prompt:, None])[:, 0]
        old, advantage = (torch.from_numpy(values[i, :count]) for values in (turns.old_log_probs, credit.advantages))
        loss = loss - ((log_probs - old).exp() * advantage).sum() / turns.response_mask.sum()
    loss.backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in engine._policy.model.parameters()])
    found_norm, expected_norm = found.norm(), expected.norm()
    assert expected_norm > 1.0  # so the found one was clipped to norm 1
    torch.testing.assert_close(found / found_norm, expected / expected_norm, atol=1e-6, rtol=1e-4)


def test_the_scale_of_a_credit_is_a_factor_on_the_gradient(make_engine, bench):
    gradients = []
    for scale in (1.0, 0.25):
        engine = make_engine()
        turns = bench.turns(bench.generate(engine, bench.texts(4)))
        credit = bench.credit(turns, scale=scale)
        credit.advantages *= 1e-3  # so that the gradient is not clipped
        gradients.append(gradient(engine, turns, credit))
    torch.testing.assert_close(gradients[1], 0.25 * gradients[0], atol=1e-8, rtol=1e-4)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, 1e30])
def test_garbage_in_masked_slots_changes_nothing(make_engine, bench, garbage):
    gradients = []
    for fill in (0.0, garbage):
        engine = make_engine()
        turns = bench.turns(bench.generate(engine, bench.texts(5)))
        turns.response_mask[::2, 2:] = False
        credit = bench.credit(turns)
        turns.ref_log_probs = turns.old_log_probs - 0.1
        for values in (turns.old_log_probs, turns.ref_log_probs, credit.advantages):
            values[~turns.response_mask] = fill
        gradients.append(gradient(engine, turns, credit, PolicyGradient(kl_coef=0.1)))
    assert torch.equal(*gradients)


@pytest.mark.parametrize("column", ["advantages", "old_log_probs", "ref_log_probs"])
def test_nan_at_an_unmasked_token_is_an_error_that_says_where(make_engine, bench, column):
    engine = make_engine()
    turns = bench.turns(bench.generate(engine, bench.texts(4)))
    turns.ref_log_probs = turns.old_log_probs.copy()
    credit = bench.credit(turns)
    (credit.advantages if column == "advantages" else getattr(turns, column))[2, 1] = np.nan
    before = engine.digest()
    with pytest.raises(EngineError, match=f"{column} is nan at row 2, token 1"):
        engine.learner.update(turns, credit, PolicyGradient(kl_coef=0.1), Optimization())
    assert engine.digest() == before


def test_observation_tokens_inside_a_response_are_read_but_not_learned(make_engine, bench):
    engine = make_engine()
    turns = bench.turns(bench.generate(engine, bench.texts(3)))
    whole = engine.learner.score(turns)
    turns.response_mask[:, 1:3] = False
    turns.response_mask[:, 0] = False
    part = engine.learner.score(turns)
    np.testing.assert_allclose(part[:, 3:], whole[:, 3:], atol=1e-5)
    assert (part[:, :3] == 0).all()


def test_padding_rows_and_unselected_rows_do_not_take_part(make_engine, bench):
    texts = bench.texts(6)
    gradients = []
    for rows in (np.array([0, 2, 3]), None):
        engine = make_engine()
        turns = bench.turns(bench.generate(engine, texts))
        credit = bench.credit(turns)
        if rows is None:
            turns.padding = np.array([False, True, False, False, False, False])
            turns.old_log_probs[1] = np.nan
            credit.selected = np.array([True, True, True, True, False, False])
        else:
            turns, credit = turns.take(rows), Credit(credit.advantages[rows])
        gradients.append(gradient(engine, turns, credit))
    torch.testing.assert_close(*gradients, atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("case", ["none selected", "all padding", "empty masks"])
def test_nothing_selected_is_no_step(make_engine, bench, case):
    engine = make_engine()
    turns = bench.turns(bench.generate(engine, bench.texts(3)))
    credit = bench.credit(turns)
    if case == "none selected":
        credit.selected = np.zeros(3, bool)
    elif case == "all padding":
        turns.padding = np.ones(3, bool)
    else:
        turns.response_mask[:] = False
    before = engine.digest()
    metrics = engine.learner.update(turns, credit, PolicyGradient(kl_coef=1.0), Optimization(learning_rate=1.0))
    assert metrics == {"rows": 0.0, "tokens": 0.0, "optimizer_steps": 0.0}
    assert engine.digest() == before


def test_rows_of_zero_advantage_count_in_the_denominator_but_are_not_computed(make_engine, bench, monkeypatch):
    computed = []
    original = gradient_module.make_packs
    monkeypatch.setattr(gradient_module, "make_packs", lambda turns, rows, shares: computed.append(list(rows)) or original(turns, rows, shares))
    gradients = []
    for skip in (True, False):
        engine = make_engine()
        turns = bench.turns(bench.generate(engine, bench.texts(4)))
        turns.policy_version = None  # no verification pass
        credit = bench.credit(turns)
        credit.advantages[[1, 2]] = 0.0
        if not skip:
            monkeypatch.setattr(gradient_module, "compute_rows", lambda rows, *_: rows)
        gradients.append(gradient(engine, turns, credit))
    assert [sorted(rows) for rows in computed] == [[0, 3], [0, 1, 2, 3]]
    torch.testing.assert_close(*gradients, atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("scaling", ["group", "batch"])
def test_zero_variance_groups_can_leave_the_kl_term(make_engine, bench, scaling):
    """Two groups, one with equal rewards: with the switch, the result is that of the other group alone, whatever scaled the advantages."""
    rewards = np.array([1.0, 1.0, 0.0, 1.0])
    group = np.array([0, 0, 1, 1])
    advantages = rewards - np.array([1.0, 1.0, 0.5, 0.5])
    advantages /= 0.5 if scaling == "group" else rewards.std()

    def run(rows, switch):
        engine = make_engine()
        turns = bench.turns(bench.generate(engine, ["w1", "w1 w2", "w3", "w4 w5"]), group)
        turns.ref_log_probs = turns.old_log_probs - 0.5
        credit = Credit(advantages[:, None] * turns.response_mask)
        turns, credit = turns.take(rows), Credit(credit.advantages[rows])
        return gradient(engine, turns, credit, PolicyGradient(kl_coef=1.0, mask_zero_variance_groups=switch))

    both, moving = np.arange(4), np.array([2, 3])
    torch.testing.assert_close(run(both, True), run(moving, True), atol=1e-7, rtol=1e-4)
    assert relative(run(both, False), run(both, True)) > 0.01


def test_kl_to_the_reference_is_zero_at_the_start_and_pulls_back_later(make_engine, bench):
    engine = make_engine()
    turns = bench.turns(bench.generate(engine, bench.texts(6)))
    objective = PolicyGradient(kl_coef=1.0)
    first = engine.learner.update(turns, bench.credit(turns), objective, Optimization(learning_rate=1e-3))
    assert first["kl"] == pytest.approx(0.0, abs=1e-6)
    reference = engine.learner.score(turns, "reference")
    np.testing.assert_allclose(reference[turns.response_mask], turns.old_log_probs[turns.response_mask], atol=1e-5)
    second = engine.learner.update(turns, Credit(np.zeros_like(turns.old_log_probs)), objective, Optimization(learning_rate=1e-3))
    assert second["kl"] > 1e-6
    for _ in range(20):
        last = engine.learner.update(turns, Credit(np.zeros_like(turns.old_log_probs)), objective, Optimization(learning_rate=1e-3))
    assert last["kl"] < second["kl"]


def test_rewarding_a_token_raises_its_probability(make_engine, bench):
    engine = make_engine("llama")
    wanted = 42
    probabilities = []
    for _ in range(12):
        answers = bench.generate(engine, ["w1 w2"] * 64, list(range(64)), max_new_tokens=1)
        turns = bench.turns(answers)
        turns.response_ids[0] = wanted  # the wanted token is always among the samples, whatever its probability
        turns.old_log_probs = engine.learner.score(turns)
        probabilities.append(np.exp(turns.old_log_probs[0, 0]))
        reward = (turns.response_ids[:, 0] == wanted).astype(float)
        engine.learner.update(turns, Credit((reward - reward.mean())[:, None]), PolicyGradient(), Optimization(learning_rate=1e-3))
        engine.publish()
    assert probabilities[-1] > 20 * probabilities[0]
    assert probabilities[-1] > 0.3


def test_mini_batches_and_epochs_are_optimiser_steps(make_engine, bench):
    engine = make_engine()
    turns = bench.turns(bench.generate(engine, bench.texts(10)))
    metrics = engine.learner.update(turns, bench.credit(turns), PolicyGradient(), Optimization(epochs=2, mini_batch_turns=4, learning_rate=1e-3))
    assert metrics["optimizer_steps"] == 6
    assert metrics["ratio_max"] > 1.001  # later steps are off the policy that generated
    assert metrics["logprob_gap_max"] < 1e-5  # but the gap is measured before the first


def test_the_order_of_mini_batches_comes_from_the_seed_and_the_update(make_engine, bench):
    def digest(seed):
        engine = make_engine(seed=seed)
        turns = bench.turns(bench.generate(engine, bench.texts(8)))
        engine.learner.update(turns, bench.credit(turns), PolicyGradient(), Optimization(mini_batch_turns=2, learning_rate=1e-3))
        return engine.digest()

    assert digest(1) == digest(1)
    assert digest(1) != digest(2)


def test_metrics_are_finite_numbers(make_engine, bench):
    engine = make_engine()
    turns = bench.turns(bench.generate(engine, bench.texts(5)))
    metrics = engine.learner.update(turns, bench.credit(turns), PolicyGradient(kl_coef=0.1), Optimization())
    assert set(metrics) == {
        "rows", "tokens", "optimizer_steps", "loss", "policy_loss", "kl", "ratio_mean", "ratio_max", "clip_fraction", "dual_clip_fraction",
        "approx_kl", "entropy", "grad_norm", "logprob_gap_max", "logprob_gap_mean",
    }  # fmt: skip
    assert all(isinstance(value, float) and np.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize("mini_batch_turns", [None, 2])
def test_a_gradient_that_is_not_finite_leaves_weights_and_optimiser_untouched(make_engine, bench, monkeypatch, mini_batch_turns):
    engine = make_engine()
    turns = bench.turns(bench.generate(engine, bench.texts(6)))
    optimization = Optimization(learning_rate=1e-3, mini_batch_turns=mini_batch_turns)
    engine.learner.update(turns, bench.credit(turns), PolicyGradient(), optimization)
    weights, moments = engine.digest(), {name: tensor.clone() for name, tensor in engine.learner._optimizer.state().items()}
    calls = []

    def broken(parameters, limit):
        calls.append(limit)
        return torch.tensor(float("nan") if mini_batch_turns is None or len(calls) == 3 else 1.0)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", broken)
    with pytest.raises(EngineError, match="gradient norm is nan"):
        engine.learner.update(turns, bench.credit(turns), PolicyGradient(), optimization)
    assert engine.digest() == weights
    for name, tensor in engine.learner._optimizer.state().items():
        assert torch.equal(tensor, moments[name]), name


def test_unknown_policies_and_misshapen_credits_are_refused(make_engine, bench):
    engine = make_engine()
    turns = bench.turns(bench.generate(engine, bench.texts(3)))
    with pytest.raises(UsageError, match="critic"):
        engine.learner.score(turns, "critic")
    with pytest.raises(DataError, match="advantages have shape"):
        engine.learner.update(turns, Credit(np.zeros((3, 1))), PolicyGradient(), Optimization())
    with pytest.raises(DataError, match="selected"):
        engine.learner.update(turns, bench.credit(turns, selected=np.array([0, 1, 1])), PolicyGradient(), Optimization())
    bare = TurnBatch(group_id=np.zeros(1), traj_id=np.zeros(1), step_id=np.zeros(1), step_reward=np.zeros(1), response_mask=np.ones((1, 1), bool))
    with pytest.raises(DataError, match="response_ids"):
        engine.learner.update(bare, Credit(np.ones((1, 1))), PolicyGradient(), Optimization())
