"""Our estimators for verl's own trainer: ``algorithm.adv_estimator=threespo/grpo``.

verl tells an estimator the rewards, the masks and which prompt each row answers, and nothing of steps, states or trees. So only those are offered that
need no more: a row is a whole trajectory of one turn. Options of ours go under ``algorithm.threespo``, e.g. ``+algorithm.threespo.normalise_by_std=false``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache, partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from threespo_bench.errors import UsageError, suggest

if TYPE_CHECKING:
    import torch

NAMES = ("grpo", "opo", "reinforce_pp", "reinforce_pp_baseline", "rloo")
PREFIX = "threespo/"


def register(core_algos: ModuleType) -> None:
    """Put our estimators into verl's registry."""
    for name in NAMES:
        core_algos.register_adv_est(PREFIX + name)(_estimator(name))


@cache
def _estimator(name: str) -> Callable[..., Any]:
    """One function for each name: verl refuses two for one."""
    return partial(estimate, name)


def estimate(
    name: str,
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    config: Mapping[str, Any] | None = None,
    index: np.ndarray | None = None,
    **unused: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages as verl asks for them.

    Args:
        token_level_rewards, response_mask: (N, T). index: (N,) the prompt of each row.
        config: verl's section ``algorithm``.
        unused: what verl tells other estimators.

    Returns:
        Twice the (N, T) advantages: an estimator without a critic has no other returns.

    Raises:
        UsageError: there are no prompts, or an option is wrong.
    """
    import torch

    from threespo_bench.turns import TurnBatch

    if index is None:
        raise UsageError(f"{PREFIX}{name} needs the prompt of each row, and verl told none")
    mask = response_mask.bool().cpu().numpy()
    rewards = token_level_rewards.double().cpu().numpy()
    turns = TurnBatch(
        group_id=np.asarray(index),
        traj_id=np.arange(len(mask)),
        step_id=np.zeros(len(mask), np.int64),
        step_reward=np.where(mask, rewards, 0.0).sum(axis=1),
        response_mask=mask,
    )
    advantages = _algorithm(name, config).credit(turns).advantages
    found = torch.from_numpy(advantages).to(token_level_rewards.device, token_level_rewards.dtype)
    return found, found


def _algorithm(name: str, config: Mapping[str, Any] | None) -> Any:
    made = _class(name)
    options = dict((config or {}).get("threespo") or {})
    known = {field.name for field in fields(made.Config)} - {"objective", "optimization"}
    for option in options:
        if option not in known:
            raise UsageError(f"algorithm.threespo.{option} is no option of {name}", fix=suggest(option, known))
    settings = made.Config(**options)
    settings.validate()
    return made(settings)


@cache
def _class(name: str) -> Any:
    from threespo_bench.host import PluginHost

    return PluginHost.discover().find("algorithms", name).load()
