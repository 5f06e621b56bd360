"""3SPO-DPO: the search and the transition reward of 3SPO; at each expanded state the best action is preferred to the worst one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from threespo_algorithms.group_statistics import invalid
from threespo_algorithms.preference_credit import NEEDS, check_reference_update, preference_credit, refresh_is_due
from threespo_algorithms.preference_pairs import Contenders, turn_preferences, usable
from threespo_algorithms.threespo import ThreeSPO, ThreeSPOConfig
from threespo_bench.contracts.algorithm import Credit, Preferences
from threespo_bench.contracts.objective import Preference
from threespo_bench.errors import UsageError
from threespo_bench.turns import TurnBatch, codes, object_column


@dataclass
class ThreeSPODPOConfig(ThreeSPOConfig):
    """Options of 3SPO-DPO: those of 3SPO, of which the division by the deviation (``normalise_by_std``, ``minimum_std``, ``epsilon``) has no part in pairs.

    Attributes:
        objective: the loss on preferences.
        min_gap: least difference of R between the two actions of a pair.
        reference_update_iterations: the present policy becomes the reference every so many iterations; 0 keeps the starting policy.
    """

    objective: Preference = field(default_factory=Preference)  # type: ignore[assignment]
    min_gap: float = 0.05
    reference_update_iterations: int = 1

    def validate(self) -> None:
        super().validate()
        check_reference_update(self.reference_update_iterations)
        if self.min_gap < 0:
            raise UsageError(f"algorithm.min_gap={self.min_gap} is out of range: must be >= 0")


class ThreeSPODPO(ThreeSPO):
    """State-Score-Supervised Policy Optimization with preferences."""

    Config = ThreeSPODPOConfig
    title = "State-Score-Supervised Policy Optimization with preferences"
    source = "the method: arXiv:2606.09961; the loss: arXiv:2305.18290"
    notes = (
        "Of the n(s) children of an expanded state the one of largest R is preferred to the one of smallest R among those with another command, if their R "
        "differ by min_gap; the loss is that of DPO on the two turns, after every wave. An invalid action can only be on the losing side; both ways of "
        "penalising it count in R, and `exclude` leaves it out. n(s), the search and the state history are 3SPO's. The published repository names this variant "
        "and has no code of it, so it is a reconstruction."
    )
    needs = ThreeSPO.needs | NEEDS
    requires: tuple[str, ...] = (*ThreeSPO.requires, "command")

    def credit(self, turns: TurnBatch) -> Credit:
        """The pairs of the wave, and the slope of the loss at each on the tokens of both turns."""
        turns.require(self.requires, "threespo_dpo")
        config = self.config
        preferences = self._pairs(turns)
        compared = super().credit(turns)  # its diagnostics hold here, too
        credit = preference_credit(turns, preferences, config.objective)
        # A full wave has one pair of each task's tree.
        scale = min(1.0, len(preferences.chosen) / config.tasks_per_iteration) if config.scale_small_waves else 1.0
        return replace(credit, scale=scale, diagnostics=compared.diagnostics | credit.diagnostics)

    def refreshes_reference(self, iteration: int) -> bool:
        return refresh_is_due(self.config.reference_update_iterations, iteration)

    def _pairs(self, turns: TurnBatch) -> Preferences:
        config, wrong = self.config, invalid(turns)
        reward = self.transition_reward(turns)  # the search's own R, in which `penalise` is charged already
        if config.invalid_actions == "penalise_after":
            reward = reward - np.where(wrong, config.invalid_action_penalty, 0.0)
        rows = np.flatnonzero(turns.real & ~wrong) if config.invalid_actions == "exclude" else np.flatnonzero(turns.real)
        contenders = Contenders(
            group=codes(turns.group_id)[rows],
            value=reward[rows],
            length=np.ones(len(rows), np.int64),
            label=object_column([repr(name) for name in turns.traj_id[rows].tolist()]),
            content=codes(turns.extras["command"])[rows],
            won=np.zeros(len(rows), bool),
            may_win=usable(turns, chosen=True)[rows],
            may_lose=usable(turns, chosen=False)[rows],
        )
        return turn_preferences(turns, contenders, rows, "best_worst", config.min_gap, 1)
