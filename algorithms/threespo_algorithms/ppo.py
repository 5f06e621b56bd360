"""PPO with a critic: generalised advantages over the tokens of a trajectory, over its turns, or inside each row by itself."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from threespo_algorithms.episode_term import PENALTY_STAGES, require_choice
from threespo_algorithms.generalized_advantage import (
    end_values,
    single_rows,
    token_advantage,
    trajectories,
    turn_advantage,
    turn_values,
    value_diagnostics,
    whiten,
)
from threespo_algorithms.group_statistics import invalid, over_tokens
from threespo_bench.contracts.algorithm import Algorithm, AlgorithmConfig, Credit
from threespo_bench.contracts.objective import Critic
from threespo_bench.errors import DataError, UsageError
from threespo_bench.rollout.grouped import GroupedSampler
from threespo_bench.turns import TurnBatch


@dataclass
class PPOConfig(AlgorithmConfig):
    """Options of PPO.

    Attributes:
        critic: how the value function is trained.
        gamma: discount of a time step. lam: weight of later temporal differences; 1 takes the whole return, 0 one step.
        whiten: advantages are centred and divided by their deviation over the batch.
        invalid_action_penalty: what an invalid action costs the turn itself; 0 switches it off.
        penalty_stage: ``before_norm`` (verl-agent) or ``after_norm``: charged before or after the whitening.
    """

    critic: Critic = field(default_factory=Critic)
    gamma: float = 1.0
    lam: float = 1.0
    whiten: bool = True
    invalid_action_penalty: float = 0.1
    penalty_stage: str = "after_norm"
    tasks_per_iteration: int = 64

    def validate(self) -> None:
        super().validate()
        self.critic.validate()
        for name in ("gamma", "lam"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"algorithm.{name}={getattr(self, name)} is out of range: must be in [0, 1]")
        if self.invalid_action_penalty < 0:
            raise UsageError(f"algorithm.invalid_action_penalty={self.invalid_action_penalty} is out of range: must be >= 0")
        require_choice("algorithm.penalty_stage", self.penalty_stage, PENALTY_STAGES)


@dataclass
class Estimate:
    """Advantages before whitening.

    Attributes:
        value, advantage, returns: (N, T) or (N,), the values being those the advantages were made with. members: bool of the same shape, the time steps.
    """

    value: np.ndarray
    advantage: np.ndarray
    returns: np.ndarray
    members: np.ndarray


class CriticPPO(Algorithm):
    """What the variants share: one rollout a task, whitening over the time steps of the batch, the penalty of invalid actions."""

    Config = PPOConfig
    needs = frozenset({"critic"})
    requires = ("values",)
    name: ClassVar[str]

    def __init__(self, config: PPOConfig) -> None:
        super().__init__(config)
        self.sampler = GroupedSampler(1)

    @abstractmethod
    def estimate(self, turns: TurnBatch, penalty: np.ndarray) -> Estimate:
        """Advantages and value targets before whitening, the turns charged with ``penalty`` (N,)."""

    def credit(self, turns: TurnBatch) -> Credit:
        """Whitened advantages of the tokens, and the targets of the critic."""
        turns.require(self.requires, self.name)
        config = self.config
        penalty = np.where(invalid(turns), config.invalid_action_penalty, 0.0)
        before, after = (np.where(config.penalty_stage == stage, penalty, 0.0) for stage in PENALTY_STAGES)
        found = self.estimate(turns, before)
        raw = found.advantage[found.members]
        advantage = np.zeros_like(found.advantage)
        advantage[found.members] = (whiten(raw) if config.whiten else raw) - _spread(after, found.members)[found.members]
        return Credit(
            advantage if advantage.ndim == 2 else over_tokens(advantage, turns),
            returns=found.returns,
            diagnostics=value_diagnostics(found.value[found.members], found.returns[found.members], raw),
        )


class PPO(CriticPPO):
    """PPO over the tokens of a trajectory."""

    name = "ppo"
    title = "Proximal Policy Optimization, a time step a token"
    source = "arXiv:1707.06347; generalised advantages: arXiv:1506.02438; masked tokens as in verl"
    notes = (
        "delta_t = r_t + gamma V_{t+1} - V_t, A_t = delta_t + gamma lam A_{t+1} over all policy tokens of the trajectory, turn after turn; the reward of a "
        "turn is on its last token, V is 0 after the end of the task and the critic's where the step limit cut the episode; returns A + V; A is whitened over "
        "the tokens."
    )

    def estimate(self, turns: TurnBatch, penalty: np.ndarray) -> Estimate:
        """GAE over the tokens of whole trajectories; the penalty is local: neither discounted nor passed on to earlier turns."""
        _require_token_values(turns, self.name)
        ends = end_values(turns, self.name)
        advantage, returns = token_advantage(turns, trajectories(turns), turns.step_reward, ends, self.config.gamma, self.config.lam)
        members = _policy_tokens(turns)
        return Estimate(turns.values, advantage - _spread(penalty, members), returns, members)


class PPOTurn(CriticPPO):
    """PPO over the turns of a trajectory."""

    name = "ppo_turn"
    title = "Proximal Policy Optimization, a time step a turn"
    source = "arXiv:1707.06347; generalised advantages: arXiv:1506.02438"
    notes = (
        "delta_t = r_t + gamma V_{t+1} - V_t, A_t = delta_t + gamma lam A_{t+1} over the turns, V read at the last token of the turn's prompt, 0 after the "
        "end of the task and the critic's where the step limit cut the episode; A is whitened over the turns, then given to all tokens of the turn."
    )

    def estimate(self, turns: TurnBatch, penalty: np.ndarray) -> Estimate:
        """GAE over turns; the penalty is local: neither discounted nor passed on to earlier turns."""
        value = turn_values(turns)
        advantage = turn_advantage(turns, trajectories(turns), value, end_values(turns, self.name), self.config.gamma, self.config.lam)
        return Estimate(value, advantage - penalty, np.where(turns.real, advantage + value, 0.0), turns.real)


class PPORow(CriticPPO):
    """PPO as verl-agent runs it."""

    name = "ppo_row"
    title = "Proximal Policy Optimization, each turn a sequence of its own"
    source = "arXiv:1707.06347; layout of the reference code: verl-agent"
    notes = (
        "Each turn is an independent sequence with the return of the whole episode on its last token, so values of later turns are never used: with gamma = "
        "lam = 1 A_t = R_episode - penalty - V_t. Preset `reference` charges the penalty in the reward, as verl-agent does; `ppo` and `ppo_turn` carry values "
        "across turns."
    )

    def estimate(self, turns: TurnBatch, penalty: np.ndarray) -> Estimate:
        """GAE over the tokens of each row; the penalty is part of the row's reward."""
        _require_token_values(turns, self.name)
        reward = turns.episode_return() - penalty
        advantage, returns = token_advantage(turns, single_rows(turns), reward, np.zeros(len(turns)), self.config.gamma, self.config.lam)
        return Estimate(turns.values, advantage, returns, _policy_tokens(turns))


def _policy_tokens(turns: TurnBatch) -> np.ndarray:
    """(N, T) the time steps: tokens under the mask, padding rows left out."""
    return turns.response_mask & turns.real[:, None]


def _spread(per_turn: np.ndarray, members: np.ndarray) -> np.ndarray:
    """The turn's value on each of its time steps, in the shape of ``members``."""
    return np.where(members, per_turn if members.ndim == 1 else per_turn[:, None], 0.0)


def _require_token_values(turns: TurnBatch, reader: str) -> None:
    if turns.values.shape != turns.response_mask.shape:
        raise DataError(
            f"{reader} needs a value for each token, but the column values has shape {turns.values.shape}, expected {turns.response_mask.shape}",
            fix="ppo_turn does with one value a turn",
        )
