"""The worth of whole trajectories inside a group of rollouts of one task: scores, baselines, and the term that GRPO is and that GiGPO adds to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from threespo_algorithms.group_statistics import GroupStatistics, first_turns, group_statistics, invalid, normalise, trajectory_sum
from threespo_bench.contracts.algorithm import AlgorithmConfig
from threespo_bench.errors import UsageError
from threespo_bench.turns import TurnBatch

PENALTY_MODES = ("row_local", "trajectory_sum", "none")
PENALTY_STAGES = ("before_norm", "after_norm")
STATISTICS_UNITS = ("row", "trajectory")
SINGLETONS = ("raw", "zero")


@dataclass
class GroupBaselineConfig(AlgorithmConfig):
    """Options of algorithms whose baseline comes from the rollouts of one task.

    Attributes:
        group_size: rollouts per task, at least 2.
        statistics_unit: ``row`` takes the group's statistics over turns (verl-agent: long trajectories weigh more), ``trajectory`` over trajectories.
        singleton: value of a trajectory that is alone in its group: ``zero``, or its ``raw`` score as in verl.
        invalid_action_penalty: what an invalid action costs; 0 switches it off.
        penalty_mode: ``row_local`` charges the turn itself (verl-agent), ``trajectory_sum`` charges the trajectory's return, ``none`` nothing.
        penalty_stage: ``before_norm`` (verl-agent) or ``after_norm``: in a group of otherwise equal returns, division by the deviation of the
            penalties alone would turn 0.1 into 1 or 2.5.
    """

    group_size: int = 8
    statistics_unit: str = "trajectory"
    singleton: str = "zero"
    invalid_action_penalty: float = 0.1
    penalty_mode: str = "row_local"
    penalty_stage: str = "after_norm"

    def validate(self) -> None:
        super().validate()
        if self.group_size < 2:
            raise UsageError(
                f"algorithm.group_size={self.group_size} is out of range: a group baseline compares at least 2 rollouts of a task",
                fix="set algorithm.group_size=8, or choose an algorithm without a group baseline",
            )
        if self.invalid_action_penalty < 0:
            raise UsageError(f"algorithm.invalid_action_penalty={self.invalid_action_penalty} is out of range: must be >= 0")
        require_choice("algorithm.penalty_mode", self.penalty_mode, PENALTY_MODES)
        require_choice("algorithm.penalty_stage", self.penalty_stage, PENALTY_STAGES)
        require_choice("algorithm.statistics_unit", self.statistics_unit, STATISTICS_UNITS)
        require_choice("algorithm.singleton", self.singleton, SINGLETONS)


@dataclass
class GroupedConfig(GroupBaselineConfig):
    """Options of algorithms that compare the rollouts of one task in units of their deviation.

    Attributes:
        normalise_by_std: divide by the group's standard deviation; false gives Dr.GRPO's advantage (arXiv:2503.20783).
        epsilon: added to the standard deviation.
    """

    normalise_by_std: bool = True
    epsilon: float = 1e-6

    def validate(self) -> None:
        super().validate()
        if not self.epsilon > 0:
            raise UsageError(f"algorithm.epsilon={self.epsilon} is out of range: must be > 0")


def require_choice(key: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raises UsageError unless ``value`` is one of ``allowed``."""
    if value not in allowed:
        raise UsageError(f"{key}={value} is not known: must be one of {', '.join(allowed)}")


def penalties(turns: TurnBatch, config: GroupBaselineConfig) -> np.ndarray:
    """(N,) what each turn is charged for its own invalid action."""
    return np.where(invalid(turns), config.invalid_action_penalty, 0.0) if config.penalty_mode != "none" else np.zeros(len(turns))


def late_penalties(turns: TurnBatch, config: GroupBaselineConfig) -> np.ndarray:
    """(N,) what is taken from each turn's finished advantage, because its score was not charged."""
    late = config.penalty_stage == "after_norm" and config.penalty_mode == "row_local"
    return penalties(turns, config) if late else np.zeros(len(turns))


