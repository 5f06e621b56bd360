"""Credit by Python loops over rows: what ``credit_speed.py`` compares the implementation with.

``loop_*`` are the plainest loops that take linear time: dictionaries of lists, NumPy for the mean and the deviation of a list.

``published_*`` have the form of the public reference code of GRPO and GiGPO for agents: scores are tensors of one element, and the rows of a task or a
trajectory are found by a scan of the whole batch. They are written anew, in float64, with the same rule for groups of equal values.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import Any

import numpy as np
import torch

from threespo_bench.turns import TurnBatch

GAMMA, EPSILON, PENALTY, DEPTH, THRESHOLD = 0.95, 1e-6, 0.1, 3, 0.95
EQUAL_VALUES = 1e-8


# ---- plain loops


def loop_moments(values: Sequence[float], groups: Sequence[Any], ddof: int = 1) -> dict[Any, tuple[int, float, float]]:
    """Count, mean and standard deviation of each group."""
    lists = defaultdict(list)
    for row in range(len(values)):
        lists[groups[row]].append(values[row])
    return {group: (len(found), np.mean(found), np.std(found, ddof=ddof) if len(found) > 1 else 0.0) for group, found in lists.items()}


def loop_relative(value: float, moments: tuple[int, float, float]) -> float:
    """(x - mean) / (std + eps), 0 in a group of one and in a group of equal values."""
    count, mean, std = moments
    return 0.0 if count < 2 or std <= EQUAL_VALUES * max(1.0, abs(mean)) else (value - mean) / (std + EPSILON)


def loop_group_statistics(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    moments = loop_moments(values, groups)
    out = np.zeros(len(values))
    for row in range(len(values)):
        out[row] = loop_relative(values[row], moments[groups[row]])
    return out


def loop_trajectories(turns: TurnBatch) -> dict[Any, list[int]]:
    """The rows of each trajectory in the order of time."""
    rows = defaultdict(list)
    for row in range(len(turns)):
        rows[turns.traj_id[row]].append(row)
    return {trajectory: sorted(found, key=lambda row: turns.step_id[row]) for trajectory, found in rows.items()}


def loop_discounted_returns(turns: TurnBatch) -> np.ndarray:
    returns = np.zeros(len(turns))
    for rows in loop_trajectories(turns).values():
        running = 0.0
        for row in reversed(rows):
            running = turns.step_reward[row] + GAMMA * running
            returns[row] = running
    return returns


def loop_states(turns: TurnBatch) -> np.ndarray:
    """Numbers of the pairs of task and state."""
    clusters: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in range(len(turns)):
        clusters[turns.group_id[row], turns.anchor_obs[row]].append(row)
    numbers = np.zeros(len(turns), np.int64)
    for number, rows in enumerate(clusters.values()):
        for row in rows:
            numbers[row] = number
    return numbers


def loop_similar_states(turns: TurnBatch) -> np.ndarray:
    """Numbers of the pairs of task and cluster of alike texts; the texts of a task in sorted order, each to the first leader that it resembles."""
    texts = defaultdict(set)
    for row in range(len(turns)):
        texts[turns.group_id[row]].add(turns.anchor_obs[row])
    numbers: dict[tuple[str, str], int] = {}
    for group, found in texts.items():
        leaders: list[str] = []
        for text in sorted(found):
            leader = next((other for other in leaders if SequenceMatcher(None, other, text).ratio() >= THRESHOLD), None)
            numbers[group, text] = len(numbers) if leader is None else numbers[group, leader]
            if leader is None:
                leaders.append(text)
    return np.array([numbers[turns.group_id[row], turns.anchor_obs[row]] for row in range(len(turns))])


def loop_history_keys(turns: TurnBatch) -> list[dict[int, tuple[Any, ...]]]:
    """For 1, 2 and 3 observations: row -> the task and the last observations, for rows that have as many."""
    keys: list[dict[int, tuple[Any, ...]]] = [{} for _ in range(DEPTH)]
    for rows in loop_trajectories(turns).values():
        seen = [turns.anchor_obs[row] for row in rows]
        for place, row in enumerate(rows):
            for depth in range(min(DEPTH, place + 1)):
                keys[depth][row] = (turns.group_id[row], *seen[place - depth : place + 1])
    return keys


def loop_episode_term(turns: TurnBatch) -> np.ndarray:
    """The return of each trajectory relative to the other trajectories of its task."""
    trajectories = loop_trajectories(turns)
    score = {trajectory: sum(turns.step_reward[row] for row in rows) for trajectory, rows in trajectories.items()}
    groups = [turns.group_id[rows[0]] for rows in trajectories.values()]
    moments = loop_moments(list(score.values()), groups)
    out = np.zeros(len(turns))
    for row in range(len(turns)):
        out[row] = loop_relative(score[turns.traj_id[row]], moments[turns.group_id[row]])
    return out


def loop_credit(advantage: np.ndarray, turns: TurnBatch) -> np.ndarray:
    """The penalty of invalid actions, and the value of each turn on its tokens."""
    out = np.zeros(turns.response_mask.shape)
    for row in range(len(turns)):
        penalty = 0.0 if turns.action_valid[row] else PENALTY
        out[row, turns.response_mask[row]] = advantage[row] - penalty
    return out


def loop_grpo(turns: TurnBatch) -> np.ndarray:
    return loop_credit(loop_episode_term(turns), turns)


def loop_gigpo(turns: TurnBatch, states: Callable[[TurnBatch], np.ndarray] = loop_states) -> np.ndarray:
    returns, state, advantage = loop_discounted_returns(turns), states(turns), loop_episode_term(turns)
    moments = loop_moments(returns, state)
    for row in range(len(turns)):
        advantage[row] += loop_relative(returns[row], moments[state[row]])
    return loop_credit(advantage, turns)


def loop_hgpo(turns: TurnBatch) -> np.ndarray:
    returns = loop_discounted_returns(turns)
    total, weights = np.zeros(len(turns)), np.zeros(len(turns))
    for depth, key_of in enumerate(loop_history_keys(turns), start=1):
        rows = list(key_of)
        moments = loop_moments([returns[row] for row in rows], list(key_of.values()), ddof=0)
        for row, key in key_of.items():
            count, mean, std = moments[key]
            if count > 1 and abs(returns[row] - mean) > EQUAL_VALUES * max(1.0, abs(mean)):
                total[row] += (depth + 1) * loop_relative(returns[row], (count, mean, std))
                weights[row] += depth + 1
    advantage = np.zeros(len(turns))
    for row in range(len(turns)):
        advantage[row] = total[row] / (weights[row] + EPSILON)
    return loop_credit(advantage, turns)


# ---- the form of published reference code


def published_group_statistics(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    scores, lists = torch.from_numpy(values.copy()), defaultdict(list)
    for row in range(len(scores)):
        lists[groups[row]].append(scores[row])
    mean, scale = {}, {}
    for group, found in lists.items():
        stacked = torch.stack(found)
        mean[group], std = stacked.mean(), stacked.std() if len(found) > 1 else torch.tensor(0.0)
        scale[group] = std + EPSILON if std > EQUAL_VALUES * max(1.0, abs(mean[group])) else torch.tensor(torch.inf)
    for row in range(len(scores)):
        scores[row] = (scores[row] - mean[groups[row]]) / scale[groups[row]]
    return scores.numpy()


def published_discounted_returns(turns: TurnBatch) -> np.ndarray:
    of_trajectory = {}
    for trajectory in np.unique(turns.traj_id):
        rewards = turns.step_reward[np.where(turns.traj_id == trajectory)[0]]
        returns, running = np.zeros(len(rewards)), 0.0
        for turn in reversed(range(len(rewards))):
            running = rewards[turn] + GAMMA * running
            returns[turn] = running
        of_trajectory[trajectory] = returns
    out = np.zeros(len(turns))
    for row, trajectory in enumerate(turns.traj_id):
        rows = np.where(turns.traj_id == trajectory)[0]
        out[row] = of_trajectory[trajectory][np.where(rows == row)[0][0]]
    return out


def published_states(turns: TurnBatch) -> np.ndarray:
    """A random name for each pair of task and state."""
    names = np.empty(len(turns), object)
    for group in np.unique(turns.group_id):
        rows = np.where(turns.group_id == group)[0]
        clusters = defaultdict(list)
        for row in rows:
            clusters[turns.anchor_obs[row]].append(row)
        for found in clusters.values():
            name = str(uuid.uuid4())
            for row in found:
                names[row] = name
    return names


def published_episode_term(turns: TurnBatch) -> np.ndarray:
    """The statistics are over trajectories: one turn of each enters the lists."""
    total = {}
    for trajectory in np.unique(turns.traj_id):
        total[trajectory] = turns.step_reward[np.where(turns.traj_id == trajectory)[0]].sum()
    seen, first = set(), []
    for row in range(len(turns)):
        if turns.traj_id[row] not in seen:
            seen.add(turns.traj_id[row])
            first.append(row)
    relative = published_group_statistics(np.array([total[turns.traj_id[row]] for row in first]), turns.group_id[first])
    of_trajectory = {turns.traj_id[row]: value for row, value in zip(first, relative, strict=True)}
    return np.array([of_trajectory[trajectory] for trajectory in turns.traj_id])


def published_credit(advantage: np.ndarray, turns: TurnBatch) -> np.ndarray:
    scores = torch.from_numpy(advantage.copy())
    for row in range(len(turns)):
        if not turns.action_valid[row]:
            scores[row] -= PENALTY
    return (scores.unsqueeze(-1) * torch.from_numpy(turns.response_mask)).numpy()


def published_grpo(turns: TurnBatch) -> np.ndarray:
    return published_credit(published_episode_term(turns), turns)


def published_gigpo(turns: TurnBatch) -> np.ndarray:
    step = published_group_statistics(published_discounted_returns(turns), published_states(turns))
    return published_credit(published_episode_term(turns) + step, turns)
