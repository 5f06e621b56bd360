"""HGPO: a turn is compared at several depths of its recent history, and deeper comparisons weigh more."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from threespo_algorithms.episode_term import GroupedConfig, episode_term, penalties
from threespo_algorithms.group_statistics import EQUAL_VALUES, discounted_returns, group_statistics, normalise, over_tokens
from threespo_algorithms.observation_history import recent_history_keys, time_order
from threespo_bench.contracts.algorithm import Algorithm, Credit
from threespo_bench.contracts.objective import require
from threespo_bench.errors import UsageError
from threespo_bench.rollout.grouped import GroupedSampler
from threespo_bench.turns import TurnBatch


@dataclass
class HGPOConfig(GroupedConfig):
    """Options of HGPO. ``statistics_unit`` and ``singleton`` are those of the episode term and matter with ``base_group`` only.

    Attributes:
        history_length: K; turns are compared by their last 1 to K + 1 observations, the present one included.
        weight_alpha: the comparison by k observations weighs (k + 1) to this power; 0 weighs all alike.
        base_group: the episode advantage is one of the comparisons, with weight 1. Without it an episode's outcome counts through the returns alone.
        gamma: discount of the returns that turns are compared by.
    """

    history_length: int = 2
    weight_alpha: float = 1.0
    base_group: bool = False
    gamma: float = 0.95

    def validate(self) -> None:
        super().validate()
        require(self.history_length >= 0, "algorithm.history_length", self.history_length, ">= 0")
        require(self.weight_alpha >= 0, "algorithm.weight_alpha", self.weight_alpha, ">= 0")
        require(0 <= self.gamma <= 1, "algorithm.gamma", self.gamma, "in [0, 1]")
        if self.penalty_mode == "trajectory_sum" and not self.base_group:
            raise UsageError(
                "algorithm.penalty_mode=trajectory_sum is out of range: it charges the episode term, which HGPO has with base_group=true only",
                fix="set algorithm.base_group=true, or algorithm.penalty_mode=row_local",
            )


class HGPO(Algorithm):
    """Hierarchy-of-Groups Policy Optimization."""

    Config = HGPOConfig
    title = "Hierarchy-of-Groups Policy Optimization"
    source = "arXiv:2602.22817 (ICLR 2026); reference code: the recipe in verl-agent"
    notes = (
        "A = sum_k w_k a_k / sum_k w_k with w_k = (k + 1)^alpha: a_k is the discounted return-to-go relative to all turns of the task's rollouts that have the "
        "same last k observations (population deviation); depths at which a turn has no peer, or lies exactly on the mean, have no weight. A turn without "
        "any comparison gets 0. Presets `reference` and `reference_mean` are the published ALFWorld and WebShop settings."
    )
    requires = ("anchor_obs",)

    def __init__(self, config: HGPOConfig) -> None:
        super().__init__(config)
        self.sampler = GroupedSampler(config.group_size)

    def credit(self, turns: TurnBatch) -> Credit:
        """Weighted mean of the group advantages at all depths of history, on every token of the turn."""
        turns.require(self.requires, "hgpo")
        config = self.config
        penalty = penalties(turns, config)
        returns = discounted_returns(turns, config.gamma)
        if config.penalty_stage == "before_norm":
            returns = returns - penalty  # local: neither discounted nor passed on to earlier turns
        total, weight = np.zeros(len(turns)), np.zeros(len(turns))
        diagnostics: dict[str, float] = {}
        for depth, (advantage, shares) in enumerate(self._comparisons(turns, returns)):
            informative = advantage != 0
            total += np.where(informative, (depth + 1.0) ** config.weight_alpha * advantage, 0.0)  # w_k = (k + 1)^alpha
            weight += np.where(informative, (depth + 1.0) ** config.weight_alpha, 0.0)
            diagnostics |= shares
        diagnostics["hgpo/uncompared_share"] = float((turns.real & (weight == 0)).sum() / max(turns.real.sum(), 1))
        advantage = total / (weight + config.epsilon)  # A = sum_k w_k a_k / (sum_k w_k + eps)
        if config.penalty_stage == "after_norm" and config.penalty_mode == "row_local":
            advantage = advantage - penalty
        return Credit(over_tokens(advantage, turns), diagnostics=diagnostics)

    def _comparisons(self, turns: TurnBatch, returns: np.ndarray) -> list[tuple[np.ndarray, dict[str, float]]]:
        """For k = 0 (the episode term), 1 ... K + 1: (N,) advantages, 0 where there is nothing to compare with, and diagnostics."""
        nothing: tuple[np.ndarray, dict[str, float]] = np.zeros(len(turns)), {}
        found = [episode_term(turns, self.config) if self.config.base_group else nothing]
        keys = recent_history_keys(time_order(turns), turns.codes("group_id", "anchor_obs"), self.config.history_length + 1)
        for depth, key in enumerate(keys, start=1):
            members = key >= 0
            statistics = group_statistics(returns, np.where(members, key, 0), members).population()
            relative = normalise(returns, statistics, by_std=self.config.normalise_by_std, epsilon=self.config.epsilon)
            at_mean = np.abs(returns - statistics.mean) <= EQUAL_VALUES * np.maximum(1.0, np.abs(statistics.mean))  # up to rounding
            found.append((np.where(members & ~at_mean, relative, 0.0), statistics.shares(f"history_{depth}", members)))
        return found
