"""GRPO: the advantage of a trajectory is its return relative to the other rollouts of the same task."""

from __future__ import annotations

from dataclasses import dataclass

from threespo_algorithms.episode_term import GroupedConfig, episode_term, late_penalties, pass_at_k_term
from threespo_algorithms.group_statistics import over_tokens
from threespo_bench.contracts.algorithm import Algorithm, Credit
from threespo_bench.errors import UsageError
from threespo_bench.rollout.grouped import GroupedSampler
from threespo_bench.turns import TurnBatch


@dataclass
class GRPOConfig(GroupedConfig):
    """Options of GRPO; ``normalise_by_std=false`` with ``objective.aggregation=seq-mean-token-sum-norm`` is Dr.GRPO (preset ``dr_grpo``).

    Attributes:
        pass_at_k: only the best trajectory of a group is learned from, by its lead over the second best: (r_first - r_second) / (std + eps).
    """

    pass_at_k: bool = False

    def validate(self) -> None:
        super().validate()
        if not self.pass_at_k:
            return
        if self.statistics_unit != "trajectory":
            raise UsageError("algorithm.pass_at_k=true compares trajectories and not turns", fix="set algorithm.statistics_unit=trajectory")
        if self.singleton != "zero":
            raise UsageError("algorithm.pass_at_k=true has no value for a trajectory that is alone in its group", fix="set algorithm.singleton=zero")
        if self.penalty_mode == "row_local" and self.penalty_stage == "before_norm":
            raise UsageError(
                "algorithm.pass_at_k=true compares trajectories, so a penalty of single turns cannot be charged before that",
                fix="set algorithm.penalty_stage=after_norm or algorithm.penalty_mode=trajectory_sum",
            )


class GRPO(Algorithm):
    """Group Relative Policy Optimization."""

    Config = GRPOConfig
    title = "Group Relative Policy Optimization"
    source = "DeepSeekMath, arXiv:2402.03300; Dr.GRPO: arXiv:2503.20783; pass@k: arXiv:2503.19595; multi-turn layout: verl-agent"
    notes = (
        "A_i = (R_i - mean(R)) / (std(R) + eps) over the rollouts of one task, on every token of the trajectory. "
        "Preset `reference` charges invalid actions and takes statistics as verl-agent does. "
        "With `pass_at_k` the best trajectory gets (R_first - R_second) / (std(R) + eps) and all others 0."
    )

    def __init__(self, config: GRPOConfig) -> None:
        super().__init__(config)
        self.sampler = GroupedSampler(config.group_size)

    def credit(self, turns: TurnBatch) -> Credit:
        """Outcome advantage of each turn's trajectory, broadcast over its tokens."""
        term = pass_at_k_term if self.config.pass_at_k else episode_term
        advantage, diagnostics = term(turns, self.config)
        return Credit(over_tokens(advantage - late_penalties(turns, self.config), turns), diagnostics=diagnostics)
