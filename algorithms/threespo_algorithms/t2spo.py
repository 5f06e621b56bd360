"""T2SPO: what a turn does to the predicted number of turns that are left to success is credit beside the outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from threespo_algorithms.distance_memory import DistanceMemory, Reduction
from threespo_algorithms.distance_regressors import DistanceRegressor, NearestNeighbours, TabPFN
from threespo_algorithms.episode_term import GroupedConfig, episode_term, penalties, require_choice
from threespo_algorithms.group_statistics import over_tokens
from threespo_algorithms.observation_history import TimeOrder, time_order
from threespo_bench.contracts.algorithm import Algorithm, Credit, Score
from threespo_bench.contracts.objective import require
from threespo_bench.rollout.grouped import GroupedSampler
from threespo_bench.turns import TurnBatch

_EPSILON = 1e-8
"""Added to the root mean square."""
_COLUMNS = {"prompt": "prompt_embedding", "observation": "embedding"}
"""Where the vectors of the states are, by the option ``state``."""


@dataclass
class DistanceCreditConfig(GroupedConfig):
    """Options of T2SPO with any regressor.

    Attributes:
        state: what a state is told by: ``prompt``, all that the policy reads, or ``observation``, the last text of the environment alone.
        distance_weight: w, weight of the credit for distance. distance_clip: C, greatest size of that credit before the weight.
        gamma: discount of the distance after a turn.
        memory_size: states that are remembered, first in, first out. minimum_support: with fewer states than this there is no credit for distance.
        components: dimensions that the states are reduced to.
        maximum_distance: predictions are clipped to [0, this].
    """

    state: str = "prompt"
    distance_weight: float = 1.0
    distance_clip: float = 3.0
    gamma: float = 1.0
    memory_size: int = 4096
    minimum_support: int = 64
    components: int = 32
    maximum_distance: float = 100.0

    def validate(self) -> None:
        super().validate()
        require_choice("algorithm.state", self.state, tuple(_COLUMNS))
        require(self.distance_weight >= 0, "algorithm.distance_weight", self.distance_weight, ">= 0")
        require(self.distance_clip > 0, "algorithm.distance_clip", self.distance_clip, "> 0")
        require(0 <= self.gamma <= 1, "algorithm.gamma", self.gamma, "in [0, 1]")
        require(self.components >= 1, "algorithm.components", self.components, ">= 1")
        require(self.minimum_support >= 1, "algorithm.minimum_support", self.minimum_support, ">= 1")
        require(self.memory_size >= self.minimum_support, "algorithm.memory_size", self.memory_size, f"at least minimum_support ({self.minimum_support})")
        require(self.maximum_distance > 0, "algorithm.maximum_distance", self.maximum_distance, "> 0")


@dataclass
class T2SPOConfig(DistanceCreditConfig):
    """Options of T2SPO with TabPFN.

    Attributes:
        tabpfn_weights: path of a checkpoint of TabPFN's regressor; nothing is downloaded. tabpfn_device: torch device that TabPFN runs on.
    """

    tabpfn_weights: str = ""
    tabpfn_device: str = "cpu"


@dataclass
class T2SPOKNNConfig(DistanceCreditConfig):
    """Options of T2SPO with nearest neighbours.

    Attributes:
        neighbours: k, support states whose labels are averaged.
    """

    neighbours: int = 8

    def validate(self) -> None:
        super().validate()
        require(self.neighbours >= 1, "algorithm.neighbours", self.neighbours, ">= 1")


_Config = TypeVar("_Config", bound=DistanceCreditConfig)


class DistanceCredit(Algorithm, Generic[_Config]):
    """GRPO plus credit for nearing success; subclasses name the regressor.

    Attributes:
        memory: states of successful trajectories with the turns that were left.
        round: batches that were learned from; a feature of the states.
        regressor: predicts the distances.
        column: where the vectors of the states are.
    """

    source = "arXiv:2610.00388; formulas and constants after an independent re-implementation"
    needs = frozenset({"prompt_embeddings"})
    requires = ("success", "prompt_embedding")

    def __init__(self, config: _Config, regressor: DistanceRegressor) -> None:
        super().__init__(config)
        self.sampler = GroupedSampler(config.group_size)
        self.memory, self.round, self.regressor = DistanceMemory(config.memory_size), 0, regressor
        self.column = _COLUMNS[config.state]
        if config.state == "observation":
            self.needs, self.requires = frozenset({"embeddings"}), ("success", self.column)

    def credit(self, turns: TurnBatch) -> Credit:
        """A = A_outcome + c, on every token of the turn; c is 0 while the memory is small."""
        turns.require(self.requires, "t2spo")
        config, order = self.config, time_order(turns)
        episode, diagnostics = episode_term(turns, config)
        distance = self.distances(turns, order)
        change = distance_change(distance, order.last, turns.success[order.rows], config.gamma)
        mask = np.isfinite(change) & np.isfinite(distance) & ~unchanged(turns)[order.rows]
        step = np.zeros(len(turns))
        step[order.rows] = distance_credit(change, mask, config.distance_weight, config.distance_clip)
        advantage = episode + step
        if config.penalty_stage == "after_norm" and config.penalty_mode == "row_local":
            advantage = advantage - penalties(turns, config)
        known = distance[np.isfinite(distance)]
        diagnostics |= {
            "distance/credited_share": float(mask.sum() / max(len(mask), 1)),
            "distance/predicted": float(known.mean()) if len(known) else 0.0,
            "distance/credit_size": float(np.abs(step).sum() / max(len(mask), 1)),
        }
        return Credit(over_tokens(advantage, turns), diagnostics=diagnostics)

    def observe(self, turns: TurnBatch, score: Score) -> None:
        """Remember the states of the batch's successful trajectories, after it was credited without them; failures are never labels."""
        order = time_order(turns)
        length, won = _of_trajectory(order, order.place + 1), _of_trajectory(order, turns.success[order.rows])
        rows = np.flatnonzero(won)
        name = np.array([str(trajectory) for trajectory in turns.traj_id[order.rows[rows]]])
        rows = rows[np.lexsort((order.place[rows], name))]  # which states are forgotten first does not depend on the order of rows
        if len(rows):
            self.memory.add(self._states(turns, order, rows), (length - order.place)[rows].astype(float))  # y = T - t
        self.round += 1

    def distances(self, turns: TurnBatch, order: TimeOrder) -> np.ndarray:
        """(R,) predicted turns left of the rows of ``order``, in [0, ``maximum_distance``]; NaN where there is no prediction."""
        if len(self.memory) < self.config.minimum_support or not len(order.rows):
            return np.full(len(order.rows), np.nan)
        query, query_of = _distinct_queries(turns.extras[self.column][order.rows], order.place)
        reduce = Reduction(self.memory.states, self.config.components)
        support = reduce(self.memory.states)
        if not support.shape[1]:  # all remembered states are alike, so nothing can be told from a state
            return np.full(len(order.rows), np.nan)
        predicted = self.regressor.predict(support, self.memory.turns_left, reduce(self._states(turns, order, query)))
        clipped = np.clip(predicted, 0.0, self.config.maximum_distance)
        return np.where(np.isfinite(predicted), clipped, np.nan)[query_of]

    def _states(self, turns: TurnBatch, order: TimeOrder, at: np.ndarray) -> np.ndarray:
        """(A, D + 2) vector, turn index and collection round of the rows at these places of ``order``."""
        vectors = np.stack([np.asarray(vector, float) for vector in turns.extras[self.column][order.rows[at]]])
        return np.column_stack([vectors, order.place[at], np.full(len(at), self.round)])

    def diagnostics(self) -> dict[str, float]:
        """States in the memory."""
        return {"distance/memory": float(len(self.memory))}

    def state_dict(self) -> dict[str, Any]:
        """Memory and round."""
        return {"memory": self.memory.state_dict(), "round": self.round}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self.memory.load_state_dict(state["memory"])
        self.round = int(state["round"])


