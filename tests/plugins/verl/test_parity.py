"""The engine verl against the embedded one: one batch of turns, the same credit, the same loss, gradient and weights after one update."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.plugins.verl import local_workers, recorded
from threespo_bench.contracts.algorithm import Credit, Item, Preferences
from threespo_bench.contracts.objective import Critic, Optimization, PolicyGradient, Preference
from threespo_plugins.embedded.config import EmbeddedConfig
from threespo_plugins.embedded.engine import EmbeddedEngine
from threespo_plugins.embedded.policy import weights_digest

TOLERANCE = 1e-5
# AdamW divides a gradient by its size, so a gradient of about its epsilon turns a rounding error into a step of about the learning rate.
STEP = Optimization(learning_rate=1e-4, weight_decay=0.01)


class Pair:
    """The two learners over one model, and a batch that the first one scored."""

    def __init__(self, folder, critic=False, **options):
        self.embedded = EmbeddedEngine(EmbeddedConfig(), str(folder), 0)
        self.verl = local_workers.make_learner(folder, critic=critic, **options)
        if critic:
            self.embedded.prepare(frozenset({"critic"}))
        self.turns = recorded.recorded_turns(self.embedded.learner.score)

    def update(self, credit, objective, optimization=STEP):
        """Update both; returns their metrics."""
        one = self.embedded.learner.update(self.turns, credit, objective, optimization)
        other = self.verl.update(self.turns, credit, objective, optimization)
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert other[name] == pytest.approx(value, rel=TOLERANCE, abs=TOLERANCE), name
        return one

    def weights_agree(self):
        """The weights, and the gradient's running means, which show what the optimiser's division hides."""
        from threespo_plugins.verl_engine.model_state import merged_tensors

        own, engine = self.embedded.learner, self.verl._workers.worker.actor.engine
        other = dict(merged_tensors(engine))
        for name, tensor in self.embedded._policy.model.state_dict().items():
            np.testing.assert_allclose(other[name].numpy(), tensor.numpy(), atol=TOLERANCE, err_msg=name)
        moments, parameters = own._optimizer.state(), dict(engine.module.named_parameters())
        for name, parameter in parameters.items():
            found = engine.optimizer.state[parameter]["exp_avg"].full_tensor().numpy()
            np.testing.assert_allclose(found, moments[f"exp_avg/{name}"].numpy(), atol=1e-6, err_msg=name)


@pytest.fixture
def pair(model, rank):
    return Pair(model)


def grpo(turns):
    from threespo_algorithms.grpo import GRPO, GRPOConfig

    return GRPO(GRPOConfig()).credit(turns)


def test_the_starting_weights_are_the_same_bit_for_bit(pair):
    assert pair.verl._workers.all("digest")[0] == weights_digest(pair.embedded._policy.model)


def test_scores(pair):
    for policy in ("actor", "reference"):
        one, other = pair.embedded.learner.score(pair.turns, policy), pair.verl.score(pair.turns, policy)
        np.testing.assert_allclose(other, one, atol=TOLERANCE)
        assert (other[~pair.turns.response_mask] == 0).all()
        assert (other[pair.turns.padding] == 0).all()


@pytest.mark.parametrize(
    "objective",
    [
        PolicyGradient(clip_low=0.1, clip_high=0.1),
        PolicyGradient(kl_coef=0.1, unit="trajectory", aggregation="seq-mean-token-mean"),
        PolicyGradient(kl_coef=0.1, kl_estimator="k2", entropy_coef=0.05, aggregation="seq-mean-token-sum-norm", rollout_ratio_cap=1.1),
        PolicyGradient(loss="gspo", clip_low=0.05, clip_high=0.05, aggregation="seq-mean-token-mean"),
        PolicyGradient(loss="gmpo", aggregation="seq-mean-token-mean"),
        PolicyGradient(loss="cispo"),
        PolicyGradient(loss="clip_cov", covariance_share=0.1, covariance_low=0.1),
        PolicyGradient(loss="kl_cov", covariance_share=0.1),
        PolicyGradient(loss="gpg"),
    ],
    ids=lambda objective: f"{objective.loss}-{objective.aggregation}-kl{objective.kl_coef}",
)
def test_grpo(pair, objective):
    metrics = pair.update(grpo(pair.turns), objective)
    assert metrics["optimizer_steps"] == 1
    assert metrics["grad_norm"] > 0.01
    pair.weights_agree()


def test_mini_batches_and_epochs(pair):
    metrics = pair.update(grpo(pair.turns), PolicyGradient(kl_coef=0.05), replace(STEP, mini_batch_turns=10, epochs=2))
    assert metrics["optimizer_steps"] == 8
    pair.weights_agree()
    pair.update(grpo(pair.turns), PolicyGradient(), STEP)
    pair.weights_agree()


def test_micro_batches_change_nothing(model, rank):
    pair = Pair(model, micro_batch_tokens=24)
    pair.update(grpo(pair.turns), PolicyGradient(kl_coef=0.1))
    pair.weights_agree()


def test_another_architecture(untied_model, rank):
    pair = Pair(untied_model)
    pair.update(grpo(pair.turns), PolicyGradient(kl_coef=0.1))
    pair.weights_agree()


def test_a_wave_of_some_rows_and_tokens(pair):
    """As 3SPO learns: the selected rows only, some of their tokens, and a scale."""
    credit, rng = grpo(pair.turns), np.random.default_rng(5)
    credit.selected = (rng.random(len(pair.turns)) < 0.4) & pair.turns.real
    credit.selected_tokens = pair.turns.response_mask & (rng.random(pair.turns.response_mask.shape) < 0.8)
    credit.scale = 0.3
    metrics = pair.update(credit, PolicyGradient(kl_coef=0.02))
    assert metrics["rows"] < 0.6 * len(pair.turns)
    pair.weights_agree()


@pytest.mark.parametrize("loss", ["dpo", "ipo", "kto"])
def test_preferences(pair, loss):
    turns = pair.turns

    def item(trajectory, weight=1.0):
        rows = np.flatnonzero((turns.traj_id == trajectory) & turns.real)
        return Item(rows, np.linspace(weight, 0.5, len(rows)))

    preferences = Preferences([item(0), item(4), item(8)], [item(1), item(5), item(10, 0.7)])
    credit = Credit(np.zeros(turns.response_mask.shape), preferences=preferences)
    metrics = pair.update(credit, Preference(loss=loss, beta=0.3, average_log_prob=loss == "ipo"), replace(STEP, mini_batch_turns=12))
    assert metrics["optimizer_steps"] >= 2
    pair.weights_agree()


@pytest.mark.parametrize("per_turn", [False, True])
def test_the_critic(model, rank, per_turn):
    pair = Pair(model, critic=True)
    turns, rng = pair.turns, np.random.default_rng(2)
    assert (pair.verl.values(turns) == 0).all()
    for update in range(3):
        one, other = pair.embedded.learner.values(turns), pair.verl.values(turns)
        np.testing.assert_allclose(other, one, atol=TOLERANCE)
        turns.values = one
        returns = rng.normal(size=len(turns)) if per_turn else rng.normal(size=turns.response_mask.shape)
        settings = Critic(learning_rate=1e-3, value_clip=0.05, mini_batch_turns=16 if update else None, epochs=2)
        credit = Credit(np.zeros(turns.response_mask.shape), returns=returns)
        one, other = (learner.update_critic(turns, credit, settings) for learner in (pair.embedded.learner, pair.verl))
        assert other == pytest.approx(one, rel=TOLERANCE, abs=TOLERANCE)
    prompts = [*turns.prompt_ids[:5], np.zeros(0, np.int32)]
    np.testing.assert_allclose(pair.verl.prompt_values(prompts), pair.embedded.learner.prompt_values(prompts), atol=TOLERANCE)
