"""KTO: single trajectories, each good or bad by itself."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from threespo_algorithms.generalized_advantage import trajectories
from threespo_algorithms.preference_credit import NEEDS, PreferenceConfig, preference_credit, refresh_is_due
from threespo_algorithms.preference_pairs import make_item, trajectory_success, usable
from threespo_bench.contracts.algorithm import Algorithm, Credit, Item, Preferences
from threespo_bench.contracts.objective import Preference
from threespo_bench.errors import UsageError
from threespo_bench.rollout.grouped import GroupedSampler
from threespo_bench.turns import TurnBatch


@dataclass
class KTOConfig(PreferenceConfig):
    """Options of KTO.

    Attributes:
        rollouts: per task; they are not compared with one another.
    """

    objective: Preference = field(default_factory=lambda: Preference(loss="kto"))  # type: ignore[assignment]
    rollouts: int = 1
    tasks_per_iteration: int = 64

    def validate(self) -> None:
        super().validate()
        if self.rollouts < 1:
            raise UsageError(f"algorithm.rollouts={self.rollouts} is out of range: must be >= 1")
        if self.objective.loss != "kto":
            message = f"algorithm.objective.loss={self.objective.loss} compares pairs, but kto has single trajectories"
            raise UsageError(message, fix="set algorithm.objective.loss=kto, or choose dpo or ipo")


class KTO(Algorithm):
    """Kahneman-Tversky Optimization, online."""

    Config = KTOConfig
    title = "Kahneman-Tversky Optimization"
    source = "arXiv:2402.01306"
    notes = (
        "w_D (1 - sigmoid(beta (r - z0))) for trajectories that succeeded, w_U (1 - sigmoid(beta (z0 - r))) for the others, r the log-ratio of a trajectory "
        "to the reference and z0 = max(0, mean r), over what is learned from in one step, as a constant. No pairs are needed. A turn with an invalid action "
        "is never learned from as part of a success."
    )
    needs = NEEDS
    requires = ("success",)

    def __init__(self, config: KTOConfig) -> None:
        super().__init__(config)
        self.sampler = GroupedSampler(config.rollouts)

    def credit(self, turns: TurnBatch) -> Credit:
        """Each trajectory as desirable or undesirable, and the slope of its loss on its tokens, with z0 over the batch."""
        turns.require(self.requires, "kto")
        return preference_credit(turns, labelled_trajectories(turns), self.config.objective)

    def refreshes_reference(self, iteration: int) -> bool:
        return refresh_is_due(self.config.reference_update_iterations, iteration)


def labelled_trajectories(turns: TurnBatch) -> Preferences:
    """The successful trajectories and the others, as independent lists in the order of their ids. Those without any response are in neither."""
    segments = trajectories(turns)
    sides: tuple[list[Item], list[Item]] = ([], [])
    success = trajectory_success(turns, segments)
    learnable = {good: usable(turns, chosen=good) for good in (True, False)}
    names = [repr(name) for name in turns.traj_id[segments.rows[segments.starts]].tolist()]
    for place in sorted(range(len(names)), key=names.__getitem__):
        rows = segments.rows[segments.starts[place] :][: segments.lengths[place]]
        good = bool(success[place])
        item = make_item(rows, np.ones(len(rows)), learnable[good])
        if len(item.rows):
            sides[not good].append(item)
    return Preferences(*sides, paired=False)
