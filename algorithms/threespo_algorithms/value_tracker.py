"""What single-stream methods share: a Beta estimate of each task's success rate, outcomes of trajectories, and whitening over a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from threespo_algorithms.episode_term import require_choice
from threespo_algorithms.group_statistics import EQUAL_VALUES
from threespo_bench.contracts.algorithm import AlgorithmConfig
from threespo_bench.contracts.objective import require
from threespo_bench.errors import DataError
from threespo_bench.rollout.single_stream import COLLECTIONS, UNFINISHED, SingleStreamSampler
from threespo_bench.turns import TurnBatch, codes

UNKNOWN = 0.5
"""The success rate of a task that was never used."""


@dataclass
class StreamConfig(AlgorithmConfig):
    """Options of single-stream methods.

    Attributes:
        tasks_per_iteration: rollouts that an iteration completes. Tasks are drawn from all training tasks, not taken from the task stream.
        collection: ``batch`` starts all rollouts of an iteration together and waits for all; ``first_completed`` keeps ``in_flight`` rollouts
            running, at most one of a task, and has a batch when ``batch_episodes`` have ended.
        batch_episodes: rollouts that a batch of ``first_completed`` waits for, at most ``tasks_per_iteration``.
        in_flight: rollouts that ``first_completed`` plays at once.
        unfinished: rollouts still in flight when a batch of ``first_completed`` is ready: ``drop`` them (what they spent stays charged), or
            ``finish`` them before the update and add them to the batch.
        offline_rollouts: rollouts of a task before its first use that its value starts from; they are charged to the budget.
        exploration: a task is drawn with weight sqrt(v (1 - v)) + ``exploration``.
        reward_scale: the return of a perfect trajectory; divides returns where a batch does not say which trajectories succeeded.
    """

    tasks_per_iteration: int = 64
    collection: str = "batch"
    batch_episodes: int = 64
    in_flight: int = 32
    unfinished: str = "drop"
    offline_rollouts: int = 0
    exploration: float = 0.05
    reward_scale: float = 10.0

    def validate(self) -> None:
        super().validate()
        require_choice("algorithm.collection", self.collection, COLLECTIONS)
        require_choice("algorithm.unfinished", self.unfinished, UNFINISHED)
        if self.collection == "first_completed":
            allowed = f"in [1, algorithm.tasks_per_iteration], which is {self.tasks_per_iteration}"
            require(1 <= self.batch_episodes <= self.tasks_per_iteration, "algorithm.batch_episodes", self.batch_episodes, allowed)
        require(self.in_flight >= 1, "algorithm.in_flight", self.in_flight, ">= 1")
        require(self.offline_rollouts >= 0, "algorithm.offline_rollouts", self.offline_rollouts, ">= 0")
        require(self.exploration > 0, "algorithm.exploration", self.exploration, "> 0")
        require(self.reward_scale > 0, "algorithm.reward_scale", self.reward_scale, "> 0")

    def sampler(self) -> SingleStreamSampler:
        """The sampler that these options describe."""
        return SingleStreamSampler(self.tasks_per_iteration, self.collection, self.batch_episodes, self.in_flight, self.unfinished, self.offline_rollouts)


class BetaTracker:
    """Pseudo-counts a of success and b of failure per task; the success rate is v = a / (a + b).

    Args:
        mass: a + b after an initialisation by rollouts.
    """

    def __init__(self, mass: float) -> None:
        self.mass = mass
        self._counts: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def __contains__(self, key: str) -> bool:
        return key in self._counts

    def initialise(self, key: str, successes: int, rollouts: int) -> None:
        """Jeffreys half-counts: a = N0 (k + 1/2) / (n0 + 1), b = N0 (n0 - k + 1/2) / (n0 + 1); without rollouts a = b = 1/2."""
        share = (successes + 0.5) / (rollouts + 1)
        mass = self.mass if rollouts else 1.0
        self._counts[key] = (mass * share, mass * (1.0 - share))

    def counts(self, key: str) -> tuple[float, float]:
        """(a, b) of a known task."""
        return self._counts[key]

    def values(self, keys: Sequence[str]) -> np.ndarray:
        """(K,) v = a / (a + b); :data:`UNKNOWN` for unknown tasks. Reading never grows the table."""
        pairs = np.array([self._counts.get(key, (UNKNOWN, 1.0 - UNKNOWN)) for key in keys], float).reshape(-1, 2)
        return pairs[:, 0] / pairs.sum(axis=1)

    def weights(self, keys: Sequence[str], exploration: float) -> np.ndarray:
        """(K,) w = sqrt(v (1 - v)) + exploration: tasks of uncertain outcome are drawn more often."""
        values = self.values(keys)
        return np.sqrt(values * (1.0 - values)) + exploration

    def update(self, key: str, reward: float, rho: float) -> None:
        """a <- rho a + r, b <- rho b + 1 - r."""
        if key not in self:
            self.initialise(key, 0, 0)
        a, b = self._counts[key]
        self._counts[key] = (rho * a + reward, rho * b + 1.0 - reward)

    def state_dict(self) -> dict[str, Any]:
        """The table as plain data."""
        return {"keys": list(self._counts), "counts": np.array(list(self._counts.values()), float).reshape(-1, 2)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self._counts = {key: (float(a), float(b)) for key, (a, b) in zip(state["keys"], state["counts"], strict=True)}


class EventTimeTracker(BetaTracker):
    """Pseudo-counts whose evidence fades with the policy versions that passed since it was generated, whenever it was received.

    The event coordinate of a version advances by -ln rho per published version, so evidence of version v weighs rho^(q - v) at version q.
    Counts are kept as of the newest version of a task's evidence; v does not depend on the version, since both counts fade alike.

    Args:
        rho: retention per version; a + b after an initialisation by rollouts is 1 / (1 - rho).
    """

    def __init__(self, rho: float) -> None:
        super().__init__(1.0 / (1.0 - rho))
        self.rho = rho
        self._versions: dict[str, int] = {}

    def begin(self, key: str, successes: int, rollouts: int, version: int) -> None:
        """Initialise a task with rollouts of policy ``version``."""
        self.initialise(key, successes, rollouts)
        self._versions[key] = version

    def record(self, key: str, reward: float, version: int) -> None:
        """Add an outcome of policy ``version``; the order of calls does not matter."""
        if key not in self:
            self.begin(key, 0, 0, version)
        newest = max(self._versions[key], version)
        a, b = self.counts_at(key, newest)
        weight = self.rho ** (newest - version)
        self._counts[key] = (a + weight * reward, b + weight * (1.0 - reward))
        self._versions[key] = newest

    def counts_at(self, key: str, version: int) -> tuple[float, float]:
        """a_q = rho^(q - v0) a_0 + sum_i rho^(q - v_i) R_i, and b_q with 1 - R_i, at ``version`` q."""
        a, b = self._counts[key]
        weight = self.rho ** (version - self._versions[key])
        return weight * a, weight * b

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"versions": np.array([self._versions[key] for key in self._counts], np.int64)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._versions = dict(zip(state["keys"], np.asarray(state["versions"]).tolist(), strict=True))


@dataclass(frozen=True)
class Trajectories:
    """The M trajectories of a batch, in the order in which they first appear; padding rows belong to none.

    Attributes:
        rows: (R,) the rows that are not padding, trajectory by trajectory in the order of time. owner: (R,) the trajectory of each.
        first, last: (M,) the rows of the first and the last turn.
        tokens: (M,) L_i, the action tokens of all turns.
    """

    rows: np.ndarray
    owner: np.ndarray
    first: np.ndarray
    last: np.ndarray
    tokens: np.ndarray

    @staticmethod
    def of(turns: TurnBatch) -> Trajectories:
        """Those of a batch."""
        real = np.flatnonzero(turns.real)
        owner = codes(turns.traj_id[real])
        order = np.lexsort((turns.step_id[real], owner))
        rows, owner = real[order], owner[order]
        number = int(owner.max(initial=-1)) + 1
        ends = np.searchsorted(owner, np.arange(number), side="right") - 1
        starts = np.searchsorted(owner, np.arange(number), side="left")
        tokens = np.bincount(owner, weights=turns.response_mask[rows].sum(axis=1), minlength=number)
        return Trajectories(rows, owner, rows[starts], rows[ends], tokens)

    def __len__(self) -> int:
        return len(self.first)

    def over_turns(self, values: np.ndarray, number: int) -> np.ndarray:
        """(N,) the value of each row's trajectory, 0 on padding rows. values: (M,). number: N."""
        out = np.zeros(number)
        out[self.rows] = values[self.owner]
        return out


