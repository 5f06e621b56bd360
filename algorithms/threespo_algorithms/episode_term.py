"""The advantage of whole trajectories inside a group of rollouts of one task: the term that GRPO is and that GiGPO adds to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from threespo_algorithms.group_statistics import first_turns, group_statistics, invalid, normalise, trajectory_sum
from threespo_bench.contracts.algorithm import AlgorithmConfig
from threespo_bench.errors import UsageError
from threespo_bench.turns import TurnBatch, codes

PENALTY_MODES = ("row_local", "trajectory_sum", "none")
PENALTY_STAGES = ("before_norm", "after_norm")
STATISTICS_UNITS = ("row", "trajectory")
SINGLETONS = ("raw", "zero")


@dataclass
class GroupedConfig(AlgorithmConfig):
    """Options of algorithms that compare the rollouts of one task.

    Attributes:
        group_size: rollouts per task, at least 2.
        normalise_by_std: divide by the group's standard deviation; false gives Dr.GRPO's advantage (arXiv:2503.20783).
        statistics_unit: ``row`` takes mean and deviation over turns (verl-agent: long trajectories weigh more), ``trajectory`` over trajectories.
        singleton: value of a trajectory that is alone in its group: ``zero``, or its ``raw`` score as in verl.
        invalid_action_penalty: what an invalid action costs; 0 switches it off.
        penalty_mode: ``row_local`` charges the turn itself (verl-agent), ``trajectory_sum`` charges the trajectory's return, ``none`` nothing.
        penalty_stage: ``before_norm`` (verl-agent) or ``after_norm``: in a group of otherwise equal returns, division by the deviation of the
            penalties alone would turn 0.1 into 1 or 2.5.
        epsilon: added to the standard deviation.
    """

    group_size: int = 8
    normalise_by_std: bool = True
    statistics_unit: str = "trajectory"
    singleton: str = "zero"
    invalid_action_penalty: float = 0.1
    penalty_mode: str = "row_local"
    penalty_stage: str = "after_norm"
    epsilon: float = 1e-6

    def validate(self) -> None:
        super().validate()
        if self.group_size < 2:
            raise UsageError(
                f"algorithm.group_size={self.group_size} is out of range: a group baseline compares at least 2 rollouts of a task",
                fix="set algorithm.group_size=8, or choose an algorithm without a group baseline",
            )
        if self.invalid_action_penalty < 0:
            raise UsageError(f"algorithm.invalid_action_penalty={self.invalid_action_penalty} is out of range: must be >= 0")
        if not self.epsilon > 0:
            raise UsageError(f"algorithm.epsilon={self.epsilon} is out of range: must be > 0")
        require_choice("algorithm.penalty_mode", self.penalty_mode, PENALTY_MODES)
        require_choice("algorithm.penalty_stage", self.penalty_stage, PENALTY_STAGES)
        require_choice("algorithm.statistics_unit", self.statistics_unit, STATISTICS_UNITS)
        require_choice("algorithm.singleton", self.singleton, SINGLETONS)


def require_choice(key: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raises UsageError unless ``value`` is one of ``allowed``."""
    if value not in allowed:
        raise UsageError(f"{key}={value} is not known: must be one of {', '.join(allowed)}")


def penalties(turns: TurnBatch, config: GroupedConfig) -> np.ndarray:
    """(N,) what each turn is charged for its own invalid action."""
    return np.where(invalid(turns), config.invalid_action_penalty, 0.0) if config.penalty_mode != "none" else np.zeros(len(turns))


def episode_term(turns: TurnBatch, config: GroupedConfig) -> tuple[np.ndarray, dict[str, float]]:
    """(N,) the trajectory-level advantage of each turn (arXiv:2402.03300, outcome supervision), and diagnostics.

    The score of a turn is the return of its trajectory, less the penalty where that is charged before normalisation.
    """
    penalty = penalties(turns, config)
    score = turns.episode_return()
    if config.penalty_mode == "trajectory_sum":
        score = score - trajectory_sum(penalty, turns)
    elif config.penalty_stage == "before_norm":
        score = score - penalty
    members = first_turns(turns) if config.statistics_unit == "trajectory" else turns.real
    statistics = group_statistics(score if config.statistics_unit == "row" else _of_trajectory(score, turns), codes(turns.group_id), members)
    advantage = normalise(score, statistics, by_std=config.normalise_by_std, singleton=config.singleton, epsilon=config.epsilon)
    return advantage, statistics.shares("group", members)


def _of_trajectory(score: np.ndarray, turns: TurnBatch) -> np.ndarray:
    """(N,) the score of the trajectory's first turn, which stands for the trajectory in statistics over trajectories."""
    index, first = codes(turns.traj_id), first_turns(turns)
    of_trajectory = np.zeros(int(index.max(initial=-1)) + 1)
    of_trajectory[index[first]] = score[first]
    return of_trajectory[index]
