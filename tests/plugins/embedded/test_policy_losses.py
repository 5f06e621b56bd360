"""Updates by every policy loss: exact accumulation, units, selected tokens, the cap on the sampler's ratio, and batches in which nothing moves."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from threespo_bench.contracts.algorithm import Credit
from threespo_bench.contracts.objective import POLICY_LOSSES, Optimization, PolicyGradient, ValueTokens
from threespo_bench.errors import DataError, EngineError
from threespo_plugins.embedded.rows import compute_rows, nothing_moves

STILL = Optimization(learning_rate=0.0, weight_decay=0.0)
TEXTS = ["w1 w2 w3"] * 4 + ["w4", "w5 w6 w7 w8 w9"]


def gradient(engine, turns, credit, objective, optimization=STILL):
    """The gradient of one update that moves nothing, as one vector."""
    engine.learner.update(turns, credit, objective, optimization)
    return torch.cat([parameter.grad.flatten().clone() for parameter in engine._policy.model.parameters()])


def batch(engine, bench, spread=0.0):
    """Six rows of different lengths; ``spread`` sets the old policy apart from the present one."""
    turns = bench.turns(bench.generate(engine, TEXTS))
    turns.response_mask[1, 3:] = False
    turns.response_mask[4, 1:] = False
    turns.policy_version = None  # no verification
    turns.old_log_probs = turns.old_log_probs + spread * np.random.default_rng(0).normal(size=turns.response_mask.shape)
    return turns, bench.credit(turns)


@pytest.mark.parametrize("loss", POLICY_LOSSES)
def test_the_gradient_does_not_depend_on_the_division_into_micro_batches(make_engine, bench, loss):
    objective = PolicyGradient(loss=loss, aggregation="seq-mean-token-mean", covariance_share=0.2, covariance_low=0.01)
    found = []
    for micro_batch_tokens in (100_000, 1):
        engine = make_engine(micro_batch_tokens=micro_batch_tokens)
        found.append(gradient(engine, *batch(engine, bench, spread=0.3), objective))
    assert ((found[1] - found[0]).norm() / found[0].norm()).item() < 5e-6


def test_every_loss_is_another_one(make_engine, bench):
    engine = make_engine()
    turns, credit = batch(engine, bench, spread=0.3)
    options = {"covariance_share": 0.2, "covariance_low": 0.01}
    losses = [engine.learner.update(turns, credit, PolicyGradient(loss=loss, **options), STILL)["loss"] for loss in POLICY_LOSSES]
    assert len(set(losses)) == len(POLICY_LOSSES)


@pytest.mark.parametrize("loss", ["clip_cov", "kl_cov"])
def test_covariances_are_those_of_the_mini_batch(make_engine, bench, loss):
    engine = make_engine()
    turns, credit = batch(engine, bench, spread=0.3)
    objective = PolicyGradient(loss=loss, covariance_share=0.2, covariance_low=0.01, covariance_high=100.0)
    order = np.random.default_rng(0).permutation(len(turns))
    one = gradient(engine, turns, credit, objective)
    other = gradient(engine, turns.take(order), Credit(credit.advantages[order]), objective)
    torch.testing.assert_close(one, other, atol=1e-7, rtol=1e-4)
    assert not torch.allclose(one, gradient(engine, turns, credit, replace(objective, loss="clip")), atol=1e-6)


def test_the_trajectory_as_a_unit(make_engine, bench):
    """Three turns of one episode and one of another: with the same advantage on all, each episode has half of the weight."""
    engine = make_engine()
    turns = bench.turns(bench.generate(engine, TEXTS[:4]))
    turns.traj_id = np.array(["a", "b", "a", "a"])
    objective = PolicyGradient(aggregation="seq-mean-token-mean", unit="trajectory")
    found = []
    for rows in ([0, 2, 3], [1], [0, 1, 2, 3]):
        part = turns.take(np.array(rows))
        found.append(gradient(engine, part, Credit(1e-3 * part.response_mask), objective))
    torch.testing.assert_close(found[2], (found[0] + found[1]) / 2, atol=1e-8, rtol=1e-4)


def test_selected_tokens_replace_the_mask_in_loss_and_denominators(make_engine, bench):
    engine = make_engine()
    turns, credit = batch(engine, bench)
    chosen = np.zeros_like(turns.response_mask)
    chosen[0, 2], chosen[2, :2], chosen[5, 1] = True, True, True
    masked = replace(turns, response_mask=turns.response_mask & chosen)
    expected = gradient(engine, masked, Credit(credit.advantages), PolicyGradient(aggregation="seq-mean-token-mean"))
    credit.selected_tokens = chosen
    found = gradient(engine, turns, credit, PolicyGradient(aggregation="seq-mean-token-mean"))
    assert torch.equal(found, expected)
    metrics = engine.learner.update(turns, credit, PolicyGradient(), STILL)
    assert (metrics["rows"], metrics["tokens"]) == (3.0, 4.0)
    assert turns.response_mask[1].any()  # the batch itself is as it was


def test_no_selected_tokens_are_no_step_and_misshapen_ones_an_error(make_engine, bench):
    engine = make_engine()
    turns, credit = batch(engine, bench)
    credit.selected_tokens = np.zeros_like(turns.response_mask)
    assert engine.learner.update(turns, credit, PolicyGradient(), Optimization())["optimizer_steps"] == 0.0
    for wrong in (credit.selected_tokens[:, :1], credit.selected_tokens.astype(int)):
        with pytest.raises(DataError, match="selected_tokens"):
            engine.learner.update(turns, replace(credit, selected_tokens=wrong), PolicyGradient(), Optimization())


def test_the_cap_needs_the_log_probabilities_of_the_sampler(make_engine, bench):
    engine = make_engine()
    turns, credit = batch(engine, bench)
    credit.advantages *= 1e-3  # so that the gradient is not clipped
    objective = PolicyGradient(rollout_ratio_cap=1.5)
    with pytest.raises(DataError, match="rollout_ratio_cap needs the column rollout_log_probs"):
        engine.learner.update(turns, credit, objective, STILL)
    plain = gradient(engine, turns, credit, PolicyGradient())
    turns.rollout_log_probs = turns.old_log_probs - 1.0  # ratio e: above the cap
    torch.testing.assert_close(gradient(engine, turns, credit, objective), 1.5 * plain, atol=1e-8, rtol=1e-4)
    turns.rollout_log_probs[2, 0] = np.nan
    with pytest.raises(EngineError, match="rollout_log_probs is nan at row 2"):
        engine.learner.update(turns, credit, objective, STILL)


@pytest.mark.parametrize("loss", POLICY_LOSSES)
def test_a_batch_without_advantages_is_no_step(make_engine, bench, loss):
    """Not even one by the optimiser's momentum and weight decay."""
    engine = make_engine()
    turns, credit = batch(engine, bench)
    optimization = Optimization(learning_rate=1e-3, mini_batch_turns=2)
    engine.learner.update(turns, credit, PolicyGradient(), optimization)
    before, moments = engine.digest(), {name: tensor.clone() for name, tensor in engine.learner._optimizer.state().items()}
    metrics = engine.learner.update(turns, Credit(np.zeros_like(credit.advantages)), PolicyGradient(loss=loss), optimization)
    assert metrics == {"rows": 6.0, "tokens": float(turns.response_mask.sum()), "optimizer_steps": 0.0}
    assert engine.digest() == before
    assert all(torch.equal(tensor, moments[name]) for name, tensor in engine.learner._optimizer.state().items())


