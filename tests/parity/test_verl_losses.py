"""Losses, their gradients and the ways to aggregate them against those of verl.

Not comparable as a whole, since verl decides otherwise which tokens they act on: ``clip_cov`` draws them at random and ``kl_cov`` takes the largest, both by
the log-probabilities of the policy as it is, ours by those before the first step. They are compared where the choice is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from threespo_bench.contracts.objective import AGGREGATIONS, PolicyGradient
from threespo_bench.objectives.aggregation import token_weights
from threespo_bench.objectives.covariance import large_covariance
from threespo_bench.objectives.kl import kl_divergence
from threespo_bench.objectives.policy_gradient import TokenTerms, policy_gradient_loss, token_entropy
from threespo_bench.objectives.value_regression import value_losses

SEEDS = range(3)
RESPONSES, TOKENS = 12, 7
MEANS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")


@dataclass(frozen=True)
class Batch:
    """Terms of a loss; all (R, T), garbage under a false mask. Advantages are the same on all tokens of a response."""

    mask: torch.Tensor
    old: torch.Tensor
    log_probs: torch.Tensor
    reference: torch.Tensor
    rollout: torch.Tensor
    advantages: torch.Tensor


def random_batch(seed: int, spread: float = 0.4, empty: bool = False) -> Batch:
    """Ratios reach outside the range of the clipping. With ``empty`` one response has no token."""
    generator = torch.Generator().manual_seed(seed)
    shape = (RESPONSES, TOKENS)
    length = torch.randint(1, TOKENS + 1, (RESPONSES, 1), generator=generator)
    mask = (torch.arange(TOKENS) < length) & ((torch.rand(shape, generator=generator) < 0.85) | (torch.arange(TOKENS) == 0))
    if empty:
        mask[3] = False
    noise = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(4)]
    old = -1.5 * noise[0].abs()
    advantages = torch.randn((RESPONSES, 1), generator=generator, dtype=torch.float64).expand(shape)
    return Batch(mask, old, old + spread * noise[1], old + 0.3 * noise[2], old + 0.5 * noise[3], advantages)


def ours(objective: PolicyGradient, batch: Batch, large: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss and its gradient."""
    log_probs = batch.log_probs.clone().requires_grad_()
    terms = TokenTerms(
        mask=batch.mask, weights=token_weights(batch.mask, objective.aggregation), log_probs=log_probs, old_log_probs=batch.old,
        advantages=batch.advantages, rollout_log_probs=batch.rollout, large_covariance=large,
    )  # fmt: skip
    loss, _ = policy_gradient_loss(objective, terms)
    loss.backward()
    return loss.detach(), log_probs.grad


def theirs(core_algos: Any, name: str, batch: Batch, aggregation: str = "token-mean", weights: torch.Tensor | None = None, **options: Any):
    """The loss and its gradient. Options are those of verl's actor, with those of its policy loss under ``policy_loss``."""
    from verl.workers.config import ActorConfig, PolicyLossConfig

    policy_loss = PolicyLossConfig(loss_mode=name, **options.pop("policy_loss", {}))
    config = ActorConfig(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, policy_loss=policy_loss, **options)
    log_probs = batch.log_probs.clone().requires_grad_()
    function = core_algos.get_policy_loss_fn(name)
    loss, _ = function(batch.old, log_probs, batch.advantages, batch.mask.long(), aggregation, config, weights)
    loss.backward()
    return loss.detach(), log_probs.grad


Pair = tuple[torch.Tensor, torch.Tensor]
SamePair = Callable[..., None]


@pytest.fixture
def same(agree) -> SamePair:
    """Asserts that two losses agree and their gradients too."""

    def check(one: Pair, other: Pair, what: str = "") -> None:
        agree(one[0], other[0], f"{what} loss")
        agree(one[1], other[1], f"{what} gradient")

    return check


# ---- policy losses


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("aggregation", MEANS)
@pytest.mark.parametrize("dual_clip", [3.0, 1.2])
def test_clip(core_algos, same, dual_clip, aggregation, empty):
    objective = PolicyGradient(clip_low=0.2, clip_high=0.28, dual_clip=dual_clip, aggregation=aggregation)
    for seed in SEEDS:
        for spread in (0.4, 15.0):  # far outside, where both bound the log-ratio
            batch = random_batch(seed, spread, empty)
            found = theirs(core_algos, "vanilla", batch, aggregation, clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=dual_clip)
            same(ours(objective, batch), found, f"seed {seed} spread {spread}")


