"""Step-DPO: different actions taken in the same rendered state of a task are paired by what came of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from threespo_algorithms.generalized_advantage import trajectories
from threespo_algorithms.group_statistics import discounted_returns
from threespo_algorithms.preference_credit import NEEDS, preference_credit, refresh_is_due
from threespo_algorithms.preference_pairs import Contenders, PairedConfig, response_codes, trajectory_success, turn_preferences, usable
from threespo_bench.contracts.algorithm import Algorithm, Credit
from threespo_bench.errors import UsageError
from threespo_bench.rollout.grouped import GroupedSampler
from threespo_bench.turns import TurnBatch, codes, group_codes, object_column


@dataclass
class StepDPOConfig(PairedConfig):
    """Options of Step-DPO; a group of contenders is the turns of a task that acted in one state.

    Attributes:
        group_size: rollouts per task, at least 2.
        gamma: discount of the returns that turns are compared by.
    """

    group_size: int = 8
    gamma: float = 0.95
    min_gap: float = 0.0

    def validate(self) -> None:
        super().validate()
        if self.group_size < 2:
            raise UsageError(f"algorithm.group_size={self.group_size} is out of range: a pair needs at least 2 rollouts of a task")
        if not 0 <= self.gamma <= 1:
            raise UsageError(f"algorithm.gamma={self.gamma} is out of range: must be in [0, 1]")


class StepDPO(Algorithm):
    """Step-DPO for agents, online."""

    Config = StepDPOConfig
    title = "Step-wise Direct Preference Optimization"
    source = "arXiv:2406.18629, whose steps are those of a proof; here they are the actions of an agent"
    notes = (
        "Of the turns of a task's rollouts that acted in the same state with the same prompt, the one with the larger discounted return-to-go is preferred to "
        "one that did something else; equal returns make no pair. The loss is that of DPO on the single turns. The published steps are found and corrected by "
        "a stronger model; finding them among the rollouts is a reconstruction for agents."
    )
    needs = NEEDS
    requires: tuple[str, ...] = ("anchor_obs", "prompt_ids")

    def __init__(self, config: StepDPOConfig) -> None:
        super().__init__(config)
        self.sampler = GroupedSampler(config.group_size)
        if config.pairing == "all_mixed":
            self.requires = (*self.requires, "success")

    def credit(self, turns: TurnBatch) -> Credit:
        """The pairs of turns, and the slope of the loss at each on the tokens of both."""
        turns.require(self.requires, "step_dpo")
        config = self.config
        segments = trajectories(turns)
        rows = segments.rows
        success = np.repeat(trajectory_success(turns, segments), segments.lengths)
        contenders = self._contenders(turns, rows, success)
        preferences = turn_preferences(turns, contenders, rows, config.pairing, config.min_gap, config.max_pairs_per_group)
        return preference_credit(turns, preferences, config.objective)

    def refreshes_reference(self, iteration: int) -> bool:
        return refresh_is_due(self.config.reference_update_iterations, iteration)

    def _contenders(self, turns: TurnBatch, rows: np.ndarray, success: np.ndarray) -> Contenders:
        prompts = object_column([np.asarray(prompt, np.int32).tobytes() for prompt in turns.prompt_ids])
        return Contenders(
            group=group_codes(turns.group_id, turns.anchor_obs, prompts)[rows],
            value=discounted_returns(turns, self.config.gamma)[rows],
            length=np.ones(len(rows), np.int64),
            label=object_column([f"{name!r}/{step}" for name, step in zip(turns.traj_id[rows].tolist(), turns.step_id[rows].tolist(), strict=True)]),
            content=action_codes(turns)[rows],
            won=success,
            may_win=usable(turns, chosen=True)[rows],
            may_lose=usable(turns, chosen=False)[rows],
        )


def action_codes(turns: TurnBatch) -> np.ndarray:
    """(N,) integers that are equal where the same was done: the same command, or where none was recorded, the same response."""
    if "command" in turns.extras:
        return codes(turns.extras["command"])
    turns.require(("response_ids",), "without the column command, step_dpo")
    return response_codes(turns)
