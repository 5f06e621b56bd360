"""REINFORCE++-baseline: the return less the mean of its group, whitened over all response tokens of the batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from threespo_algorithms.episode_term import GroupBaselineConfig, above_baseline, episode_scores, late_penalties
from threespo_algorithms.group_statistics import over_tokens
from threespo_algorithms.reinforce_pp import moments, whiten
from threespo_bench.contracts.algorithm import Algorithm, Credit
from threespo_bench.rollout.grouped import GroupedSampler
from threespo_bench.turns import TurnBatch


@dataclass
class ReinforcePPBaselineConfig(GroupBaselineConfig):
    """Options of REINFORCE++-baseline: those of every group baseline."""


class ReinforcePPBaseline(Algorithm):
    """REINFORCE++ with a group baseline."""

    Config = ReinforcePPBaselineConfig
    title = "REINFORCE++-baseline"
    source = "arXiv:2501.03262; code: verl; multi-turn layout: verl-agent"
    notes = (
        "c_i = R_i - mean(R) over the rollouts of one task, on every token of the trajectory; A = (c - mean) / sqrt(var + 1e-8) over all response "
        "tokens of the batch, so that long responses weigh more. Preset `reference` takes the mean over turns, as verl-agent does."
    )

    def __init__(self, config: ReinforcePPBaselineConfig) -> None:
        super().__init__(config)
        self.sampler = GroupedSampler(config.group_size)

    def credit(self, turns: TurnBatch) -> Credit:
        """Return less the group's mean of each turn's trajectory, on its tokens, whitened over the batch."""
        scores = episode_scores(turns, self.config)
        statistics = scores.statistics()
        centred = above_baseline(scores, scores.compared - statistics.mean, statistics, self.config.singleton)  # c_i = R_i - mean(R)
        mask = turns.response_mask & turns.real[:, None]
        tokens = over_tokens(centred, turns)
        advantages = np.where(mask, whiten(tokens, mask) - late_penalties(turns, self.config)[:, None], 0.0)
        return Credit(advantages, diagnostics=statistics.shares("group", scores.members) | moments(tokens, mask, "centred_return"))