@pytest.mark.parametrize("loss", ["gspo", "cispo", "gpg"])
@pytest.mark.parametrize("aggregation", MEANS)
def test_other_losses_of_tokens(core_algos, same, loss, aggregation):
    objective = PolicyGradient(loss=loss, clip_low=0.1, clip_high=0.3, aggregation=aggregation)
    for seed in SEEDS:
        for empty in (False, True):
            batch = random_batch(seed, empty=empty)
            found = theirs(core_algos, loss, batch, aggregation, clip_ratio_low=0.1, clip_ratio_high=0.3)
            same(ours(objective, batch), found, f"seed {seed} empty {empty}")


def test_gmpo(core_algos, same):
    """verl takes the mean over all rows, ours over the responses that have a token."""
    objective = PolicyGradient(loss="gmpo", clip_low=0.3, clip_high=0.5, aggregation="seq-mean-token-mean")
    for seed in SEEDS:
        batch = random_batch(seed)
        options = {"clip_ratio_low": 0.3, "clip_ratio_high": 0.5}
        same(ours(objective, batch), theirs(core_algos, "geo_mean", batch, **options), f"seed {seed}")
        batch = random_batch(seed, empty=True)
        loss, gradient = theirs(core_algos, "geo_mean", batch, **options)
        factor = RESPONSES / (RESPONSES - 1)
        same(ours(objective, batch), (loss * factor, gradient * factor), f"seed {seed} with an empty row")


@pytest.mark.parametrize("loss", ["vanilla", "gspo", "cispo", "gpg"])
def test_weights_of_another_sampler(core_algos, same, loss):
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

    objective = PolicyGradient(loss="clip" if loss == "vanilla" else loss, rollout_ratio_cap=1.5)
    for seed in SEEDS:
        batch = random_batch(seed)
        weights, _ = compute_rollout_correction_weights(batch.old - batch.rollout, batch.mask.long(), "token", 1.5)
        same(ours(objective, batch), theirs(core_algos, loss, batch, weights=weights), f"seed {seed}")


# ---- losses that act on tokens of large covariance


def on_policy(seed: int) -> Batch:
    """The first step of an update: the policy is the old one."""
    batch = random_batch(seed)
    return replace(batch, log_probs=batch.old.clone())


@pytest.mark.parametrize("seed", SEEDS)
def test_clip_cov_that_takes_the_whole_band(core_algos, same, seed):
    objective = PolicyGradient(loss="clip_cov", covariance_share=1.0, covariance_low=0.3, covariance_high=2.0)
    options = {"policy_loss": {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.3, "clip_cov_ub": 2.0}}
    batch = on_policy(seed)
    large = large_covariance(objective, batch.advantages, batch.old, batch.mask)
    assert large.sum() >= 3
    same(ours(objective, batch, large), theirs(core_algos, "clip_cov", batch, **options), "the first step")
    # Later verl goes by the new log-probabilities, and leaves a token that is clipped anyway to the clipping.
    batch = random_batch(seed)
    ratio, sign = (batch.log_probs - batch.old).exp(), batch.advantages.sign()
    clipped = torch.where(sign > 0, ratio > 1.2, ratio < 0.8)
    moved = large_covariance(objective, batch.advantages, batch.log_probs, batch.mask) & ~clipped
    same(ours(objective, batch, moved), theirs(core_algos, "clip_cov", batch, **options), "a later step, given the tokens")
    assert (moved != large_covariance(objective, batch.advantages, batch.old, batch.mask)).any()