class T2SPO(DistanceCredit[T2SPOConfig]):
    """Trajectory-to-Step Policy Optimization with TabPFN."""

    Config = T2SPOConfig
    title = "Trajectory-to-Step Policy Optimization"
    notes = (
        "A = A_outcome + w clip(asinh(F) / rms, -C, C), F = d(s) - gamma d(s'): d is the number of turns left to success that TabPFN, frozen and with local "
        "weights, predicts from the states of past successful trajectories. A failed or cut last turn has F = 0; turns that change nothing have no credit. A "
        "state is told by its prompt: the last observation alone may show neither the task nor what was done. The published gate on the credit is not public: "
        "here it is 1. Constants are a reconstruction. Without TabPFN choose t2spo_knn."
    )

    def __init__(self, config: T2SPOConfig) -> None:
        super().__init__(config, TabPFN(config.tabpfn_weights, config.tabpfn_device))


class T2SPOKNN(DistanceCredit[T2SPOKNNConfig]):
    """Trajectory-to-Step Policy Optimization with nearest neighbours in the place of TabPFN."""

    Config = T2SPOKNNConfig
    title = "Trajectory-to-Step Policy Optimization with nearest neighbours"
    notes = (
        "T2SPO with another regressor: d is the mean number of turns left of the k nearest states of past successful trajectories. The paper compares its "
        "method, t2spo, with such a regressor. Constants are a reconstruction."
    )

    def __init__(self, config: T2SPOKNNConfig) -> None:
        super().__init__(config, NearestNeighbours(config.neighbours))