def outcomes(turns: TurnBatch, trajectories: Trajectories, reward_scale: float) -> np.ndarray:
    """(M,) R in [0, 1]: 1 for success and 0 otherwise where the batch says so, else the return divided by ``reward_scale``.

    Raises:
        DataError: a return lies outside [0, ``reward_scale``].
    """
    if turns.success is not None:
        return turns.success[trajectories.last].astype(float)
    reward = turns.episode_return()[trajectories.first] / reward_scale
    outside = ~((reward > -1e-9) & (reward < 1.0 + 1e-9))  # NaN is outside too; sums of rewards may be off by rounding
    if outside.any():
        row = trajectories.first[outside][0]
        raise DataError(
            f"trajectory {turns.traj_id[row]} has the return {turns.episode_return()[row]:g}, which is {reward[outside][0]:g} of "
            f"algorithm.reward_scale={reward_scale:g}: outside [0, 1]",
            fix="set algorithm.reward_scale to the return of a perfect trajectory, or record the column success",
        )
    return np.clip(reward, 0.0, 1.0)


def whiten(advantage: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """(M,) (A - mu) / (sigma + 1e-8) under a measure: mu = sum w A / sum w, sigma^2 = sum w (A - mu)^2 / (sum w - 1).

    Weights of 1 are the usual mean and sample deviation over trajectories; weights L_i are those over action tokens. Members of weight 0 enter
    nothing. Equal values give exactly 0; a total weight of at most 1 has no deviation, and nothing is changed.
    """
    total = float(weight.sum())
    if total <= 1.0:
        return advantage
    inside = weight > 0
    mean = float((weight[inside] * advantage[inside]).sum()) / total
    std = float(np.sqrt((weight[inside] * (advantage[inside] - mean) ** 2).sum() / (total - 1.0)))
    if std <= EQUAL_VALUES * max(1.0, abs(mean)):
        return np.zeros_like(advantage)
    return (advantage - mean) / (std + 1e-8)


def stream_diagnostics(reward: np.ndarray, value: np.ndarray, whitened: np.ndarray, tokens: np.ndarray) -> dict[str, float]:
    """Means of outcome, baseline and advantage, and the mean of the whitened advantage over tokens: how far length tilts the update."""
    number, length = max(len(reward), 1), max(float(tokens.sum()), 1.0)
    return {
        "stream/outcome": float(reward.sum()) / number,
        "stream/baseline": float(value.sum()) / number,
        "stream/advantage": float((reward - value).sum()) / number,
        "stream/token_mean_advantage": float((tokens * whitened).sum()) / length,
    }
