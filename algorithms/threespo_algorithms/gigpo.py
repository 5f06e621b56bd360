"""GiGPO: the trajectory's advantage plus the advantage of the turn among all turns of the task that acted in the same state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from threespo_algorithms.episode_term import GroupedConfig, episode_term, penalties
from threespo_algorithms.group_statistics import discounted_returns, group_statistics, normalise, over_tokens
from threespo_algorithms.similarity import similar_texts
from threespo_bench.contracts.algorithm import Algorithm, Credit
from threespo_bench.errors import UsageError
from threespo_bench.rollout.grouped import GroupedSampler
from threespo_bench.turns import TurnBatch


@dataclass
class GiGPOConfig(GroupedConfig):
    """Options of GiGPO.

    Attributes:
        gamma: discount of the returns that turns are compared by.
        step_weight: weight of the step-level term (the paper's omega).
        similarity: turns whose anchor texts are alike are compared, not only those with the same text. Each text of a task, in sorted order, joins the
            first cluster whose leader it resembles; verl-agent takes the texts in the order of its rows.
        similarity_threshold: least ratio of difflib's SequenceMatcher, in (0, 1], at which two texts are alike.
    """

    gamma: float = 0.95
    step_weight: float = 1.0
    similarity: bool = False
    similarity_threshold: float = 0.95

    def validate(self) -> None:
        super().validate()
        if not 0 <= self.gamma <= 1:
            raise UsageError(f"algorithm.gamma={self.gamma} is out of range: must be in [0, 1]")
        if self.step_weight < 0:
            raise UsageError(f"algorithm.step_weight={self.step_weight} is out of range: must be >= 0")
        if not 0 < self.similarity_threshold <= 1:
            raise UsageError(f"algorithm.similarity_threshold={self.similarity_threshold} is out of range: must be in (0, 1]")


class GiGPO(Algorithm):
    """Group-in-Group Policy Optimization."""

    Config = GiGPOConfig
    title = "Group-in-Group Policy Optimization"
    source = "arXiv:2505.10978 (NeurIPS 2025); reference code: verl-agent"
    notes = (
        "A = A_episode + w * A_step; A_step compares the discounted return-to-go of all turns of the task's rollouts that acted in the same anchor state. "
        "Anchor `obs` is the published key (exact observation text); `state` is the environment's true state. With `similarity` alike texts count as one state."
    )
    requires = ("anchor_obs",)

    def __init__(self, config: GiGPOConfig) -> None:
        super().__init__(config)
        self.sampler = GroupedSampler(config.group_size)

    def credit(self, turns: TurnBatch) -> Credit:
        """Episode term plus step term A = A_episode + w A_step, on every token of the turn."""
        turns.require(self.requires, "gigpo")
        config = self.config
        penalty = penalties(turns, config)
        episode, diagnostics = episode_term(turns, config)
        returns = discounted_returns(turns, config.gamma)
        if config.penalty_stage == "before_norm":
            returns = returns - penalty  # local: neither discounted nor passed on to earlier turns
        statistics = group_statistics(returns, self._states(turns), turns.real)
        step = normalise(returns, statistics, by_std=config.normalise_by_std, epsilon=config.epsilon)  # a lone turn gets 0
        advantage = episode + config.step_weight * step
        if config.penalty_stage == "after_norm" and config.penalty_mode == "row_local":
            advantage = advantage - penalty
        return Credit(over_tokens(advantage, turns), diagnostics=diagnostics | statistics.shares("step_group", turns.real))

    def _states(self, turns: TurnBatch) -> np.ndarray:
        """(N,) codes of the step groups: same task and same state, or alike texts."""
        if self.config.similarity:
            return similar_texts(turns.group_id, turns.anchor_obs, turns.real, self.config.similarity_threshold)
        return turns.codes("group_id", "anchor_obs")