def distance_change(distance: np.ndarray, last: np.ndarray, success: np.ndarray, gamma: float) -> np.ndarray:
    """(R,) F_t = d_t - gamma d_{t+1}, how much nearer to success a turn came.

    After the last turn of a success the distance is 0; the last turn of a failed or cut trajectory has F = 0.

    Args:
        distance: (R,) d_t, turns of trajectories one after another in the order of time. last: (R,) bool, the trajectory's last turn.
        success: (R,) bool, the turn ended the task well.
    """
    following = np.where(last, 0.0, np.r_[distance[1:], 0.0][: len(distance)])
    return np.where(last & ~success, 0.0, distance - gamma * following)


def distance_credit(change: np.ndarray, mask: np.ndarray, weight: float, clip: float) -> np.ndarray:
    """(R,) c_t = w clip(asinh(F_t) / (rms + eps), -C, C), with rms over the masked turns; 0 elsewhere, and everywhere if the mask is empty.

    Args:
        change: (R,) F_t; may be anything where the mask is false. mask: (R,) bool. weight: w. clip: C.
    """
    credit = np.zeros(len(change))
    if mask.any():
        size = np.arcsinh(change[mask])
        rms = np.sqrt(np.mean(size**2))
        credit[mask] = weight * np.clip(size / (rms + _EPSILON), -clip, clip)
    return credit


def unchanged(turns: TurnBatch) -> np.ndarray:
    """(N,) the turn left the observation as it was; told by the texts, or else by the state keys.

    Raises:
        DataError: the batch has neither.
    """
    if "observation" in turns.extras and "next_observation" in turns.extras:
        before, after = turns.extras["observation"], turns.extras["next_observation"]
    else:
        turns.require(("anchor_obs", "next_anchor_obs"), "t2spo")
        before, after = turns.anchor_obs, turns.next_anchor_obs
    return np.asarray(before == after, bool)


def _of_trajectory(order: TimeOrder, at_end: np.ndarray) -> np.ndarray:
    """(R,) the value that each trajectory's last turn has."""
    ends = np.flatnonzero(order.last)
    return np.repeat(at_end[ends], order.place[ends] + 1)


def _distinct_queries(vectors: np.ndarray, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows that stand for all rows of equal embedding and turn index, sorted by content, and for each row the number of the one that stands for it."""
    content: dict[int, bytes] = {}
    keys = []
    for turn, vector in zip(place.tolist(), list(vectors), strict=True):  # equal texts usually share one vector: read each vector once
        if id(vector) not in content:
            content[id(vector)] = np.asarray(vector, float).tobytes()
        keys.append((turn, content[id(vector)]))
    representative: dict[tuple[int, bytes], int] = {}
    for row, key in enumerate(keys):
        representative.setdefault(key, row)
    distinct = sorted(representative)
    number = {key: at for at, key in enumerate(distinct)}
    return np.array([representative[key] for key in distinct]), np.array([number[key] for key in keys])
