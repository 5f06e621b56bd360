"""The policy term of each token, one function for each ``PolicyGradient.loss``.

With lp and old the log-probabilities of a token under the policy and under the old policy, r = exp(lp - old), and advantage A. Whatever refers
to a sequence refers to one response, which must be whole in what a function is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from threespo_bench.contracts.objective import POLICY_LOSSES, PolicyGradient
from threespo_bench.errors import UsageError
from threespo_bench.objectives.kl import LOG_RATIO_BOUND, kl_divergence


@dataclass(frozen=True)
class PolicyTokens:
    """The M tokens that count; every column is (M,).

    Attributes:
        log_probs: under the policy; carries the gradient. old_log_probs: under the policy that the ratio refers to.
        advantages: of each token.
        response: int64, which response the token belongs to; gspo and gmpo read it.
        large_covariance: bool, of :func:`~threespo_bench.objectives.covariance.large_covariance`; clip_cov and kl_cov read it.
        log_ratio, ratio: of the two policies; the log-ratio is bounded so that the ratio is finite.
    """

    log_probs: torch.Tensor
    old_log_probs: torch.Tensor
    advantages: torch.Tensor
    response: torch.Tensor | None
    large_covariance: torch.Tensor | None
    log_ratio: torch.Tensor
    ratio: torch.Tensor

    @classmethod
    def make(
        cls,
        log_probs: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        response: torch.Tensor | None = None,
        large_covariance: torch.Tensor | None = None,
    ) -> PolicyTokens:
        """With the ratios computed."""
        log_ratio = (log_probs - old_log_probs).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
        return cls(log_probs, old_log_probs, advantages, response, large_covariance, log_ratio, log_ratio.exp())


@dataclass(frozen=True)
class PolicyLosses:
    """(M,) ``losses`` with gradient; (M,) bool ``clipped`` (the loss is not the plain one) and ``dual_clipped``."""

    losses: torch.Tensor
    clipped: torch.Tensor
    dual_clipped: torch.Tensor


def policy_losses(objective: PolicyGradient, tokens: PolicyTokens) -> PolicyLosses:
    """The loss ``objective.loss`` of each token. Raises UsageError for an unknown one."""
    if objective.loss not in _LOSSES:
        raise UsageError(f"loss={objective.loss} is unknown", fix="one of " + ", ".join(POLICY_LOSSES))
    return _LOSSES[objective.loss](objective, tokens)


def _clip(objective: PolicyGradient, tokens: PolicyTokens) -> PolicyLosses:
    """PPO (arXiv:1707.06347): l = max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)); dual clip (arXiv:1912.09729): where A < 0, l = min(l, -c A)."""
    losses, over = _clipped_surrogate(objective, tokens.advantages, tokens.ratio)
    dual_clipped = torch.zeros_like(over)
    if objective.dual_clip is not None:
        ceiling = -objective.dual_clip * tokens.advantages
        dual_clipped = (tokens.advantages < 0) & (losses > ceiling)
        losses = torch.where(dual_clipped, ceiling, losses)
    return PolicyLosses(losses, over, dual_clipped)


def _gspo(objective: PolicyGradient, tokens: PolicyTokens) -> PolicyLosses:
    """GSPO (arXiv:2507.18071): the ratio of a token is s exp(lp - sg(lp)), with s = exp(mean of its response's log-ratios) and sg without gradient."""
    mean = _response_mean(tokens.log_ratio.detach(), tokens.response)
    ratio = (tokens.log_probs - tokens.log_probs.detach() + mean).exp()
    losses, over = _clipped_surrogate(objective, tokens.advantages, ratio)
    return PolicyLosses(losses, over, torch.zeros_like(over))


def _cispo(objective: PolicyGradient, tokens: PolicyTokens) -> PolicyLosses:
    """CISPO (arXiv:2506.13585): l = -sg(clip(r, 1 - clip_low, 1 + clip_high)) A lp; a clipped token keeps its gradient."""
    weight = tokens.ratio.detach().clamp(1.0 - objective.clip_low, 1.0 + objective.clip_high)
    clipped = weight != tokens.ratio.detach()
    return PolicyLosses(-weight * tokens.advantages * tokens.log_probs, clipped, torch.zeros_like(clipped))


def _gmpo(objective: PolicyGradient, tokens: PolicyTokens) -> PolicyLosses:
    """GMPO (arXiv:2507.20673): every token of a response has the response's loss, -A exp(mean x), with A the mean advantage.

    x = sign(A) min(sign(A) log r, sign(A) clip(log r, -clip_low, clip_high)), token by token.
    """
    sign = tokens.advantages.sign()
    log_ratio = sign * torch.minimum(sign * tokens.log_ratio, sign * tokens.log_ratio.clamp(-objective.clip_low, objective.clip_high))
    ratio = _response_mean(log_ratio, tokens.response).exp()
    clipped = (log_ratio != tokens.log_ratio) & (sign != 0)
    return PolicyLosses(-_response_mean(tokens.advantages, tokens.response) * ratio, clipped, torch.zeros_like(clipped))


def _clip_cov(objective: PolicyGradient, tokens: PolicyTokens) -> PolicyLosses:
    """Clip-Cov (arXiv:2505.22617): the clipped loss, without the tokens of large covariance: their gradient is zero."""
    losses, over = _clipped_surrogate(objective, tokens.advantages, tokens.ratio)
    large = _large_covariance(tokens)
    return PolicyLosses(torch.where(large, torch.zeros_like(losses), losses), over | large, torch.zeros_like(over))


def _kl_cov(objective: PolicyGradient, tokens: PolicyTokens) -> PolicyLosses:
    """KL-Cov (arXiv:2505.22617): l = -A r, plus covariance_kl KL(old || policy) on the tokens of large covariance.

    The KL term is k3 from samples of the old policy, r - 1 - log r. Its gradient is zero where the policies are equal, as that of a divergence
    is; the gradient of the absolute log-ratio, which is in use too, has there the sign of a rounding error.
    """
    losses = -tokens.advantages * tokens.ratio
    divergence = kl_divergence(tokens.old_log_probs, tokens.log_probs, "k3")
    losses = torch.where(_large_covariance(tokens), losses + objective.covariance_kl * divergence, losses)
    nothing = torch.zeros_like(losses, dtype=torch.bool)
    return PolicyLosses(losses, nothing, nothing)


def _gpg(objective: PolicyGradient, tokens: PolicyTokens) -> PolicyLosses:
    """GPG (arXiv:2504.02546): l = -A lp."""
    nothing = torch.zeros_like(tokens.log_probs, dtype=torch.bool)
    return PolicyLosses(-tokens.advantages * tokens.log_probs, nothing, nothing)


_LOSSES: dict[str, Callable[[PolicyGradient, PolicyTokens], PolicyLosses]] = {
    "clip": _clip,
    "gspo": _gspo,
    "cispo": _cispo,
    "gmpo": _gmpo,
    "clip_cov": _clip_cov,
    "kl_cov": _kl_cov,
    "gpg": _gpg,
}


def _clipped_surrogate(objective: PolicyGradient, advantages: torch.Tensor, ratio: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """max(-A r, -A clip(r)), and where the clipped one is the larger."""
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - objective.clip_low, 1.0 + objective.clip_high)
    return torch.maximum(plain, clipped), clipped > plain


def _response_mean(values: torch.Tensor, response: torch.Tensor | None) -> torch.Tensor:
    """(M,) the mean of the values of each token's response."""
    if response is None:
        raise ValueError("this loss needs the response of each token")
    _, index = torch.unique(response, return_inverse=True)
    counts = torch.bincount(index).to(values.dtype)
    return (torch.zeros_like(counts).index_add(0, index, values) / counts)[index]


def _large_covariance(tokens: PolicyTokens) -> torch.Tensor:
    if tokens.large_covariance is None:
        raise ValueError("this loss needs large_covariance")
    return tokens.large_covariance
