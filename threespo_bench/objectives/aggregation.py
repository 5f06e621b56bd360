"""How the losses of many tokens become one number (R(esponses) x T(okens) -> scalar).

Every mode is a weighted sum over the tokens under the mask, so the whole mode is one matrix of weights. Weights are computed once from
the mask of the whole mini-batch; a micro-batch then sums its own tokens with its own weights, and the sum over micro-batches is the
loss of the mini-batch however it was split. One mask feeds numerator and denominator, and an empty mask has no weights: its loss is 0.

With two responses of 1 and 9 tokens, the weights are: ``token-mean`` 1/10 for every token; ``seq-mean-token-mean`` 1/2 and 1/18;
``seq-mean-token-sum`` 1/2 for every token; ``seq-mean-token-sum-norm`` 1/scale for every token (Dr. GRPO, arXiv:2503.20783).
"""

from __future__ import annotations

import torch

from threespo_bench.contracts.objective import AGGREGATIONS
from threespo_bench.errors import UsageError


def token_weights(mask: torch.Tensor, mode: str, scale_tokens: int = 1) -> torch.Tensor:
    """Weight of each token in the aggregated loss.

    Args:
        mask: (R, T) bool, the tokens that count. A response without any is no response: it enters no count.
        mode: one of AGGREGATIONS.
        scale_tokens: the divisor of ``seq-mean-token-sum-norm``.

    Returns:
        (R, T) float64, 0 where the mask is false.
    """
    require_boolean(mask)
    lengths = mask.sum(dim=1, keepdim=True)
    tokens = lengths.sum().clamp(min=1).double()
    responses = (lengths > 0).sum().clamp(min=1).double()
    if mode == "token-mean":
        weight = 1.0 / tokens
    elif mode == "seq-mean-token-sum":
        weight = 1.0 / responses
    elif mode == "seq-mean-token-mean":
        weight = 1.0 / (responses * lengths.clamp(min=1).double())
    elif mode == "seq-mean-token-sum-norm":
        weight = torch.tensor(1.0 / scale_tokens, dtype=torch.float64, device=mask.device)
    else:
        raise UsageError(f"aggregation={mode} is unknown", fix="one of " + ", ".join(AGGREGATIONS))
    return torch.where(mask, weight, torch.zeros((), dtype=torch.float64, device=mask.device))


def weighted_sum(values: torch.Tensor, weights: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Sum of ``values * weights`` over the tokens under the mask; the others are never touched, whatever they hold."""
    return (values[mask] * weights[mask].to(values.dtype)).sum()


def aggregate(losses: torch.Tensor, mask: torch.Tensor, mode: str, scale_tokens: int = 1) -> torch.Tensor:
    """The aggregated loss of (R, T) ``losses`` in one step, for a batch that is not split."""
    return weighted_sum(losses, token_weights(mask, mode, scale_tokens), mask)


def require_boolean(mask: torch.Tensor) -> None:
    """Raises TypeError unless ``mask`` is boolean: a float passed in its place would silently weight tokens."""
    if mask.dtype != torch.bool:
        raise TypeError(f"a mask must be boolean, not {mask.dtype}")
