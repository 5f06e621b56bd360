"""DPO on pairs from a file: nothing is played, the policy learns from experience that was made before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from threespo_algorithms.preference_credit import NEEDS, preference_credit, refresh_is_due
from threespo_algorithms.preference_pairs import TrajectoryPairsConfig, trajectory_preferences
from threespo_bench.contracts.algorithm import Algorithm, Credit, Item, Preferences
from threespo_bench.errors import UsageError
from threespo_bench.rollout.pair_file import PairFileSampler
from threespo_bench.turns import TurnBatch


@dataclass
class DPOOfflineConfig(TrajectoryPairsConfig):
    """Options of offline DPO. Those of rollouts (anchor, temperature, tasks_per_iteration) have no effect; the rules of pairs are for recorded turns.

    Attributes:
        pairs: the file. JSONL with one pair a line, ``{"prompt": ..., "chosen": text, "rejected": text}`` or
            ``{"chosen": [{"prompt": ..., "response": ...}, ...], "rejected": [...]}``; or recorded turns as Parquet, a file or a folder of such files.
        pairs_per_iteration: pairs that one iteration learns from.
    """

    pairs: str = ""
    pairs_per_iteration: int = 64
    reference_update_iterations: int = 0

    def validate(self) -> None:
        super().validate()
        if self.pairs_per_iteration < 1:
            raise UsageError(f"algorithm.pairs_per_iteration={self.pairs_per_iteration} is out of range: must be >= 1")


class DPOOffline(Algorithm):
    """Direct Preference Optimization from a file."""

    Config = DPOOfflineConfig
    title = "Direct Preference Optimization, offline"
    source = "arXiv:2305.18290"
    notes = (
        "The loss of `dpo` on the pairs of a file (algorithm.pairs), shuffled anew for every epoch; the environment is only for evaluation. "
        "Every turn fed to the policy is charged to the budget as an environment step and its response tokens as generated ones: experience that somebody else "
        "paid for. Recorded turns are paired by the rules of `dpo`. The reference is the starting policy."
    )
    needs = NEEDS
    requires = ("pair", "preferred")

    def __init__(self, config: DPOOfflineConfig) -> None:
        super().__init__(config)
        self.sampler: PairFileSampler = PairFileSampler(config.pairs, config.pairs_per_iteration, self._make_pairs)

    def credit(self, turns: TurnBatch) -> Credit:
        """The pairs that the sampler fed, and the slope of the loss at each on the tokens of both sides."""
        turns.require(self.requires, "dpo_offline")
        return preference_credit(turns, labelled_pairs(turns), self.config.objective)

    def refreshes_reference(self, iteration: int) -> bool:
        return refresh_is_due(self.config.reference_update_iterations, iteration)

    def warnings(self) -> list[str]:
        """What of the file was left out. Raises DataError or UsageError if there are no pairs to be had."""
        return self.sampler.warnings()

    def state_dict(self) -> dict[str, Any]:
        """What the file holds, so that a run is not continued on other pairs."""
        return {"pairs": self.sampler.digest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sampler.digest = str(state["pairs"])

    def _make_pairs(self, turns: TurnBatch) -> Preferences:
        if self.config.pairing == "all_mixed":
            turns.require(("success",), "algorithm.pairing=all_mixed")
        return trajectory_preferences(turns, self.config)


def labelled_pairs(turns: TurnBatch) -> Preferences:
    """The pairs that the columns ``pair`` (equal within a pair) and ``preferred`` tell. A pair without a response on either side is left out."""
    preferred = turns.extras["preferred"].astype(bool)
    rows = np.flatnonzero(turns.real & turns.response_mask.any(axis=1))
    rows = rows[np.lexsort((turns.step_id[rows], ~preferred[rows], turns.extras["pair"][rows]))]
    chosen, rejected = [], []
    for pair in np.split(rows, np.flatnonzero(np.diff(turns.extras["pair"][rows])) + 1):
        liked = preferred[pair]
        if liked.any() and not liked.all():
            chosen.append(Item(pair[liked], np.ones(liked.sum())))
            rejected.append(Item(pair[~liked], np.ones((~liked).sum())))
    return Preferences(chosen, rejected)