def test_what_counts_as_a_movement(make_engine, bench):
    engine = make_engine()
    turns, credit = batch(engine, bench)
    none, rows = Credit(np.zeros_like(credit.advantages)), np.arange(6)
    assert nothing_moves(rows, none, turns, PolicyGradient())
    assert nothing_moves(rows, none, turns, ValueTokens(value_coef=0.0, action_value_coef=0.0))
    for objective in (PolicyGradient(kl_coef=0.1), PolicyGradient(entropy_coef=0.1), ValueTokens()):
        assert not nothing_moves(rows, none, turns, objective)
        assert len(compute_rows(rows, none, turns, objective)) == 6
    one = Credit(np.zeros_like(credit.advantages))
    one.advantages[3, 0] = 1e-9
    assert not nothing_moves(rows, one, turns, PolicyGradient())
    assert nothing_moves(np.array([0, 1, 2, 4]), one, turns, PolicyGradient())
    assert compute_rows(rows, one, turns, PolicyGradient()).tolist() == [3]


def test_mini_batches_of_a_batch_that_moves_all_step(make_engine, bench):
    engine = make_engine()
    turns, credit = batch(engine, bench)
    credit.advantages[1:] = 0.0
    metrics = engine.learner.update(turns, credit, PolicyGradient(), Optimization(learning_rate=1e-3, mini_batch_turns=2))
    assert metrics["optimizer_steps"] == 3.0


def test_a_batch_without_advantages_leaves_no_trace(make_engine, bench):
    """The updates after it are those that would have been without it."""

    def run(between):
        engine = make_engine()
        turns, credit = batch(engine, bench)
        optimization = Optimization(learning_rate=1e-3, mini_batch_turns=2)
        engine.learner.update(turns, credit, PolicyGradient(), optimization)
        if between:
            engine.learner.update(turns, Credit(np.zeros_like(credit.advantages)), PolicyGradient(), optimization)
        engine.learner.update(turns, credit, PolicyGradient(), optimization)
        return engine.digest()

    assert run(True) == run(False)
