"""3SPO-PPO: the search and the transition reward of 3SPO, with a critic in place of the comparison of siblings."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from threespo_algorithms.generalized_advantage import turn_values, value_diagnostics
from threespo_algorithms.group_statistics import group_statistics, invalid, normalise, over_tokens
from threespo_algorithms.threespo import ThreeSPO, ThreeSPOConfig
from threespo_bench.contracts.algorithm import Credit
from threespo_bench.contracts.objective import Critic
from threespo_bench.errors import UsageError
from threespo_bench.turns import TurnBatch


@dataclass
class ThreeSPOPPOConfig(ThreeSPOConfig):
    """Options of 3SPO-PPO: those of 3SPO, of which the divisor (``normalise_by_std``, ``minimum_std``, ``epsilon``) is taken over the wave.

    Attributes:
        critic: how the value function is trained.
        gamma: discount of a turn.
    """

    critic: Critic = field(default_factory=Critic)
    gamma: float = 0.95

    def validate(self) -> None:
        super().validate()
        self.critic.validate()
        if not 0 <= self.gamma <= 1:
            raise UsageError(f"algorithm.gamma={self.gamma} is out of range: must be in [0, 1]")


class ThreeSPOPPO(ThreeSPO):
    """State-Score-Supervised Policy Optimization with a critic."""

    Config = ThreeSPOPPOConfig
    title = "State-Score-Supervised Policy Optimization with a critic"
    source = "the method: arXiv:2606.09961; generalised advantages: arXiv:1506.02438"
    notes = (
        "A = R(s, s') + gamma V(s') - V(s), with 3SPO's R as the reward of a turn and V(s') = 0 after the end of the task; whitened over the wave. n(s), the "
        "search and the state history are 3SPO's. The published repository names this variant and has no code of it, so it is a reconstruction. Our choices: "
        "lam = 0, since the turns after a wave do not exist yet when the wave is learned from; a child without siblings is learned from, since the critic is "
        "the baseline."
    )
    needs = ThreeSPO.needs | {"critic"}
    requires: tuple[str, ...] = (*ThreeSPO.requires, "terminated", "values", "next_value")

    def credit(self, turns: TurnBatch) -> Credit:
        """One-step advantages of the wave, and the targets R + gamma V(s') of the critic."""
        turns.require(self.requires, "threespo_ppo")
        config = self.config
        members = turns.real & ~invalid(turns) if config.invalid_actions == "exclude" else turns.real
        value = turn_values(turns)
        target = self.transition_reward(turns) + config.gamma * np.where(turns.terminated, 0.0, turns.extras["next_value"])  # R + gamma V(s')
        raw = target - value
        wave = group_statistics(raw, np.zeros(len(turns), np.int64), members)
        whitened = normalise(raw, wave, by_std=config.normalise_by_std, epsilon=config.epsilon, minimum_std=config.minimum_std)
        advantage = np.where(wave.single, raw, whitened)
        if config.invalid_actions == "penalise_after":
            advantage = advantage - np.where(invalid(turns), config.invalid_action_penalty, 0.0)
        compared = super().credit(turns)  # its diagnostics and its scale hold here, too
        return replace(
            compared,
            advantages=over_tokens(np.where(members, advantage, 0.0), turns),
            selected=members,
            returns=np.where(turns.real, target, 0.0),
            diagnostics=compared.diagnostics | value_diagnostics(value[members], target[members], raw[members]),
        )
