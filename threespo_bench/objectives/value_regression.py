"""Regression of values with PPO's value clipping (arXiv:1707.06347; https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/).

With v the value, v_old the one at the time of the rollout, R its target and c the clip range:

    l = 0.5 max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2)
"""

from __future__ import annotations

import torch


def value_losses(values: torch.Tensor, old_values: torch.Tensor, targets: torch.Tensor, clip: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of each value, and whether clipping decides it: such a value has no gradient.

    Args:
        values: any shape; carries the gradient. old_values, targets: same shape.
        clip: the clip range, in units of reward; None does not clip.
    """
    plain = (values - targets).square()
    if clip is None:
        return 0.5 * plain, torch.zeros_like(values, dtype=torch.bool)
    bounded = torch.minimum(torch.maximum(values, old_values - clip), old_values + clip)
    clipped = (bounded - targets).square()
    # max(plain, clipped) would split the gradient where both are equal, and equal they are for every value inside the range.
    decides = clipped > plain
    return 0.5 * torch.where(decides, clipped, plain), decides
