"""REINFORCE++: discounted returns of single tokens, whitened over the whole batch; no group and no critic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from threespo_algorithms.episode_term import PENALTY_STAGES, require_choice
from threespo_algorithms.group_statistics import EQUAL_VALUES, invalid
from threespo_bench.contracts.algorithm import Algorithm, AlgorithmConfig, Credit
from threespo_bench.contracts.objective import require
from threespo_bench.rollout.grouped import GroupedSampler
from threespo_bench.turns import TurnBatch, codes

SEQUENCES = ("trajectory", "turn")


@dataclass
class ReinforcePPConfig(AlgorithmConfig):
    """Options of REINFORCE++.

    Attributes:
        rollouts: episodes per task.
        gamma: discount from one response token to the next.
        sequence: what a return runs over: all response tokens of a ``trajectory``, with each turn's reward on its last token; or those of one
            ``turn``, with the return of the whole episode on its last token (the layout of verl-agent).
        kl_in_reward_coef: weight of the penalty log(pi_old / pi_ref) in each token's reward; above 0 it needs a reference policy.
        invalid_action_penalty: what an invalid action costs; 0 switches it off.
        penalty_stage: ``before_norm`` takes it from the reward of the turn's last token (verl-agent), ``after_norm`` from the turn's advantage.
    """

    rollouts: int = 1
    gamma: float = 1.0
    sequence: str = "trajectory"
    kl_in_reward_coef: float = 0.0
    invalid_action_penalty: float = 0.1
    penalty_stage: str = "after_norm"

    def validate(self) -> None:
        super().validate()
        require(self.rollouts >= 1, "algorithm.rollouts", self.rollouts, ">= 1")
        require(0 <= self.gamma <= 1, "algorithm.gamma", self.gamma, "in [0, 1]")
        require(self.kl_in_reward_coef >= 0, "algorithm.kl_in_reward_coef", self.kl_in_reward_coef, ">= 0")
        require(self.invalid_action_penalty >= 0, "algorithm.invalid_action_penalty", self.invalid_action_penalty, ">= 0")
        require_choice("algorithm.sequence", self.sequence, SEQUENCES)
        require_choice("algorithm.penalty_stage", self.penalty_stage, PENALTY_STAGES)


class ReinforcePP(Algorithm):
    """REINFORCE++."""

    Config = ReinforcePPConfig
    title = "REINFORCE++"
    source = "arXiv:2501.03262; code: verl"
    notes = (
        "G_t = r_t + gamma * G_{t+1} over response tokens, r_t = reward - beta * log(pi_old / pi_ref); A = (G - mean) / sqrt(var + 1e-8) over all "
        "response tokens of the batch. Tokens that the policy did not generate are passed over. "
        "Preset `kl_in_reward` has the KL penalty in the reward instead of the loss, as published; `reference` treats turns as verl-agent does."
    )

    def __init__(self, config: ReinforcePPConfig) -> None:
        super().__init__(config)
        self.sampler = GroupedSampler(config.rollouts)
        if config.kl_in_reward_coef > 0:
            self.needs = frozenset({"reference"})
            self.requires = ("old_log_probs", "ref_log_probs")

    def credit(self, turns: TurnBatch) -> Credit:
        """Whitened discounted return of each response token."""
        turns.require(self.requires, "reinforce_pp")
        config, real = self.config, turns.real
        mask = turns.response_mask[real]
        penalty = np.where(invalid(turns), config.invalid_action_penalty, 0.0)[real]
        sequence = codes(turns.traj_id)[real] if config.sequence == "trajectory" else np.flatnonzero(real)
        rewards = self._token_rewards(turns, penalty if config.penalty_stage == "before_norm" else np.zeros_like(penalty))
        returns = discounted_token_returns(rewards, mask, config.gamma, sequence, turns.step_id[real])
        advantage = whiten(returns, mask)
        if config.penalty_stage == "after_norm":
            advantage = np.where(mask, advantage - penalty[:, None], 0.0)
        advantages = np.zeros(turns.response_mask.shape)
        advantages[real] = advantage
        return Credit(advantages, diagnostics=moments(returns, mask, "token_return"))

    def _token_rewards(self, turns: TurnBatch, penalty: np.ndarray) -> np.ndarray:
        """(R, T) rewards of the tokens of the R rows that are not padding."""
        config, real = self.config, turns.real
        reward = turns.step_reward if config.sequence == "trajectory" else turns.episode_return()
        rewards = at_last_token(reward[real] - penalty, turns.response_mask[real])
        if config.kl_in_reward_coef > 0:
            generated = turns.response_mask[real]
            log_ratio = turns.old_log_probs[real][generated] - turns.ref_log_probs[real][generated]
            rewards[generated] -= config.kl_in_reward_coef * log_ratio  # r_t - beta * log(pi_old / pi_ref)
        return rewards


def at_last_token(per_turn: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """(N, T) the turn's value on its last response token and 0 elsewhere; in the first place for a turn without any token.

    Args:
        per_turn: (N,) values. mask: (N, T) bool.
    """
    width = mask.shape[1]
    last = np.where(mask.any(axis=1), width - 1 - np.argmax(mask[:, ::-1], axis=1), 0)
    return np.where(np.arange(width) == last[:, None], per_turn[:, None], 0.0)


def discounted_token_returns(rewards: np.ndarray, mask: np.ndarray, gamma: float, sequence: np.ndarray, step: np.ndarray) -> np.ndarray:
    """(N, T) ``G_t = r_t + gamma * G_{t+1}`` along the response tokens of each sequence; 0 elsewhere.

    A row without any token counts as one token in the first place, so that its reward reaches the turns before it.

    Args:
        rewards: (N, T); entries under a false mask are not read, but for the first place of a row without any token.
        mask: (N, T) bool. gamma: discount from token to token.
        sequence: (N,) integer codes of the sequences. step: (N,) order of the rows in their sequence.
    """
    present = mask.copy()
    present[~mask.any(axis=1), 0] = True
    order = np.lexsort((step, sequence))
    place, column = np.nonzero(present[order])  # row by row: sequences one after another, each in the order of time
    row = order[place]
    owner, reward = sequence[row], rewards[row, column]
    ends = np.flatnonzero(np.r_[owner[1:] != owner[:-1], True]) if len(owner) else np.zeros(0, int)
    lengths = np.diff(np.r_[-1, ends])
    longest_first = np.argsort(-lengths, kind="stable")
    ends, lengths = ends[longest_first], lengths[longest_first]
    alive = np.searchsorted(-lengths, -np.arange(lengths.max(initial=0)))  # how many sequences have more than so many tokens
    values, running = np.zeros(len(reward)), np.zeros(len(ends))
    for back, count in enumerate(alive):  # the last token of every sequence, then the one before, ...
        at = ends[:count] - back
        running[:count] = reward[at] + gamma * running[:count]
        values[at] = running[:count]
    returns = np.zeros(mask.shape)
    returns[row, column] = values
    return np.where(mask, returns, 0.0)


def whiten(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """(N, T) ``(x - mean) / sqrt(var + 1e-8)`` over all entries under the mask, ``var`` unbiased; 0 elsewhere.

    One entry alone, and entries that differ only by rounding, give exactly 0.
    """
    inside = values[mask]
    whitened = np.zeros(values.shape)
    if len(inside) < 2:
        return whitened
    mean, variance = inside.mean(), inside.var(ddof=1)
    if np.sqrt(variance) > EQUAL_VALUES * max(1.0, abs(mean)):
        whitened[mask] = (inside - mean) / np.sqrt(variance + 1e-8)
    return whitened


def moments(values: np.ndarray, mask: np.ndarray, name: str) -> dict[str, float]:
    """Diagnostics: mean and unbiased standard deviation of the entries under the mask; 0 where there are too few."""
    inside = values[mask]
    return {f"{name}/mean": float(inside.mean()) if len(inside) else 0.0, f"{name}/std": float(inside.std(ddof=1)) if len(inside) > 1 else 0.0}
