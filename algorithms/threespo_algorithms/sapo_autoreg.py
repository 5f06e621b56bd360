"""SAPO: one causal language model acts and values; single rollouts, turn-level advantages from values read at two reserved tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from threespo_algorithms.generalized_advantage import Segments, cut, trajectories, turn_advantage, turn_values, value_diagnostics, whiten
from threespo_algorithms.group_statistics import invalid, over_tokens
from threespo_bench.contracts.algorithm import Algorithm, AlgorithmConfig, Credit
from threespo_bench.contracts.objective import ValueTokens
from threespo_bench.errors import UsageError
from threespo_bench.rollout.grouped import GroupedSampler
from threespo_bench.turns import TurnBatch


@dataclass
class SAPOAutoregConfig(AlgorithmConfig):
    """Options of SAPO.

    Attributes:
        gamma: discount of a turn. lam: weight of later temporal differences.
        invalid_action_penalty: what an invalid action costs the turn itself, before normalisation; 0 switches it off.
        normalise: advantages are centred and divided by their deviation over the turns of the batch.
    """

    objective: ValueTokens = field(default_factory=ValueTokens)
    gamma: float = 0.95
    lam: float = 0.95
    invalid_action_penalty: float = 0.1
    normalise: bool = True
    tasks_per_iteration: int = 64

    def validate(self) -> None:
        super().validate()
        for name in ("gamma", "lam"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"algorithm.{name}={getattr(self, name)} is out of range: must be in [0, 1]")
        if self.invalid_action_penalty < 0:
            raise UsageError(f"algorithm.invalid_action_penalty={self.invalid_action_penalty} is out of range: must be >= 0")


class SAPOAutoreg(Algorithm):
    """Single-rollout Autoregressive Policy Optimization."""

    Config = SAPOAutoregConfig
    title = "Single-rollout Autoregressive Policy Optimization"
    source = "arXiv:2608.19842"
    notes = (
        "V and Q are R_max clip((z+ - z-) / tau, -1, 1) before and after the response; A is the generalised advantage over turns with V at the time of the "
        "rollout, less a penalty for an invalid action, normalised over the turns of the batch and then given to their tokens; targets y_V = V + A (before "
        "the penalty) and y_Q = r + gamma Q of the next turn, or gamma V(s_T) where the episode was cut. No code is published: gamma, lam, R_max, tau, the "
        "weights and the clip of the value losses, the size of the penalty and the use of the population's deviation are a reconstruction."
    )
    needs = frozenset({"value_tokens"})

    def __init__(self, config: SAPOAutoregConfig) -> None:
        super().__init__(config)
        self.sampler = GroupedSampler(1)

    def credit(self, turns: TurnBatch) -> Credit:
        """Normalised turn advantages on every token of the turn, and the targets of both values.

        The values come from the logits of the reserved tokens. A batch recorded without them is credited by its columns ``values``,
        ``action_values`` and, where episodes were cut, ``next_value``.
        """
        config = self.config
        value, action_value, ends = self._values(turns)
        segments = trajectories(turns)
        advantage = turn_advantage(turns, segments, value, ends, config.gamma, config.lam)
        corrected = advantage - np.where(invalid(turns), config.invalid_action_penalty, 0.0)
        normalised = np.zeros(len(turns))
        normalised[turns.real] = whiten(corrected[turns.real], ddof=0) if config.normalise else corrected[turns.real]
        returns = np.where(turns.real, value + advantage, 0.0)  # y_V = V + A
        return Credit(
            over_tokens(normalised, turns),
            returns=returns,
            action_returns=action_targets(turns, segments, action_value, ends, config.gamma),
            diagnostics=value_diagnostics(value[turns.real], returns[turns.real], advantage[turns.real]),
        )

    def _values(self, turns: TurnBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(N,) V before the turns, (N,) Q after their responses, and (N,) V after the turns where the episode was cut, else 0."""
        where = cut(turns)
        from_logits = "value_logit" in turns.extras or turns.values is None
        names = ("value_logit", "action_value_logit", "next_value_logit") if from_logits else ("values", "action_values", "next_value")
        turns.require(names if where.any() else names[:2], "sapo_autoreg")
        before, after, following = (turn_values(turns) if name == "values" else turns.extras.get(name, np.zeros(len(turns))) for name in names)
        if from_logits:
            before, after, following = self._read(before), self._read(after), self._read(following)
        return before, after, np.where(where, following, 0.0)

    def _read(self, logit: np.ndarray) -> np.ndarray:
        """R_max clip((z+ - z-) / tau, -1, 1)."""
        objective = self.config.objective
        return objective.reward_max * np.clip(logit / objective.value_temperature, -1.0, 1.0)


def action_targets(turns: TurnBatch, segments: Segments, action_value: np.ndarray, end_value: np.ndarray, gamma: float) -> np.ndarray:
    """(N,) y_Q = r_t + gamma Q_{t+1} (SARSA); after the last turn of a trajectory ``end_value`` stands for Q_{t+1}. 0 on padding rows."""
    targets, rows = np.zeros(len(turns)), segments.rows
    following = np.r_[action_value[rows][1:], 0.0][: len(rows)]
    following[segments.starts + segments.lengths - 1] = end_value[segments.last_rows]
    targets[rows] = turns.step_reward[rows] + gamma * following
    return targets
