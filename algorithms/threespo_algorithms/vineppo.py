"""VinePPO: PPO whose value of a state is the mean return of fresh continuations from it, not the guess of a critic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from threespo_algorithms.episode_term import require_choice
from threespo_algorithms.group_statistics import mean_over, over_tokens
from threespo_algorithms.observation_history import time_order
from threespo_algorithms.segments import whiten
from threespo_bench.contracts.algorithm import Credit
from threespo_bench.errors import UsageError
from threespo_bench.rollout.episode import PlayedTurn
from threespo_bench.rollout.monte_carlo import Cut, MonteCarloAlgorithm, MonteCarloConfig, MonteCarloSampler
from threespo_bench.turns import TurnBatch


@dataclass
class VinePPOConfig(MonteCarloConfig):
    """Options of VinePPO.

    Attributes:
        boundary_interval: turns in a step: a state is valued before every so many turns, and the turns of a step share its gain in value.
        max_boundaries: states valued in one episode, from its first; the steps after them get the advantage 0 (before whitening).
        whiten: advantages get mean 0 and variance 1 over ``token`` (as published) or over ``turn``; ``none`` leaves them as they are.
    """

    boundary_interval: int = 1
    max_boundaries: int = 25
    whiten: str = "token"

    def validate(self) -> None:
        super().validate()
        require_choice("algorithm.whiten", self.whiten, ("token", "turn", "none"))
        for name in ("boundary_interval", "max_boundaries"):
            if getattr(self, name) < 1:
                raise UsageError(f"algorithm.{name}={getattr(self, name)} is out of range: must be >= 1")


class VinePPO(MonteCarloAlgorithm):
    """VinePPO."""

    Config = VinePPOConfig
    title = "VinePPO"
    source = "arXiv:2410.01679"
    notes = (
        "V(s) = mean return of K continuations from s; A = sum of r + V(s') - V(s) of a step, without discount, on every token of its turns. The published "
        "steps are those of a solution; here they are turns, or boundary_interval turns together. A continuation that reaches the step limit counts with the "
        "return it has, 0 for a failure. Equal states (same task, same commands) are valued once. Continuations are charged to the budget: an iteration costs "
        "about episodes * K * turns^2 / (2 boundary_interval) environment steps."
    )
    needs = frozenset({"restore"})
    requires = ("values", "next_value")

    def __init__(self, config: VinePPOConfig) -> None:
        super().__init__(config)
        self.sampler = MonteCarloSampler(config.episodes_per_task, config.continuations)

    def cuts(self, turns: Sequence[PlayedTurn]) -> list[Cut]:
        """The states that the first ``max_boundaries`` steps begin in."""
        return [(turn, 0) for turn in range(0, len(turns), self.config.boundary_interval)[: self.config.max_boundaries]]

    def credit(self, turns: TurnBatch) -> Credit:
        """A = r + V(s') - V(s) of the step, whitened, on every token of its turns."""
        turns.require(self.requires, "vineppo")
        real = turns.real
        gain = self._gain(turns)
        diagnostics = {
            "value/mean": mean_over(turns.values, real),
            "advantage/mean": mean_over(gain, real),
            "advantage/std": float(gain[real].std()) if real.any() else 0.0,
            "advantage/zero_share": mean_over(gain == 0, real),
        }
        return Credit(self._whitened(gain, turns), diagnostics=diagnostics)

    def diagnostics(self) -> dict[str, float]:
        """The continuations of the last iteration."""
        return self.sampler.diagnostics()

    def _gain(self, turns: TurnBatch) -> np.ndarray:
        """(N,) r + V(s') - V(s) of the step that each turn is in.

        A state inside a step has no estimate of its own, so its value is what follows in the episode until the next estimate: r + V(s') - V(s) of
        the first turn of a step is then that of the whole step.
        """
        gain = np.where(turns.real, turns.step_reward + turns.extras["next_value"] - turns.values, 0.0)
        order = time_order(turns)
        first = np.arange(len(order.rows)) - order.place % self.config.boundary_interval
        gain[order.rows] = gain[order.rows[first]]
        return gain

    def _whitened(self, gain: np.ndarray, turns: TurnBatch) -> np.ndarray:
        if self.config.whiten == "token":
            return whiten(over_tokens(gain, turns), turns.response_mask & turns.real[:, None])
        return over_tokens(whiten(gain, turns.real) if self.config.whiten == "turn" else gain, turns)
