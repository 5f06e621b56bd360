"""ProGPO: actions are compared after identical histories; where there is no peer, the change of an estimated chance of success takes over."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from threespo_algorithms.episode_term import GroupedConfig, episode_term, penalties, require_choice
from threespo_algorithms.group_statistics import discounted_returns, group_statistics, normalise, over_tokens
from threespo_algorithms.observation_history import TimeOrder, recent_history_keys, time_order, whole_history_keys
from threespo_algorithms.similarity import similar_vectors
from threespo_bench.contracts.algorithm import Algorithm, Credit
from threespo_bench.contracts.objective import require
from threespo_bench.rollout.grouped import GroupedSampler
from threespo_bench.turns import TurnBatch, codes, group_codes

_SINGLE_VARIANCE = 0.25
"""Variance of the outcome of one trajectory: the greatest that a success rate can have."""


@dataclass
class ProGPOConfig(GroupedConfig):
    """Options of ProGPO.

    Attributes:
        normalise_by_std: divide the episode and the peer term by the deviation of their groups; false leaves all three terms in units of reward.
        gamma: discount of the returns that peers are compared by.
        prefix_with_actions: peers have the same actions behind them too, not only the same observations.
        history_length: K; the potential pools over the last 1 to K + 1 observations.
        variance_floor: least variance of the outcomes of a cluster, before it is divided by their number.
        potential_gamma: discount of the potential of the next state.
        peer_weight, transition_weight: weights of the two step terms.
        transition_scale: what a change of the chance of success from 0 to 1 is worth: the reward of a success.
        transition_with_peers: factor on the transition term of turns that have peers; 0 uses it only where there are none.
        leave_one_out: a trajectory's own outcome does not enter the potential of its states.
        expansion: states are pooled if they are ``exact``ly equal, or if the ``embedding``s of their observations are similar (engine capability
            ``embeddings``).
        expansion_threshold: least cosine, in (0, 1], at which they are.
    """

    normalise_by_std: bool = False
    gamma: float = 0.95
    prefix_with_actions: bool = False
    history_length: int = 2
    variance_floor: float = 0.05
    potential_gamma: float = 1.0
    peer_weight: float = 1.0
    transition_weight: float = 1.0
    transition_scale: float = 10.0
    transition_with_peers: float = 0.0
    leave_one_out: bool = False
    expansion: str = "exact"
    expansion_threshold: float = 0.95

    def validate(self) -> None:
        super().validate()
        require_choice("algorithm.expansion", self.expansion, ("exact", "embedding"))
        for name in ("gamma", "potential_gamma", "transition_with_peers"):
            require(0 <= getattr(self, name) <= 1, f"algorithm.{name}", getattr(self, name), "in [0, 1]")
        for name in ("history_length", "peer_weight", "transition_weight", "transition_scale"):
            require(getattr(self, name) >= 0, f"algorithm.{name}", getattr(self, name), ">= 0")
        require(self.variance_floor > 0, "algorithm.variance_floor", self.variance_floor, "> 0")
        require(0 < self.expansion_threshold <= 1, "algorithm.expansion_threshold", self.expansion_threshold, "in (0, 1]")


class ProGPO(Algorithm):
    """Progress- and Reliability-Oriented Group Policy Optimization."""

    Config = ProGPOConfig
    title = "Progress- and Reliability-Oriented Group Policy Optimization"
    source = "arXiv:2607.04242; only its abstract was available"
    notes = (
        "A reconstruction from the abstract: the formulas and constants are ours. A = A_episode + w_p P + w_f c F: P compares the "
        "return-to-go of turns with identical history; where a turn has no such peer, F = gamma Phi(s') - Phi(s), the change of the potential. Phi pools the "
        "success rates of trajectories with the same last k observations over k, weighted by inverse variance; at the end of a trajectory it is the outcome."
    )
    requires: tuple[str, ...] = ("anchor_obs", "success")

    def __init__(self, config: ProGPOConfig) -> None:
        super().__init__(config)
        self.sampler = GroupedSampler(config.group_size)
        if config.expansion == "embedding":
            self.needs = frozenset({"embeddings"})
            self.requires = (*self.requires, "embedding")
        if config.prefix_with_actions:
            self.requires = (*self.requires, "command")

    def credit(self, turns: TurnBatch) -> Credit:
        """Episode term plus peer term plus transition term, on every token of the turn."""
        turns.require(self.requires, "progpo")
        config, order = self.config, time_order(turns)
        penalty = penalties(turns, config)
        episode, diagnostics = episode_term(turns, config)
        peer, has_peers, shares = self.peer_term(turns, order)
        outcome = trajectory_success(turns)
        potential = self.potential(turns, order, outcome)
        transition = self.transition_term(potential, order, outcome)
        # A = A_E + w_p P + w_f c F (1 without peers, else eta)
        factor = np.where(has_peers, config.transition_with_peers, 1.0)
        advantage = episode + config.peer_weight * peer + config.transition_weight * config.transition_scale * factor * transition
        if config.penalty_stage == "after_norm" and config.penalty_mode == "row_local":
            advantage = advantage - penalty
        count = max(int(turns.real.sum()), 1)
        diagnostics |= shares | {
            "progpo/potential_mean": float(potential[turns.real].sum() / count),
            "progpo/transition_size": float(np.abs(transition[turns.real]).sum() / count),
        }
        return Credit(over_tokens(advantage, turns), diagnostics=diagnostics)

    def peer_term(self, turns: TurnBatch, order: TimeOrder) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
        """(N,) P, the return-to-go relative to the turns of the group with identical history, 0 without any; (N,) bool, has peers; diagnostics."""
        config = self.config
        returns = discounted_returns(turns, config.gamma)
        if config.penalty_stage == "before_norm":
            returns = returns - penalties(turns, config)  # local: neither discounted nor passed on to earlier turns
        action = codes(turns.extras["command"]) if config.prefix_with_actions else None
        history = whole_history_keys(order, group_codes(turns.group_id, turns.anchor_obs), action)
        statistics = group_statistics(returns, history, turns.real)
        peer = normalise(returns, statistics, by_std=config.normalise_by_std, epsilon=config.epsilon)
        return peer, turns.real & ~statistics.single, statistics.shares("peer_group", turns.real)

    def potential(self, turns: TurnBatch, order: TimeOrder, outcome: np.ndarray) -> np.ndarray:
        """(N,) Phi(s) = sum(m_k / v_k) / sum(1 / v_k) over the depths of history k, of the states that the turns act in; 0 on padding.

        What no other trajectory saw (with ``leave_one_out``) has the success rate of the group's other trajectories; alone in its group a trajectory has
        its own outcome, so that F is 0.
        """
        config, real = self.config, turns.real
        if config.expansion == "embedding":
            states = similar_vectors(turns.group_id, turns.anchor_obs, turns.extras["embedding"], real, config.expansion_threshold)
        else:
            states = group_codes(turns.group_id, turns.anchor_obs)
        trajectory, floor = codes(turns.traj_id), config.variance_floor
        weighted, precision = np.zeros(len(turns)), np.zeros(len(turns))
        for key in recent_history_keys(order, states, config.history_length + 1):
            mean, inverse = success_rates(key, trajectory, outcome, floor, config.leave_one_out)
            weighted += inverse * mean
            precision += inverse
        potential = np.where(precision > 0, weighted / np.where(precision > 0, precision, 1.0), 0.0)
        unseen = real & (precision == 0)
        if unseen.any():
            others, inverse = success_rates(np.where(real, codes(turns.group_id), -1), trajectory, outcome, floor, config.leave_one_out)
            potential = np.where(unseen, np.where(inverse > 0, others, outcome), potential)
        return potential

    def transition_term(self, potential: np.ndarray, order: TimeOrder, outcome: np.ndarray) -> np.ndarray:
        """(N,) F_t = gamma Phi(s_{t+1}) - Phi(s_t), where Phi after the last turn is the outcome; 0 on padding."""
        here = potential[order.rows]
        following = np.where(order.last, outcome[order.rows], np.r_[here[1:], 0.0][: len(here)])
        transition = np.zeros(len(potential))
        transition[order.rows] = self.config.potential_gamma * following - here
        return transition


def trajectory_success(turns: TurnBatch) -> np.ndarray:
    """(N,) 1 if the trajectory of the row ended well, else 0; a cut trajectory did not."""
    index, won = codes(turns.traj_id), turns.success & turns.real
    return (np.bincount(index[won], minlength=int(index.max(initial=-1)) + 1)[index] > 0).astype(float)


def success_rates(key: np.ndarray, trajectory: np.ndarray, outcome: np.ndarray, floor: float, leave_one_out: bool) -> tuple[np.ndarray, np.ndarray]:
    """The success rate m among the trajectories that each row's cluster holds, and the inverse of its variance v.

    A trajectory counts once however often it passes. With n trajectories ``v = max(sample variance, floor) / n``, and 0.25 for n = 1.

    Args:
        key: (N,) codes of clusters, -1 for rows in none. trajectory: (N,) codes. outcome: (N,) 0 or 1, of the row's trajectory.
        floor: least sample variance. leave_one_out: the row's own trajectory is left out.

    Returns:
        (N,) m and (N,) 1 / v; both 0 where there is no trajectory to count.
    """
    rate, inverse = np.zeros(len(key)), np.zeros(len(key))
    inside = np.flatnonzero(key >= 0)
    cluster, won = key[inside], outcome[inside]
    first = np.unique(cluster * (int(trajectory.max(initial=0)) + 1) + trajectory[inside], return_index=True)[1]  # every trajectory once
    number = np.bincount(cluster[first])[cluster] if len(inside) else np.zeros(0)
    wins = np.bincount(cluster[first], weights=won[first])[cluster] if len(inside) else np.zeros(0)
    if leave_one_out:
        number, wins = number - 1, wins - won
    mean = wins / np.maximum(number, 1)
    sample = number * mean * (1 - mean) / np.maximum(number - 1, 1)  # variance of n outcomes of 0 and 1, ddof 1
    variance = np.where(number >= 2, np.maximum(sample, floor) / np.maximum(number, 1), _SINGLE_VARIANCE)
    rate[inside] = mean
    inverse[inside] = np.where(number >= 1, 1.0 / variance, 0.0)
    return rate, inverse
