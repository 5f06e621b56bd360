"""SPO (single stream): one rollout per task, compared with a running estimate of the task's success rate that fades as the policy drifts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from threespo_algorithms.group_statistics import over_tokens
from threespo_algorithms.value_tracker import BetaTracker, StreamConfig, Trajectories, outcomes, stream_diagnostics, whiten
from threespo_bench.contracts.algorithm import Credit, Score
from threespo_bench.contracts.objective import PolicyGradient, require
from threespo_bench.rollout.single_stream import StreamAlgorithm
from threespo_bench.turns import TurnBatch, object_column


@dataclass
class SPOStreamConfig(StreamConfig):
    """Options of SPO.

    Attributes:
        drift_half: D_half, the drift (mean absolute change of the log-probability per token) that halves the memory, before clipping.
        rho_min, rho_max: the retention is clipped to this range; equal values are a constant retention. A value that starts from
            ``offline_rollouts`` has the mass 1 / (1 - rho_min).
    """

    objective: PolicyGradient = field(default_factory=lambda: PolicyGradient(clip_low=0.2, clip_high=0.28, dual_clip=10.0))
    drift_half: float = 0.06
    rho_min: float = 0.875
    rho_max: float = 0.96

    def validate(self) -> None:
        super().validate()
        require(self.drift_half > 0, "algorithm.drift_half", self.drift_half, "> 0")
        require(0 < self.rho_min < 1, "algorithm.rho_min", self.rho_min, "in (0, 1)")
        require(self.rho_min <= self.rho_max <= 1, "algorithm.rho_max", self.rho_max, f"in [algorithm.rho_min, 1], which begins at {self.rho_min}")


@dataclass(frozen=True, slots=True)
class Rollout:
    """The last trajectory of a task: prompts of n turns, and (n, T) responses, mask and log-probabilities after the update that it was part of."""

    prompts: list[np.ndarray]
    responses: np.ndarray
    mask: np.ndarray
    log_probs: np.ndarray


class RolloutMemory:
    """The last trajectory of every task, by which the drift of the policy is measured."""

    def __init__(self) -> None:
        self._last: dict[str, Rollout] = {}

    def remember(self, key: str, turns: TurnBatch, rows: np.ndarray, log_probs: np.ndarray) -> None:
        """Replace the task's trajectory by the given rows; turns without a token are left out, and a trajectory without any is not kept."""
        rows = rows[turns.response_mask[rows].any(axis=1)]
        if len(rows):
            mask = turns.response_mask[rows]
            mask = mask[:, : int(np.flatnonzero(mask.any(axis=0))[-1]) + 1]
            width = mask.shape[1]
            prompts = [np.asarray(turns.prompt_ids[row], np.int32) for row in rows]
            responses = np.where(mask, turns.response_ids[rows, :width], 0).astype(np.int32)
            self._last[key] = Rollout(prompts, responses, mask, np.where(mask, log_probs[rows, :width], 0.0))

    def drift(self, keys: Iterable[str], score: Score) -> dict[str, float]:
        """D = mean over tokens of |log pi_new - log pi_stored| on the stored trajectory, of each of the tasks that has one."""
        known = [key for key in dict.fromkeys(keys) if key in self._last]
        if not known:
            return {}
        parts = [_as_turns(key, self._last[key]) for key in known]
        turns = TurnBatch.concatenate(parts)
        owner = np.repeat(np.arange(len(known)), [len(part) for part in parts])
        gap = np.where(turns.response_mask, np.abs(score(turns) - turns.old_log_probs), 0.0).sum(axis=1)
        drift = np.bincount(owner, weights=gap) / np.bincount(owner, weights=turns.response_mask.sum(axis=1))
        return dict(zip(known, drift.tolist(), strict=True))

    def state_dict(self) -> dict[str, Any]:
        """All trajectories as a few flat arrays."""
        rollouts = list(self._last.values())
        prompts = [prompt for rollout in rollouts for prompt in rollout.prompts]
        return {
            "keys": list(self._last),
            "shapes": np.array([rollout.mask.shape for rollout in rollouts], np.int64).reshape(-1, 2),
            "prompt_lengths": np.array([len(prompt) for prompt in prompts], np.int64),
            "prompts": _flat(prompts, np.int32),
            "responses": _flat([rollout.responses for rollout in rollouts], np.int32),
            "mask": _flat([rollout.mask for rollout in rollouts], bool),
            "log_probs": _flat([rollout.log_probs for rollout in rollouts], np.float64),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        shapes = np.asarray(state["shapes"])
        prompts = np.split(np.asarray(state["prompts"]), np.cumsum(state["prompt_lengths"])[:-1])
        turns, tokens = np.cumsum([0, *shapes[:, 0]]), np.cumsum([0, *shapes.prod(axis=1)])
        self._last = {}
        for i, (key, shape) in enumerate(zip(state["keys"], shapes, strict=True)):
            parts = (np.asarray(state[name])[tokens[i] : tokens[i + 1]].reshape(shape).copy() for name in ("responses", "mask", "log_probs"))
            self._last[key] = Rollout([prompt.copy() for prompt in prompts[turns[i] : turns[i + 1]]], *parts)


class SPOStream(StreamAlgorithm):
    """Single-stream Policy Optimization."""

    Config = SPOStreamConfig
    title = "Single-stream Policy Optimization"
    source = "arXiv:2509.13232 (ICLR 2026); reference code: the recipe spo of verl-recipe"
    notes = (
        "A = R - v, v = a / (a + b) of the task before the update, whitened over the trajectories of the batch. R is 1 for a success and 0 otherwise; where "
        "a batch does not say, it is the return over reward_scale, which must be in [0, 1]. After the update "
        "a <- rho a + R, b <- rho b + 1 - R with rho = 2^(-D / D_half), clipped, D the drift of the policy on the task's previous trajectory. "
        "Tasks are drawn with weight sqrt(v (1 - v)) + exploration. Two rollouts of a task in a batch update its value one after the other, where the "
        "reference code keeps only the last."
    )
    requires = ("task_key",)

    def __init__(self, config: SPOStreamConfig) -> None:
        super().__init__(config)
        self.sampler = config.sampler()
        self.tracker = BetaTracker(mass=1.0 / (1.0 - config.rho_min))  # N0 = 1 / (1 - rho_min)
        self.memory = RolloutMemory()
        self._drift = self._rho = 0.0

    def task_weights(self, task_keys: Sequence[str]) -> np.ndarray:
        return self.tracker.weights(task_keys, self.config.exploration)

    def knows(self, task_key: str) -> bool:
        return task_key in self.tracker

    def initialise(self, task_key: str, successes: int, rollouts: int, version: int) -> None:
        self.tracker.initialise(task_key, successes, rollouts)

    def dispatch_value(self, task_key: str, version: int) -> float:
        return float(self.tracker.values([task_key])[0])

    def credit(self, turns: TurnBatch) -> Credit:
        """A = R - v of each trajectory, whitened over trajectories, on every token. Batches that do not carry v are given the tracker's."""
        turns.require(self.requires, "spo_stream")
        trajectories = Trajectories.of(turns)
        reward = outcomes(turns, trajectories, self.config.reward_scale)
        value = self._baseline(turns, trajectories.first)
        advantage = whiten(reward - value, (trajectories.tokens > 0).astype(float))
        diagnostics = stream_diagnostics(reward, value, advantage, trajectories.tokens)
        return Credit(over_tokens(trajectories.over_turns(advantage, len(turns)), turns), diagnostics=diagnostics)

    def observe(self, turns: TurnBatch, score: Score) -> None:
        """Let the batch's outcomes into the tracker, trajectory by trajectory, and keep the trajectories for the next measure of drift."""
        turns.require(("task_key", "response_ids", "prompt_ids"), "spo_stream")
        trajectories = Trajectories.of(turns)
        reward = outcomes(turns, trajectories, self.config.reward_scale)
        keys = [str(key) for key in turns.task_key[trajectories.first]]
        measured = self.config.rho_min < self.config.rho_max
        drift = self.memory.drift(keys, score) if measured else {}
        log_probs = score(turns) if measured else None
        members = np.split(trajectories.rows, np.searchsorted(trajectories.owner, np.arange(1, len(trajectories))))
        drifts, rhos = [], []
        for i in _by_id(turns.traj_id[trajectories.first]):
            # A first visit has D = 0; so has a second rollout in the same batch, whose previous one was scored by this very policy.
            drifts.append(drift.pop(keys[i], 0.0))
            rhos.append(self.retention(drifts[-1]))
            self.tracker.update(keys[i], float(reward[i]), rhos[-1])
            if log_probs is not None:
                self.memory.remember(keys[i], turns, members[i], log_probs)
        self._drift, self._rho = float(np.mean(drifts or [0.0])), float(np.mean(rhos or [0.0]))

    def retention(self, drift: float) -> float:
        """rho(D) = 2^(-D / D_half), clipped to [rho_min, rho_max]."""
        return float(np.clip(2.0 ** (-drift / self.config.drift_half), self.config.rho_min, self.config.rho_max))

    def _baseline(self, turns: TurnBatch, rows: np.ndarray) -> np.ndarray:
        """(R,) v of the tasks of the given rows, as frozen at dispatch or else as the tracker knows it now."""
        frozen = turns.extras.get("dispatch_value")
        return self.tracker.values([str(key) for key in turns.task_key[rows]]) if frozen is None else np.asarray(frozen, float)[rows]

    def diagnostics(self) -> dict[str, float]:
        """What the last collection did, the number of known tasks, and mean drift and retention of the last batch."""
        return self.sampler.diagnostics() | {"value/tasks": float(len(self.tracker)), "value/drift": self._drift, "value/retention": self._rho}

    def state_dict(self) -> dict[str, Any]:
        return {"tracker": self.tracker.state_dict(), "memory": self.memory.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tracker.load_state_dict(state["tracker"])
        self.memory.load_state_dict(state["memory"])


def _by_id(ids: np.ndarray) -> list[int]:
    """Places of trajectory ids in an order that does not depend on that of the rows; numbered ids come in the order of their numbers."""
    return sorted(range(len(ids)), key=lambda i: (len(str(ids[i])), str(ids[i])))


def _as_turns(key: str, rollout: Rollout) -> TurnBatch:
    """A stored trajectory as turns that can be scored; ``old_log_probs`` are the stored ones."""
    number = len(rollout.prompts)
    return TurnBatch(
        group_id=object_column([key] * number), traj_id=object_column([key] * number), step_id=np.arange(number), step_reward=np.zeros(number),
        response_mask=rollout.mask, response_ids=rollout.responses, old_log_probs=rollout.log_probs, prompt_ids=object_column(rollout.prompts),
    )  # fmt: skip


def _flat(arrays: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype), *(array.ravel() for array in arrays)])
