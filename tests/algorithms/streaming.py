"""Single-stream methods at work: recorded batches, and whole runs in the toy bench that can be stopped and resumed."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import threespo_algorithms
from tests.runner import toy_bench
from threespo_bench.assembly import build
from threespo_bench.checkpointing import read_state, write_state
from threespo_bench.config.compose import compose
from threespo_bench.config.schema import RunConfig
from threespo_bench.host import PluginHost
from threespo_bench.training import TrainingRun, train
from threespo_bench.turns import TurnBatch, object_column


def stream_turns(outcomes: list[float], turn_lengths: list[list[int]], values: list[float] | None = None, task_keys: list[str] | None = None) -> TurnBatch:
    """One trajectory per outcome with turns of the given numbers of tokens; ``values`` become ``dispatch_value``, outcomes 0 and 1 ``success``."""
    rows = [(i, step, length) for i, lengths in enumerate(turn_lengths) for step, length in enumerate(lengths)]
    owner, step, length = (np.array(column) for column in zip(*rows, strict=True))
    last = np.array([step[row] == len(turn_lengths[owner[row]]) - 1 for row in range(len(rows))])
    mask = np.arange(max(length.max(), 1)) < length[:, None]
    names = task_keys or [f"t{i}" for i in range(len(outcomes))]
    return TurnBatch(
        group_id=[f"0/{i}" for i in owner], traj_id=[f"0/{i}/0" for i in owner], step_id=step, step_reward=np.array(outcomes)[owner] * last * 10.0,
        response_mask=mask, task_key=[names[i] for i in owner], success=(np.array(outcomes)[owner] > 0) & last, policy_version=np.zeros(len(rows)),
        response_ids=np.where(mask, 5, 0), old_log_probs=np.where(mask, -1.0, 0.0), padding=np.zeros(len(rows), bool),
        prompt_ids=object_column([np.arange(2 + s, dtype=np.int32) for s in step]),
        extras={} if values is None else {"dispatch_value": np.array(values)[owner]},
    )  # fmt: skip


def of_trajectories(advantages: np.ndarray, turns: TurnBatch) -> list[float]:
    """The advantage of each trajectory, read at its first token; all its tokens must have the same."""
    found = []
    for name in dict.fromkeys(turns.traj_id):
        inside = advantages[turns.traj_id == name][turns.response_mask[turns.traj_id == name]]
        assert (inside == inside[0]).all()
        found.append(float(inside[0]))
    return found


@lru_cache
def _configured(folder: Path, algorithm: str, overrides: tuple[str, ...]) -> tuple[RunConfig, PluginHost]:
    settings = ["engine=table", "model=nothing", "tracker=none", "budget.env_steps=null", "budget.iterations=4", "evaluation.every_env_steps=1000000"]
    settings += ["evaluation.episodes=2", "algorithm.objective.kl_coef=0", "algorithm.tasks_per_iteration=10", *overrides]
    host = PluginHost.from_plugins([toy_bench, threespo_algorithms], strict=True)
    return compose(algorithm, "corridor", settings, host, seed=0, out=str(folder), experiment="test"), host


class ToyRun:
    """A run in the corridor of the toy bench, with a learner that can score."""

    def __init__(self, folder: Path, algorithm: str, *overrides: str) -> None:
        config, host = _configured(folder, algorithm, overrides)
        self.run: TrainingRun = build(config, host)
        self.run.engine.learner.score = self._score  # type: ignore[method-assign]
        self.rows: list[dict[str, float]] = []
        self.run.log = lambda kind, metrics, seconds: self.rows.append({"kind": kind, **metrics})  # type: ignore[dict-item]

    def train(self, stop_at: int | None = None) -> ToyRun:
        self.run.should_stop = lambda: self.run.iteration == stop_at
        asyncio.run(train(self.run))
        return self

    def continue_from(self, other: ToyRun, folder: Path) -> ToyRun:
        """Take over the state of a stopped run, by way of the files of a checkpoint."""
        other.run.engine.learner.save(folder)
        self.run.engine.learner.load(folder)
        self.run.engine.publish()
        write_state(folder, "algorithm", other.run.algorithm.state_dict(), "the test")
        self.run.algorithm.load_state_dict(read_state(folder, "algorithm"))
        self.run.load_state_dict(other.run.state_dict())
        return self

    def _score(self, turns: TurnBatch, policy: str = "actor") -> np.ndarray:
        table: Any = self.run.engine.table  # type: ignore[attr-defined]
        tokens = [table.log_probs(table.logits, int(turns.prompt_ids[row][0]))[turns.response_ids[row, 0]] for row in range(len(turns))]
        return np.where(turns.response_mask, np.array(tokens)[:, None], 0.0)
