"""RLOO: the baseline of a trajectory is the mean return of the other rollouts of its task."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from threespo_algorithms.episode_term import GroupBaselineConfig, above_baseline, episode_scores, late_penalties
from threespo_algorithms.group_statistics import over_tokens
from threespo_bench.contracts.algorithm import Algorithm, Credit
from threespo_bench.rollout.grouped import GroupedSampler
from threespo_bench.turns import TurnBatch


@dataclass
class RLOOConfig(GroupBaselineConfig):
    """Options of RLOO: those of every group baseline."""


class RLOO(Algorithm):
    """REINFORCE Leave-One-Out."""

    Config = RLOOConfig
    title = "REINFORCE Leave-One-Out"
    source = "arXiv:2402.14740; multi-turn layout: verl-agent"
    notes = (
        "A_i = R_i - mean of the other R_j of the task = k / (k - 1) * (R_i - mean(R)), on every token of the trajectory. "
        "Preset `reference` counts turns instead of trajectories, as verl-agent does: the others of a turn then include its own trajectory."
    )

    def __init__(self, config: RLOOConfig) -> None:
        super().__init__(config)
        self.sampler = GroupedSampler(config.group_size)

    def credit(self, turns: TurnBatch) -> Credit:
        """Leave-one-out advantage of each turn's trajectory, broadcast over its tokens."""
        scores = episode_scores(turns, self.config)
        statistics = scores.statistics()
        k = statistics.count
        difference = k / np.maximum(k - 1, 1) * (scores.compared - statistics.mean)  # R_i - sum_{j != i} R_j / (k - 1)
        advantage = above_baseline(scores, difference, statistics, self.config.singleton) - late_penalties(turns, self.config)
        return Credit(over_tokens(advantage, turns), diagnostics=statistics.shares("group", scores.members))
