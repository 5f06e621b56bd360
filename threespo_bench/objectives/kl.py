"""Estimators of the KL divergence from samples of the first policy (http://joschu.net/blog/kl-approx.html).

With x = log q - log p at a token drawn from p: k1 = -x, k2 = x^2 / 2, k3 = exp(x) - x - 1. k1 and k3 are unbiased, k2 and k3 are never
negative. As a loss, k1 has a gradient of expectation zero: it is a measure of distance, not a penalty; prefer k2 or k3.
"""

from __future__ import annotations

import torch

from threespo_bench.contracts.objective import KL_ESTIMATORS
from threespo_bench.errors import UsageError

# exp(20) is far from overflow in float32 and far outside what a policy near its reference produces. The bound is applied before
# exp: a bound on the result comes too late, since the gradient of an overflown exp is NaN.
LOG_RATIO_BOUND = 20.0


def kl_divergence(log_probs: torch.Tensor, reference_log_probs: torch.Tensor, estimator: str) -> torch.Tensor:
    """KL(policy || reference) at each token; finite, with a finite gradient, for any finite input.

    Args:
        log_probs: any shape, of the policy; carries the gradient.
        reference_log_probs: same shape.
        estimator: k1, k2 or k3.
    """
    x = reference_log_probs - log_probs
    if estimator == "k1":
        return -x
    if estimator == "k2":
        return 0.5 * x.square()
    if estimator == "k3":
        bounded = x.clamp(max=LOG_RATIO_BOUND)  # for very negative x, exp vanishes and k3 is -x - 1: no bound needed
        return bounded.exp() - bounded - 1.0
    raise UsageError(f"kl_estimator={estimator} is unknown", fix="one of " + ", ".join(KL_ESTIMATORS))