@dataclass(frozen=True)
class EpisodeScores:
    """Returns of whole trajectories, less the penalties that are charged before a baseline is taken.

    Attributes:
        own: (N,) the score of each turn; turns of one trajectory differ where a penalty is local.
        compared: (N,) what stands for the turn in the group's statistics: its own score, or that of its trajectory's first turn.
        members: (N,) bool, the rows that enter the statistics.
        group: (N,) integer codes of the groups.
    """

    own: np.ndarray
    compared: np.ndarray
    members: np.ndarray
    group: np.ndarray

    def statistics(self) -> GroupStatistics:
        """Moments of each group."""
        return group_statistics(self.compared, self.group, self.members)


def episode_scores(turns: TurnBatch, config: GroupBaselineConfig) -> EpisodeScores:
    """The scores of the turns, and how they are compared."""
    score = turns.episode_return()
    charged = config.penalty_mode != "trajectory_sum" and config.penalty_stage == "before_norm"
    if config.penalty_mode == "trajectory_sum":
        score = score - trajectory_sum(penalties(turns, config), turns)
    elif charged:
        score = score - penalties(turns, config)
    group = turns.codes("group_id")
    if config.statistics_unit == "row":
        return EpisodeScores(score, score, turns.real, group)
    first = first_turns(turns)
    return EpisodeScores(score, _of_trajectory(score, turns, first) if charged else score, first, group)


def episode_term(turns: TurnBatch, config: GroupedConfig) -> tuple[np.ndarray, dict[str, float]]:
    """(N,) the trajectory-level advantage of each turn (arXiv:2402.03300, outcome supervision), and diagnostics.

    The score of a turn is the return of its trajectory, less the penalty where that is charged before normalisation.
    """
    scores = episode_scores(turns, config)
    statistics = scores.statistics()
    advantage = normalise(scores.own, statistics, by_std=config.normalise_by_std, singleton=config.singleton, epsilon=config.epsilon)
    return advantage, statistics.shares("group", scores.members)


def pass_at_k_term(turns: TurnBatch, config: GroupedConfig) -> tuple[np.ndarray, dict[str, float]]:
    """(N,) the pass@k advantage of each turn (arXiv:2503.19595), and diagnostics.

    ``A = (r_first - r_second) / (std + eps)`` on all turns of the group's best trajectory and 0 on all others; 0 where the best two are equal
    and in a group of one. Trajectories are compared and not turns: the two best turns are mostly turns of one trajectory.
    """
    scores = episode_scores(turns, config)
    statistics = scores.statistics()
    rows = np.flatnonzero(scores.members)  # one row a trajectory
    rows = rows[np.lexsort((-scores.compared[rows], scores.group[rows]))]  # group by group, the best first
    place = np.flatnonzero(np.r_[True, scores.group[rows][1:] != scores.group[rows][:-1]]) if len(rows) else rows
    place = place[np.diff(np.r_[place, len(rows)]) >= 2]
    best, second = rows[place], rows[place + 1]
    groups = int(scores.group.max(initial=-1)) + 1
    lead, winner = np.zeros(groups), np.full(groups, -1)
    trajectory = turns.codes("traj_id")
    lead[scores.group[best]] = scores.compared[best] - scores.compared[second]
    winner[scores.group[best]] = trajectory[best]
    won = (trajectory == winner[scores.group]) & ~statistics.constant
    scale = statistics.std + config.epsilon if config.normalise_by_std else np.ones(len(turns))
    return np.where(won, lead[scores.group] / scale, 0.0), statistics.shares("group", scores.members)


def above_baseline(scores: EpisodeScores, difference: np.ndarray, statistics: GroupStatistics, singleton: str) -> np.ndarray:
    """(N,) the own score of each turn less a baseline of its group.

    Args:
        difference: (N,) ``scores.compared`` less the baseline; taken as exactly 0 in a group of equal scores.
        statistics: of the scores. singleton: what a group of one gets, its ``raw`` score or ``zero``.
    """
    relative = np.where(statistics.constant, 0.0, difference) + (scores.own - scores.compared)
    return np.where(statistics.single, scores.own if singleton == "raw" else 0.0, relative)


def _of_trajectory(score: np.ndarray, turns: TurnBatch, first: np.ndarray) -> np.ndarray:
    """(N,) the score of the trajectory's first turn, which stands for the trajectory in statistics over trajectories."""
    index = turns.codes("traj_id")
    of_trajectory = np.zeros(int(index.max(initial=-1)) + 1)
    of_trajectory[index[first]] = score[first]
    return of_trajectory[index]
