"""GRPO: the advantage of a trajectory is its return relative to the other rollouts of the same task."""

from __future__ import annotations

from dataclasses import dataclass

from threespo_algorithms.episode_term import GroupedConfig, episode_term, penalties
from threespo_algorithms.group_statistics import over_tokens
from threespo_bench.contracts.algorithm import Algorithm, Credit
from threespo_bench.rollout.grouped import GroupedSampler
from threespo_bench.turns import TurnBatch


@dataclass
class GRPOConfig(GroupedConfig):
    """Options of GRPO; ``normalise_by_std=false`` with ``objective.aggregation=seq-mean-token-sum-norm`` is Dr.GRPO (preset ``dr_grpo``)."""


class GRPO(Algorithm):
    """Group Relative Policy Optimization."""

    Config = GRPOConfig
    title = "Group Relative Policy Optimization"
    source = "DeepSeekMath, arXiv:2402.03300; Dr.GRPO: arXiv:2503.20783; multi-turn layout: verl-agent"
    notes = (
        "A_i = (R_i - mean(R)) / (std(R) + eps) over the rollouts of one task, on every token of the trajectory. "
        "Preset `reference` charges invalid actions and takes statistics as verl-agent does."
    )

    def __init__(self, config: GRPOConfig) -> None:
        super().__init__(config)
        self.sampler = GroupedSampler(config.group_size)

    def credit(self, turns: TurnBatch) -> Credit:
        """Outcome advantage of each turn's trajectory, broadcast over its tokens."""
        advantage, diagnostics = episode_term(turns, self.config)
        if self.config.penalty_stage == "after_norm" and self.config.penalty_mode == "row_local":
            advantage = advantage - penalties(turns, self.config)
        return Credit(over_tokens(advantage, turns), diagnostics=diagnostics)
