"""KL estimators: worked number, plain formulas in the normal range, finite far outside it."""

import pytest
import torch

from threespo_bench.errors import UsageError
from threespo_bench.objectives.kl import kl_divergence


def test_worked_number():
    assert kl_divergence(torch.tensor(-1.0), torch.tensor(-1.2), "k3").item() == pytest.approx(0.018731, abs=1e-6)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_equals_the_plain_formula_in_the_normal_range(estimator):
    x = torch.linspace(-5, 5, 1001)
    plain = {"k1": -x, "k2": x**2 / 2, "k3": x.exp() - x - 1}[estimator]
    torch.testing.assert_close(kl_divergence(torch.zeros_like(x), x, estimator), plain, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_value_and_gradient_are_finite_for_any_log_ratio(estimator, dtype):
    x = torch.arange(-200, 201, dtype=dtype)
    log_probs = torch.zeros_like(x, requires_grad=True)
    values = kl_divergence(log_probs, x, estimator)
    values.sum().backward()
    assert torch.isfinite(values).all()
    assert torch.isfinite(log_probs.grad).all()


def test_k3_pulls_back_a_policy_that_is_far_above_its_reference():
    log_probs = torch.tensor(0.0, requires_grad=True)
    kl_divergence(log_probs, torch.tensor(-100.0), "k3").backward()
    assert log_probs.grad.item() == pytest.approx(1.0)


def test_an_unknown_estimator_is_named():
    with pytest.raises(UsageError, match="k4"):
        kl_divergence(torch.zeros(1), torch.zeros(1), "k4")
