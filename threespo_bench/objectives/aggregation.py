"""How the losses of many tokens become one number (R(esponses) x T(okens) -> scalar).

Every mode is a weighted sum over the tokens under the mask, so the whole mode is one matrix of weights. Weights are computed once from
the mask of the whole mini-batch; a micro-batch then sums its own tokens with its own weights, and the sum over micro-batches is the
loss of the mini-batch however it was split. One mask feeds numerator and denominator, and an empty mask has no weights: its loss is 0.

With two responses of 1 and 9 tokens, the weights are: ``token-mean`` 1/10 for every token; ``seq-mean-token-mean`` 1/2 and 1/18;
``seq-mean-token-sum`` 1/2 for every token; ``seq-mean-token-sum-norm`` 1/scale for every token (Dr. GRPO, arXiv:2503.20783).

What counts as a sequence is the ``unit``: the response of one ``turn``, as above; all responses of a ``trajectory`` in the mini-batch, so that
long episodes weigh no more than short ones; or each ``token``, which makes every mean over sequences a mean over tokens.
"""

from __future__ import annotations

import torch

from threespo_bench.contracts.objective import AGGREGATIONS, UNITS
from threespo_bench.errors import UsageError


def token_weights(mask: torch.Tensor, mode: str, scale_tokens: int = 1, unit: str = "turn", trajectories: torch.Tensor | None = None) -> torch.Tensor:
    """Weight of each token in the aggregated loss.

    Args:
        mask: (R, T) bool, the tokens that count. A response without any is no response: it enters no count.
        mode: one of AGGREGATIONS.
        scale_tokens: the divisor of ``seq-mean-token-sum-norm``.
        unit: one of UNITS. trajectories: (R,) int64 codes of the trajectory of each response, for the unit ``trajectory``.

    Returns:
        (R, T) float64, 0 where the mask is false.
    """
    require_boolean(mask)
    tokens = mask.sum().clamp(min=1).double()
    lengths, sequences = _sequences(mask, unit, trajectories)
    if mode == "token-mean":
        weight = 1.0 / tokens
    elif mode == "seq-mean-token-sum":
        weight = 1.0 / sequences
    elif mode == "seq-mean-token-mean":
        weight = 1.0 / (sequences * lengths.clamp(min=1).double())
    elif mode == "seq-mean-token-sum-norm":
        weight = torch.tensor(1.0 / scale_tokens, dtype=torch.float64, device=mask.device)
    else:
        raise UsageError(f"aggregation={mode} is unknown", fix="one of " + ", ".join(AGGREGATIONS))
    return torch.where(mask, weight, torch.zeros((), dtype=torch.float64, device=mask.device))


def _sequences(mask: torch.Tensor, unit: str, trajectories: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens in the sequence of each token, as (R, 1) or (R, T), and the number of sequences that have any (1 if none has)."""
    lengths = mask.sum(dim=1, keepdim=True)
    if unit == "turn":
        counts = lengths
    elif unit == "token":
        lengths = counts = mask.long()
    elif unit == "trajectory":
        if trajectories is None:
            raise ValueError("unit=trajectory needs trajectories")
        counts = torch.bincount(trajectories, weights=lengths[:, 0].double()).long()
        lengths = counts[trajectories][:, None]
    else:
        raise UsageError(f"unit={unit} is unknown", fix="one of " + ", ".join(UNITS))
    return lengths, (counts > 0).sum().clamp(min=1).double()


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
