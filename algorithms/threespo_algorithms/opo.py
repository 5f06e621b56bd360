"""OPO: the baseline of a group is the mean of its returns, weighted by the lengths of the responses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from threespo_algorithms.episode_term import EpisodeScores, GroupBaselineConfig, above_baseline, episode_scores, late_penalties
from threespo_algorithms.group_statistics import over_tokens, trajectory_sum
from threespo_bench.contracts.algorithm import Algorithm, Credit
from threespo_bench.rollout.grouped import GroupedSampler
from threespo_bench.turns import TurnBatch


@dataclass
class OPOConfig(GroupBaselineConfig):
    """Options of OPO: those of every group baseline. The length of a ``trajectory`` is the number of response tokens of all its turns."""


class OPO(Algorithm):
    """On-Policy RL with Optimal reward baseline."""

    Config = OPOConfig
    title = "On-Policy RL with Optimal Reward Baseline"
    source = "arXiv:2505.23585; code: verl"
    notes = (
        "A_i = R_i - b with b = sum(L R) / sum(L) over the rollouts of one task, L the number of generated tokens: the variance-minimising baseline "
        "if the squared gradient grows with the length. Preset `reference` weighs turns instead of trajectories."
    )

    def __init__(self, config: OPOConfig) -> None:
        super().__init__(config)
        self.sampler = GroupedSampler(config.group_size)

    def credit(self, turns: TurnBatch) -> Credit:
        """Return less the length-weighted baseline of each turn's trajectory, broadcast over its tokens."""
        scores = episode_scores(turns, self.config)
        statistics = scores.statistics()
        length = turns.response_mask.sum(axis=1).astype(float)
        if self.config.statistics_unit == "trajectory":
            length = trajectory_sum(length, turns)
        difference = scores.compared - length_weighted_mean(scores, length)
        advantage = above_baseline(scores, difference, statistics, self.config.singleton) - late_penalties(turns, self.config)
        return Credit(over_tokens(advantage, turns), diagnostics=statistics.shares("group", scores.members))


def length_weighted_mean(scores: EpisodeScores, length: np.ndarray) -> np.ndarray:
    """(N,) ``sum(L * R) / sum(L)`` of the row's group; 0 for a group without any token.

    Args:
        scores: what is compared. length: (N,) tokens of the row's turn or trajectory.
    """
    size, group = int(scores.group.max(initial=-1)) + 1, scores.group[scores.members]
    weight = length[scores.members]
    total = np.bincount(group, weights=weight, minlength=size)
    weighted = np.bincount(group, weights=weight * scores.compared[scores.members], minlength=size)
    return np.divide(weighted, total, out=np.zeros(size), where=total > 0)[scores.group]
