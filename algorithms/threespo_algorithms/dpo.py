"""DPO: trajectories of a task are paired by their returns, and the policy learns to tell them apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from threespo_algorithms.preference_credit import NEEDS, preference_credit, refresh_is_due
from threespo_algorithms.preference_pairs import TrajectoryPairsConfig, trajectory_preferences
from threespo_bench.contracts.algorithm import Algorithm, Credit
from threespo_bench.errors import UsageError
from threespo_bench.rollout.grouped import GroupedSampler
from threespo_bench.turns import TurnBatch


@dataclass
class DPOConfig(TrajectoryPairsConfig):
    """Options of online DPO.

    Attributes:
        group_size: rollouts per task, at least 2.
    """

    group_size: int = 8

    def validate(self) -> None:
        super().validate()
        if self.group_size < 2:
            raise UsageError(f"algorithm.group_size={self.group_size} is out of range: a pair needs at least 2 rollouts of a task")


class DPO(Algorithm):
    """Direct Preference Optimization, online."""

    Config = DPOConfig
    title = "Direct Preference Optimization"
    source = "arXiv:2305.18290; trajectories of agents (ETO): arXiv:2403.02502"
    notes = (
        "h = [l(y+) - l_ref(y+)] - [l(y-) - l_ref(y-)], l the sum of the log-probabilities of all response tokens of a trajectory; the loss is "
        "-log sigmoid(beta h). Pairs are made of the rollouts of a task, by return: the better one must lead by min_gap, ties make none, a turn with an "
        "invalid action is never learned from as part of the better one. The advantages +-beta sigmoid(-beta h) only show who gets the credit."
    )
    needs = NEEDS
    name = "dpo"

    def __init__(self, config: DPOConfig) -> None:
        super().__init__(config)
        self.sampler = GroupedSampler(config.group_size)
        if config.pairing == "all_mixed":
            self.requires = ("success",)

    def credit(self, turns: TurnBatch) -> Credit:
        """The pairs, and the slope of the loss at each on the tokens of both sides."""
        turns.require(self.requires, self.name)
        config = self.config
        preferences = trajectory_preferences(turns, config, self.turn_weights)
        return preference_credit(turns, preferences, config.objective)

    def turn_weights(self, length: int) -> np.ndarray:
        """(n,) the weights of the turns of a trajectory of ``length`` n: 1 each."""
        return np.ones(length)

    def refreshes_reference(self, iteration: int) -> bool:
        return refresh_is_due(self.config.reference_update_iterations, iteration)
