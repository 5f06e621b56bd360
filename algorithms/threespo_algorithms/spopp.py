"""SPO++: single-stream rollouts whose baseline is frozen at dispatch, with evidence by policy version and whitening over action tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from threespo_algorithms.episode_term import require_choice
from threespo_algorithms.group_statistics import over_tokens
from threespo_algorithms.value_tracker import EventTimeTracker, StreamConfig, Trajectories, outcomes, stream_diagnostics, whiten
from threespo_bench.contracts.algorithm import Credit, Score
from threespo_bench.contracts.objective import PolicyGradient, require
from threespo_bench.errors import DataError
from threespo_bench.rollout.single_stream import StreamAlgorithm
from threespo_bench.turns import TurnBatch

MEASURES = ("token", "trajectory")


@dataclass
class SPOPlusPlusConfig(StreamConfig):
    """Options of SPO++.

    Attributes:
        rho: retention of evidence per published policy version. A value that starts from ``offline_rollouts`` has the mass 1 / (1 - rho).
        whitening_measure: mean and deviation of the advantages are taken over action tokens (``token``), or over trajectories
            (``trajectory``) as in SPO: the ablation of the paper.
    """

    objective: PolicyGradient = field(default_factory=lambda: PolicyGradient(clip_low=0.2, clip_high=0.28, dual_clip=2.0, rollout_ratio_cap=2.0))
    collection: str = "first_completed"
    rho: float = 0.875
    whitening_measure: str = "token"

    def validate(self) -> None:
        super().validate()
        require(0 < self.rho < 1, "algorithm.rho", self.rho, "in (0, 1)")
        require_choice("algorithm.whitening_measure", self.whitening_measure, MEASURES)


class SPOPlusPlus(StreamAlgorithm):
    """Stream-Aligned Policy Optimization."""

    Config = SPOPlusPlusConfig
    title = "Stream-Aligned Policy Optimization (SPO++)"
    source = "arXiv:2608.24870 (text; no public code)"
    notes = (
        "A = R - v_q, frozen when the rollout is dispatched at policy version q: a_q = rho^(q - v0) a_0 + sum_i rho^(q - v_i) R_i over outcomes of version "
        "v_i, b_q likewise with 1 - R_i, v_q = a_q / (a_q + b_q). R is 1 for a success and 0 otherwise; where a batch does not say, it is the return over "
        "reward_scale, which must be in [0, 1]. A is whitened over action tokens: mu = sum L A / sum L, "
        "sigma^2 = sum L (A - mu)^2 / (sum L - 1). Rollouts are collected as they complete within a policy version. Reconstruction: how many "
        "rollouts are in flight is not public."
    )
    requires = ("dispatch_value",)

    def __init__(self, config: SPOPlusPlusConfig) -> None:
        super().__init__(config)
        self.sampler = config.sampler()
        self.tracker = EventTimeTracker(config.rho)

    def task_weights(self, task_keys: Sequence[str]) -> np.ndarray:
        return self.tracker.weights(task_keys, self.config.exploration)

    def knows(self, task_key: str) -> bool:
        return task_key in self.tracker

    def initialise(self, task_key: str, successes: int, rollouts: int, version: int) -> None:
        self.tracker.begin(task_key, successes, rollouts, version)

    def dispatch_value(self, task_key: str, version: int) -> float:
        return float(self.tracker.values([task_key])[0])  # v_q: both counts fade alike from their newest evidence to q

    def credit(self, turns: TurnBatch) -> Credit:
        """A = R - v_q of each trajectory, whitened under the action-token measure, on every token."""
        turns.require(self.requires, "spopp")
        trajectories = Trajectories.of(turns)
        reward = outcomes(turns, trajectories, self.config.reward_scale)
        value = np.asarray(turns.extras["dispatch_value"], float)[trajectories.first]
        if not ((value >= 0) & (value <= 1)).all():
            fix = "dispatch_value is the task's success rate, from 0 to 1, when the rollout was started"
            raise DataError("spopp reads success rates from the column dispatch_value, but a value there is not in [0, 1]", fix=fix)
        tokens = trajectories.tokens
        advantage = whiten(reward - value, tokens if self.config.whitening_measure == "token" else (tokens > 0).astype(float))
        diagnostics = stream_diagnostics(reward, value, advantage, tokens)
        return Credit(over_tokens(trajectories.over_turns(advantage, len(turns)), turns), diagnostics=diagnostics)

    def observe(self, turns: TurnBatch, score: Score) -> None:
        """Record every outcome under the policy version that generated it."""
        turns.require(("task_key", "policy_version"), "spopp")
        trajectories = Trajectories.of(turns)
        reward = outcomes(turns, trajectories, self.config.reward_scale)
        version = turns.policy_version[trajectories.last]
        for i in np.argsort(version, kind="stable"):  # the prior of a task that nobody initialised is as old as its oldest outcome
            self.tracker.record(str(turns.task_key[trajectories.first[i]]), float(reward[i]), int(version[i]))

    def diagnostics(self) -> dict[str, float]:
        """What the last collection did, and the number of known tasks."""
        return self.sampler.diagnostics() | {"value/tasks": float(len(self.tracker))}

    def state_dict(self) -> dict[str, Any]:
        return {"tracker": self.tracker.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tracker.load_state_dict(state["tracker"])
