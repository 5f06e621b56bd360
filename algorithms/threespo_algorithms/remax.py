"""ReMax: the baseline of an episode is the return of a greedy episode of the same task."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from threespo_algorithms.group_statistics import EQUAL_VALUES, first_turns, invalid, over_tokens
from threespo_bench.contracts.algorithm import Algorithm, AlgorithmConfig, Credit
from threespo_bench.contracts.objective import require
from threespo_bench.rollout.greedy_baseline import GreedyBaselineSampler
from threespo_bench.turns import TurnBatch


@dataclass
class ReMaxConfig(AlgorithmConfig):
    """Options of ReMax.

    Attributes:
        rollouts: sampled episodes per task; one greedy episode comes on top of them.
        invalid_action_penalty: what an invalid action costs the turn itself; 0 switches it off.
    """

    rollouts: int = 1
    invalid_action_penalty: float = 0.1

    def validate(self) -> None:
        super().validate()
        require(self.rollouts >= 1, "algorithm.rollouts", self.rollouts, ">= 1")
        require(self.invalid_action_penalty >= 0, "algorithm.invalid_action_penalty", self.invalid_action_penalty, ">= 0")


class ReMax(Algorithm):
    """REINFORCE with the greedy episode as the baseline."""

    Config = ReMaxConfig
    title = "ReMax"
    source = "arXiv:2310.10505"
    notes = (
        "A = R - b on every token of the episode, b the return of one greedy episode of the same task. The greedy episode is played to its end in the "
        "environment; it is charged to the budget and not learned from."
    )
    requires = ("baseline_return",)

    def __init__(self, config: ReMaxConfig) -> None:
        super().__init__(config)
        self.sampler = GreedyBaselineSampler(config.rollouts)

    def credit(self, turns: TurnBatch) -> Credit:
        """Return of each turn's episode less that of the greedy one, broadcast over its tokens."""
        turns.require(self.requires, "remax")
        baseline = np.where(turns.real, turns.extras["baseline_return"].astype(float), 0.0)
        difference = turns.episode_return() - baseline  # R - b
        equal = np.abs(difference) <= EQUAL_VALUES * np.maximum(1.0, np.abs(baseline))
        advantage = np.where(equal, 0.0, difference) - np.where(invalid(turns), self.config.invalid_action_penalty, 0.0)
        episodes = first_turns(turns)
        count = max(int(episodes.sum()), 1)
        diagnostics = {"baseline/mean": float(baseline[episodes].sum() / count), "baseline/equal_share": float(equal[episodes].sum() / count)}
        return Credit(over_tokens(advantage, turns), diagnostics=diagnostics)
