"""The clipped policy-gradient loss: worked numbers, masks, KL and entropy terms."""

import pytest
import torch

from threespo_bench.contracts.objective import AGGREGATIONS, PolicyGradient
from threespo_bench.objectives.aggregation import token_weights
from threespo_bench.objectives.policy_gradient import LossReport, TokenTerms, policy_gradient_loss, token_entropy

ADVANTAGES = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
LOG_RATIOS = torch.tensor([0.0, 0.4, -0.5, 2.0], dtype=torch.float64)


def terms(log_probs, mask=None, **columns):
    mask = torch.ones_like(log_probs, dtype=torch.bool) if mask is None else mask
    zeros = torch.zeros_like(log_probs.detach())
    columns = {"old_log_probs": zeros, "advantages": zeros} | columns
    return TokenTerms(mask=mask, weights=token_weights(mask, "token-mean"), log_probs=log_probs, **columns)


def token_losses(dual_clip):
    """The loss of each token alone, since the loss of several is their mean."""
    objective = PolicyGradient(dual_clip=dual_clip)
    return [policy_gradient_loss(objective, terms(x.reshape(1, 1), advantages=a.reshape(1, 1)))[0].item() for x, a in zip(LOG_RATIOS, ADVANTAGES, strict=True)]


@pytest.mark.parametrize(("dual_clip", "last"), [(3.0, 3.0), (10.0, 7.389056), (2.0, 2.0), (None, 7.389056)])
def test_worked_numbers_of_the_dual_clip(dual_clip, last):
    assert token_losses(dual_clip) == pytest.approx([-1.0, -1.2, 0.8, last], abs=1e-6)


def test_worked_number_of_the_mean_and_the_shares():
    loss, report = policy_gradient_loss(PolicyGradient(), terms(LOG_RATIOS[None], advantages=ADVANTAGES[None]))
    assert loss.item() == pytest.approx(0.4, abs=1e-6)
    means = report.means()
    assert means["clip_fraction"] == 0.5  # the second and the third token
    assert means["dual_clip_fraction"] == 0.25
    assert means["ratio_max"] == pytest.approx(7.389056, abs=1e-6)


def test_clipped_tokens_have_no_gradient():
    log_probs = LOG_RATIOS[None].clone().requires_grad_()
    policy_gradient_loss(PolicyGradient(), terms(log_probs, advantages=ADVANTAGES[None]))[0].backward()
    assert log_probs.grad[0].tolist() == pytest.approx([-0.25, 0.0, 0.0, 0.0])


@pytest.mark.parametrize("gap", [-1000.0, 1000.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_huge_log_ratio_gives_a_finite_loss_and_gradient(gap, advantage):
    log_probs = torch.tensor([[gap]], requires_grad=True)
    loss, _ = policy_gradient_loss(PolicyGradient(dual_clip=None), terms(log_probs, advantages=torch.tensor([[advantage]])))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(log_probs.grad).all()


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_garbage_in_masked_slots_of_every_input_changes_nothing(garbage):
    mask = torch.tensor([[True, False], [True, True]])
    objective = PolicyGradient(kl_coef=0.1, entropy_coef=0.01)

    def run(fill):
        columns = {name: torch.full((2, 2), value).masked_fill(~mask, fill) for name, value in
                   {"old_log_probs": -1.0, "advantages": 0.7, "entropy": 1.5, "reference_log_probs": -1.1}.items()}  # fmt: skip
        log_probs = torch.full((2, 2), -0.9).masked_fill(~mask, fill).requires_grad_()
        weights = token_weights(mask, "token-mean").masked_fill(~mask, fill)
        loss, report = policy_gradient_loss(objective, TokenTerms(mask=mask, weights=weights, log_probs=log_probs, **columns))
        loss.backward()
        return loss.item(), log_probs.grad.tolist(), report.sums

    assert run(garbage) == run(0.0)


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_an_empty_mask_gives_zero_loss_and_zero_gradient(mode):
    log_probs = torch.zeros(2, 3, requires_grad=True)
    mask = torch.zeros(2, 3, dtype=torch.bool)
    columns = {name: torch.full((2, 3), float("nan")) for name in ("old_log_probs", "advantages", "entropy", "reference_log_probs")}
    loss, report = policy_gradient_loss(
        PolicyGradient(kl_coef=1.0, entropy_coef=1.0, aggregation=mode),
        TokenTerms(mask=mask, weights=token_weights(mask, mode, 3), log_probs=log_probs, **columns),
    )
    loss.backward()
    assert loss.item() == 0.0
    assert log_probs.grad.abs().sum() == 0
    assert report.sums["tokens"] == 0
    assert set(report.means().values()) == {0.0}


def test_swapped_mask_and_advantages_are_refused():
    with pytest.raises(TypeError, match="boolean"):
        policy_gradient_loss(
            PolicyGradient(),
            TokenTerms(
                mask=torch.ones(1, 2), weights=torch.ones(1, 2), log_probs=torch.ones(1, 2), old_log_probs=torch.ones(1, 2), advantages=torch.ones(1, 2)
            ),
        )


def test_kl_and_entropy_terms_add_with_their_coefficients():
    log_probs, reference, entropy = torch.tensor([[-1.0]]), torch.tensor([[-1.2]]), torch.tensor([[2.0]])
    columns = {"old_log_probs": log_probs, "entropy": entropy, "reference_log_probs": reference}
    loss, report = policy_gradient_loss(PolicyGradient(kl_coef=0.5, entropy_coef=0.1), terms(log_probs, **columns))
    assert report.sums["kl"] == pytest.approx(0.018731, abs=1e-6)
    assert loss.item() == pytest.approx(0.5 * 0.018731 - 0.1 * 2.0, abs=1e-6)


@pytest.mark.parametrize(("objective", "missing"), [(PolicyGradient(kl_coef=1.0), "reference"), (PolicyGradient(entropy_coef=1.0), "entropy")])
def test_a_term_without_its_input_is_an_error(objective, missing):
    with pytest.raises(ValueError, match=missing):
        policy_gradient_loss(objective, terms(torch.zeros(1, 1)))


def test_entropy_of_a_uniform_distribution():
    assert token_entropy(torch.log_softmax(torch.zeros(2, 8), -1)).tolist() == pytest.approx([2.0794415] * 2)


def test_reports_of_micro_batches_add_up():
    whole = policy_gradient_loss(PolicyGradient(), terms(LOG_RATIOS[None], advantages=ADVANTAGES[None]))[1]
    parts = LossReport()
    weights = token_weights(torch.ones(1, 4, dtype=torch.bool), "token-mean")
    for i in range(4):
        part = TokenTerms(
            torch.ones(1, 1, dtype=torch.bool), weights[:, i : i + 1], LOG_RATIOS[None, i : i + 1], torch.zeros(1, 1), ADVANTAGES[None, i : i + 1]
        )
        parts.add(policy_gradient_loss(PolicyGradient(), part)[1])
    assert parts.means() == pytest.approx(whole.means())
    assert parts.sums["loss"] == pytest.approx(whole.sums["loss"])
