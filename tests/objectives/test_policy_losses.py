"""The policy losses: worked numbers, gradients, a plain reference for each, and which tokens have a large covariance."""

import math

import pytest
import torch

from threespo_bench.contracts.objective import POLICY_LOSSES, PolicyGradient
from threespo_bench.errors import UsageError
from threespo_bench.objectives.aggregation import token_weights
from threespo_bench.objectives.covariance import large_covariance
from threespo_bench.objectives.policy_gradient import LossReport, TokenTerms, policy_gradient_loss


def tensor(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def loss_and_gradient(objective, log_probs, advantages, **columns):
    """The loss of (R, T) terms without padding, of old log-probabilities 0, and its gradient."""
    log_probs = log_probs.clone().requires_grad_()
    mask = torch.ones_like(log_probs, dtype=torch.bool)
    columns = {"old_log_probs": torch.zeros_like(log_probs.detach())} | columns
    weights = token_weights(mask, objective.aggregation)
    loss, report = policy_gradient_loss(objective, TokenTerms(mask=mask, weights=weights, log_probs=log_probs, advantages=advantages, **columns))
    loss.backward()
    return loss.item(), log_probs.grad.tolist(), report.means()


def test_gspo_has_one_ratio_a_response():
    objective = PolicyGradient(loss="gspo", aggregation="seq-mean-token-mean")
    loss, gradient, means = loss_and_gradient(objective, tensor([0.1, 0.3], [-0.3, 0.4]), tensor([-1.0, -1.0], [1.0, 1.0]))
    s = [math.exp(0.2), math.exp(0.05)]  # 1.221403 and 1.051271; the tokens of the second are outside the clip range, the response is not
    assert loss == pytest.approx((s[0] - s[1]) / 2, abs=1e-9)
    assert gradient == [pytest.approx([s[0] / 4] * 2), pytest.approx([-s[1] / 4] * 2)]
    assert means["clip_fraction"] == 0.0


def test_gspo_clips_the_ratio_of_the_response():
    loss, gradient, means = loss_and_gradient(PolicyGradient(loss="gspo"), tensor([0.1, 0.3]), tensor([1.0, 1.0]))
    assert loss == pytest.approx(-1.2)
    assert gradient == [[0.0, 0.0]]
    assert means["clip_fraction"] == 1.0


def test_cispo_clips_the_weight_and_keeps_the_gradient():
    old = tensor([-1.0, -1.0])
    loss, gradient, means = loss_and_gradient(PolicyGradient(loss="cispo"), tensor([-0.5, -1.5]), tensor([1.0, -1.0]), old_log_probs=old)
    assert loss == pytest.approx((-1.2 * -0.5 + 0.8 * -1.5) / 2)  # r = 1.65 and 0.61
    assert gradient == [pytest.approx([-0.6, 0.4])]
    assert means["clip_fraction"] == 1.0


@pytest.mark.parametrize(("advantage", "mean", "slopes"), [(1.0, 0.15, [0.0, -0.5]), (-1.0, 0.2, [0.5, 0.5])])
def test_gmpo_is_the_geometric_mean_of_the_clipped_ratios(advantage, mean, slopes):
    objective = PolicyGradient(loss="gmpo", clip_low=0.4, clip_high=0.4)
    loss, gradient, _ = loss_and_gradient(objective, tensor([0.5, -0.1]), torch.full((1, 2), advantage, dtype=torch.float64))
    assert loss == pytest.approx(-advantage * math.exp(mean))
    assert gradient == [pytest.approx([slope * math.exp(mean) for slope in slopes])]


def test_clip_cov_leaves_out_the_large_tokens():
    large = torch.tensor([[True, False, False]])
    loss, gradient, means = loss_and_gradient(PolicyGradient(loss="clip_cov"), tensor([0.0, 0.0, 0.4]), tensor([2.0, 1.0, 1.0]), large_covariance=large)
    assert loss == pytest.approx((0.0 - 1.0 - 1.2) / 3)
    assert gradient == [pytest.approx([0.0, -1 / 3, 0.0])]
    assert means["clip_fraction"] == pytest.approx(2 / 3)


def test_kl_cov_holds_the_large_tokens_and_clips_none():
    large = torch.tensor([[True, False]])
    loss, gradient, _ = loss_and_gradient(PolicyGradient(loss="kl_cov", covariance_kl=2.0), tensor([0.5, 0.5]), tensor([1.0, 1.0]), large_covariance=large)
    r = math.exp(0.5)
    assert loss == pytest.approx((-2 * r + 2.0 * (r - 1 - 0.5)) / 2)
    assert gradient == [pytest.approx([(-r + 2.0 * (r - 1)) / 2, -r / 2])]


def test_gpg_has_no_ratio():
    loss, gradient, means = loss_and_gradient(PolicyGradient(loss="gpg"), tensor([-0.5, -2.0]), tensor([1.0, -3.0]))
    assert loss == pytest.approx((0.5 - 6.0) / 2)
    assert gradient == [pytest.approx([-0.5, 1.5])]
    assert means["clip_fraction"] == 0.0


def random_terms(loss, width=4):
    """Responses of different lengths whose ratios reach outside the clip range."""
    generator = torch.Generator().manual_seed(1)
    mask = torch.arange(width) < torch.tensor([[4], [1], [3], [2], [4], [2]])
    old, change, advantage = (torch.randn(6, width, generator=generator, dtype=torch.float64) for _ in range(3))
    objective = PolicyGradient(loss=loss, covariance_share=0.2, covariance_low=0.1)
    large = large_covariance(objective, advantage[:, :1].expand(6, width), old, mask)
    return objective, mask, old, old + 0.4 * change, advantage[:, :1].expand(6, width), large


def plain_losses(objective, x, a, lp, large):
    """The token losses of one response from its log-ratios ``x`` and advantages ``a``, value by value."""
    low, high = 1 - objective.clip_low, 1 + objective.clip_high
    if objective.loss == "gspo":
        x = [sum(x) / len(x)] * len(x)
    r = [math.exp(v) for v in x]
    clipped = [max(-a_ * r_, -a_ * min(max(r_, low), high)) for a_, r_ in zip(a, r, strict=True)]
    if objective.loss == "gmpo":
        kept = [min(v, objective.clip_high) if a_ > 0 else max(v, -objective.clip_low) for v, a_ in zip(x, a, strict=True)]
        return [-a[0] * math.exp(sum(kept) / len(kept))] * len(x)
    if objective.loss == "clip":
        return [min(c, -objective.dual_clip * a_) if a_ < 0 else c for c, a_ in zip(clipped, a, strict=True)]
    if objective.loss == "cispo":
        return [-min(max(r_, low), high) * a_ * lp_ for r_, a_, lp_ in zip(r, a, lp, strict=True)]
    if objective.loss == "gpg":
        return [-a_ * lp_ for a_, lp_ in zip(a, lp, strict=True)]
    if objective.loss == "clip_cov":
        return [0.0 if big else c for c, big in zip(clipped, large, strict=True)]
    if objective.loss == "kl_cov":
        return [-a_ * r_ + (r_ - 1 - x_ if big else 0.0) for a_, r_, x_, big in zip(a, r, x, large, strict=True)]
    return clipped


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("loss", POLICY_LOSSES)
def test_equals_a_plain_computation(loss, aggregation):
    objective, mask, old, log_probs, advantages, large = random_terms(loss)
    weights = token_weights(mask, aggregation)
    found, _ = policy_gradient_loss(
        objective, TokenTerms(mask=mask, weights=weights, log_probs=log_probs, old_log_probs=old, advantages=advantages, large_covariance=large)
    )
    expected = 0.0
    for row in range(len(mask)):
        columns = [values[row][mask[row]].tolist() for values in (log_probs - old, advantages, log_probs, large)]
        expected += sum(w * v for w, v in zip(weights[row][mask[row]].tolist(), plain_losses(objective, *columns), strict=True))
    assert found.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("loss", POLICY_LOSSES)
def test_parts_of_whole_responses_add_up_to_the_whole(loss):
    objective, mask, old, log_probs, advantages, large = random_terms(loss)
    weights = token_weights(mask, "seq-mean-token-mean")

    def run(*parts):
        leaf, report = log_probs.clone().requires_grad_(), LossReport()
        for rows in parts:
            place = mask[rows].nonzero()
            at = (torch.tensor(rows)[place[:, 0]], place[:, 1])
            columns = {"weights": weights[at], "old_log_probs": old[at], "advantages": advantages[at], "large_covariance": large[at]}
            terms = TokenTerms(mask=torch.ones(len(place), dtype=torch.bool), log_probs=leaf[at], response=at[0] + 100, **columns)
            value, part = policy_gradient_loss(objective, terms)
            value.backward()
            report.add(part)
        return report.sums, leaf.grad

    whole, parts = run([0, 1, 2, 3, 4, 5]), run([4], [5, 1, 2], [3, 0])
    assert parts[0] == pytest.approx(whole[0], abs=1e-12)
    torch.testing.assert_close(parts[1], whole[1], atol=1e-14, rtol=1e-12)
    assert whole[1][~mask].abs().sum() == 0


@pytest.mark.parametrize("loss", POLICY_LOSSES)
def test_no_tokens_give_zero_and_a_huge_log_ratio_stays_finite(loss):
    objective = PolicyGradient(loss=loss)
    for log_probs, mask in ((torch.zeros(2, 2), torch.zeros(2, 2, dtype=torch.bool)), (torch.tensor([[900.0, -900.0]]), torch.ones(1, 2, dtype=torch.bool))):
        log_probs = log_probs.requires_grad_()
        advantages = torch.full_like(log_probs.detach(), 0.5)
        terms = TokenTerms(mask, token_weights(mask, "token-mean"), log_probs, torch.zeros_like(advantages), advantages, large_covariance=mask)
        value, _ = policy_gradient_loss(objective, terms)
        value.backward()
        assert torch.isfinite(log_probs.grad).all()
        assert torch.isfinite(value)
        assert mask.any() or (value.item() == 0.0 and log_probs.grad.abs().sum() == 0)


def test_the_cap_weights_the_policy_term_and_is_a_constant():
    old, rollout = tensor([-1.0, -1.0, -1.0]), tensor([-1.0, -3.0, -0.5])
    objective = PolicyGradient(rollout_ratio_cap=2.0)
    loss, gradient, _ = loss_and_gradient(objective, old, tensor([1.0, 1.0, 1.0]), old_log_probs=old, rollout_log_probs=rollout)
    weights = [1.0, 2.0, math.exp(-0.5)]  # e^2 is above the cap
    assert loss == pytest.approx(-sum(weights) / 3)
    assert gradient == [pytest.approx([-weight / 3 for weight in weights])]


def test_the_cap_leaves_the_kl_term_alone():
    columns = {"old_log_probs": tensor([-1.0]), "reference_log_probs": tensor([-1.2])}
    objective = PolicyGradient(rollout_ratio_cap=0.5, kl_coef=1.0)
    loss, _, _ = loss_and_gradient(objective, tensor([-1.0]), tensor([0.0]), rollout_log_probs=tensor([-1.0]), **columns)
    assert loss == pytest.approx(0.018731, abs=1e-6)


@pytest.mark.parametrize(
    ("objective", "missing"),
    [
        (PolicyGradient(loss="clip_cov"), "large_covariance"),
        (PolicyGradient(loss="kl_cov"), "large_covariance"),
        (PolicyGradient(loss="gspo"), "response"),
        (PolicyGradient(loss="gmpo"), "response"),
        (PolicyGradient(rollout_ratio_cap=1.0), "rollout_log_probs"),
    ],
)
def test_a_loss_without_its_input_is_an_error(objective, missing):
    zeros = torch.zeros(2)
    with pytest.raises(ValueError, match=missing):
        policy_gradient_loss(objective, TokenTerms(torch.ones(2, dtype=torch.bool), torch.ones(2), zeros, zeros, zeros))


def test_an_unknown_loss_is_named():
    with pytest.raises(UsageError, match="loss=ppo2"):
        loss_and_gradient(PolicyGradient(loss="ppo2"), tensor([0.0]), tensor([1.0]))


ADVANTAGES = tensor([3.0, 3.0], [-3.0, -3.0])
OLD = tensor([-1.0, -2.0], [-3.0, -2.0])  # mean -2, so the covariances are 3, 0, 3, 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"loss": "clip_cov"}, [[1, 0], [0, 0]]),  # one at least; of the equal ones the first
        ({"loss": "clip_cov", "covariance_share": 0.5}, [[1, 0], [1, 0]]),
        ({"loss": "clip_cov", "covariance_share": 1.0}, [[1, 0], [1, 0]]),  # the band has no more
        ({"loss": "clip_cov", "covariance_high": 3.0}, [[0, 0], [0, 0]]),
        ({"loss": "kl_cov"}, [[1, 0], [0, 0]]),
        ({"loss": "kl_cov", "covariance_share": 1.0}, [[1, 0], [1, 0]]),  # none that is not positive
    ],
)
def test_which_tokens_have_a_large_covariance(options, expected):
    assert large_covariance(PolicyGradient(**options), ADVANTAGES, OLD, torch.ones(2, 2, dtype=torch.bool)).int().tolist() == expected


def test_masked_tokens_do_not_enter_the_covariances():
    mask = torch.tensor([[True, True, False], [True, True, False]])
    garbage = torch.full((2, 1), float("nan"), dtype=torch.float64)
    columns = (torch.cat([values, garbage], dim=1) for values in (ADVANTAGES, OLD))
    assert large_covariance(PolicyGradient(loss="kl_cov"), *columns, mask).int().tolist() == [[1, 0, 0], [0, 0, 0]]
    assert not large_covariance(PolicyGradient(loss="kl_cov"), ADVANTAGES, OLD, torch.zeros(2, 2, dtype=torch.bool)).any()