@pytest.mark.parametrize("seed", SEEDS)
def test_clip_cov_draws_from_the_band(core_algos, seed):
    """verl takes a random part of the band, ours the largest of it: neither the loss nor two calls of verl need agree."""
    options = {"policy_loss": {"clip_cov_ratio": 0.02, "clip_cov_lb": 0.3, "clip_cov_ub": 5.0}}
    batch = on_policy(seed)
    torch.manual_seed(0)
    assert len({theirs(core_algos, "clip_cov", batch, **options)[0].item() for _ in range(20)}) > 1
    objective = PolicyGradient(loss="clip_cov", covariance_share=0.02, covariance_low=0.3)
    assert len({ours(objective, batch, large_covariance(objective, batch.advantages, batch.old, batch.mask))[0].item() for _ in range(5)}) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_kl_cov(core_algos, agree, same, seed):
    objective = PolicyGradient(loss="kl_cov", covariance_share=0.1, covariance_kl=0.7)
    options = {"policy_loss": {"kl_cov_ratio": 0.1, "ppo_kl_coef": 0.7}}
    batch = on_policy(seed)
    large = large_covariance(objective, batch.advantages, batch.old, batch.mask)
    same(ours(objective, batch, large), theirs(core_algos, "kl_cov", batch, **options), "the first step")
    # Later verl goes by the new log-probabilities, and its term is |log r| where ours is r - 1 - log r.
    batch = random_batch(seed)
    moved = large_covariance(objective, batch.advantages, batch.log_probs, batch.mask)
    log_ratio = batch.log_probs - batch.old
    terms = (log_ratio.abs() - (log_ratio.exp() - 1 - log_ratio))[moved]
    loss, _ = theirs(core_algos, "kl_cov", batch, **options)
    agree(ours(objective, batch, moved)[0] + 0.7 * terms.sum() / batch.mask.sum(), loss, "a later step, given the tokens and the term")
    assert terms.abs().sum() > 0.1


# ---- aggregation


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_aggregation(core_algos, agree, aggregation, empty):
    for seed in SEEDS:
        batch = random_batch(seed, empty=empty)
        weights = token_weights(batch.mask, aggregation, 16)
        found = core_algos.agg_loss(batch.old, batch.mask.long(), aggregation, loss_scale_factor=16)
        if aggregation == "seq-mean-token-sum-norm":
            found = found * batch.mask.any(dim=1).sum()  # verl divides by the number of sequences as well; ours by the constant alone
        agree((batch.old * weights)[batch.mask].sum(), found, f"seed {seed}")


@pytest.mark.parametrize("aggregation", MEANS)
def test_aggregation_over_trajectories(core_algos, agree, aggregation):
    """The rows of one trajectory, one after another, are one sequence of verl."""
    for seed in SEEDS:
        batch = random_batch(seed)
        trajectories = torch.arange(RESPONSES) // 3
        weights = token_weights(batch.mask, aggregation, unit="trajectory", trajectories=trajectories)
        joined = (values.reshape(RESPONSES // 3, 3 * TOKENS) for values in (batch.old, batch.mask.long()))
        agree((batch.old * weights)[batch.mask].sum(), core_algos.agg_loss(*joined, aggregation), f"seed {seed}")


# ---- other terms


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl(core_algos, same, estimator):
    for seed in SEEDS:
        batch = random_batch(seed)
        found = []
        for function in (kl_divergence, core_algos.kl_penalty):
            log_probs = batch.log_probs.clone().requires_grad_()
            values = function(log_probs, batch.reference, estimator)
            values.sum().backward()
            found.append((values, log_probs.grad))
        same(*found, f"seed {seed}")


def test_a_large_kl(core_algos):
    """verl bounds k3 at 10, where a policy that has run away feels no pull back; ours bounds the exponent only."""
    for far, pull in ((-2.0, True), (-4.0, False)):
        grads = []
        for function in (kl_divergence, core_algos.kl_penalty):
            log_probs = torch.tensor([far], dtype=torch.float64, requires_grad=True)
            function(log_probs, torch.zeros(1, dtype=torch.float64), "k3").sum().backward()
            grads.append(log_probs.grad.item())
        assert grads[0] == pytest.approx(1 - np.exp(-far))
        assert grads[1] == (pytest.approx(grads[0]) if pull else 0.0)


def test_entropy(core_algos, agree):
    for seed in SEEDS:
        logits = torch.randn(5, 7, 11, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        agree(token_entropy(logits.log_softmax(dim=-1)).mean(), core_algos.compute_entropy_loss(logits, torch.ones(5, 7)), f"seed {seed}")


def test_clipped_values(core_algos, same):
    for seed in SEEDS:
        batch = random_batch(seed)
        found = []
        for function in (
            lambda values, b=batch: value_losses(values, b.old, b.reference, 0.3)[0][b.mask].mean(),
            lambda values, b=batch: core_algos.compute_value_loss(values, b.reference, b.old, b.mask.long(), 0.3)[0],
        ):
            values = batch.log_probs.clone().requires_grad_()
            loss = function(values)
            loss.backward()
            found.append((loss, values.grad))
        same(*found, f"seed {seed}")
