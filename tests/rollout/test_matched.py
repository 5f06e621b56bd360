"""GRPO, GiGPO and 3SPO with one seed: the same tasks, the same evaluation, one budget. The policy never learns, so nothing else may differ."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.rollout.players import Drawing, household
from threespo_bench.assembly import load_parts
from threespo_bench.budget import Budget
from threespo_bench.config.compose import compose
from threespo_bench.contracts.engine import Engine, Learner
from threespo_bench.host import PluginHost
from threespo_bench.seeding import Streams
from threespo_bench.tasks import TaskStream
from threespo_bench.training import TrainingRun, train

ALGORITHMS = ("grpo", "gigpo", "3spo", "3spo@paper")
SETTINGS = [
    "budget.env_steps=150", "evaluation.episodes=5", "evaluation.every_env_steps=60", "rollout.max_turns=5", "algorithm.tasks_per_iteration=4",
    "env.receptacles_min=6", "env.receptacles_max=6", "env.list_admissible=true", "env.train_tasks=12",
]  # fmt: skip


class Idle(Learner):
    """Counts what it is given and learns nothing."""

    def __init__(self) -> None:
        self.turns = 0

    def update(self, turns: Any, credit: Any, objective: Any, optimization: Any) -> dict[str, float]:
        self.turns += len(turns)
        return {"optimizer_steps": 1.0}

    def score(self, turns: Any, policy: str = "actor") -> Any: ...
    def save(self, folder: Any) -> None: ...
    def load(self, folder: Any) -> None: ...
    def export(self, folder: Any) -> None: ...


class Still(Engine):
    """Publishes the same policy again and again."""

    Config = object

    def __init__(self) -> None:
        self.rollout, self.learner = Drawing(), Idle()

    def publish(self) -> int:
        self.rollout.version += 1
        return self.rollout.version

    def digest(self) -> str:
        return ""


class Played:
    """One finished run."""

    def __init__(self, algorithm: str, seed: int = 0) -> None:
        host = PluginHost.discover()
        name, _, preset = algorithm.partition("@")
        config = compose(name, "household", [*SETTINGS, *([f"algorithm.preset={preset}"] if preset else [])], host, seed=seed)
        parts = load_parts(config, host)
        streams = Streams(seed)
        self.tasks: list[list[str]] = []
        self.evaluations: list[dict[str, float]] = []
        self.engine = Still()
        self.run = TrainingRun(
            config, parts.algorithm, household(), self.engine, streams, Budget(config.budget), TaskStream(parts.training_tasks, streams),
            parts.evaluation_tasks, self._log, checkpoint=lambda: None, keep_turns=self._keep,
        )  # fmt: skip
        asyncio.run(train(self.run))

    def _log(self, kind: str, metrics: dict[str, float], seconds: dict[str, float]) -> None:
        if kind == "eval":
            axes = ("iteration", "env_steps", "tokens", "prompt_tokens", "episodes", "updates")
            self.evaluations.append({name: value for name, value in metrics.items() if name not in axes})

    def _keep(self, iteration: int, number: int, turns: Any) -> None:
        if len(self.tasks) <= iteration:
            self.tasks.append([])
        self.tasks[iteration] += [key for key in dict.fromkeys(turns.task_key) if key not in self.tasks[iteration]]


@pytest.fixture(scope="module")
def played() -> dict[str, Played]:
    return {name: Played(name) for name in ALGORITHMS}


def test_the_same_tasks_in_the_same_order(played: dict[str, Played]) -> None:
    orders = [run.tasks[0] for run in played.values()]
    assert all(order == orders[0] for order in orders)
    assert len(orders[0]) == 4
    assert Played("grpo", seed=1).tasks[0] != orders[0]


def test_the_same_evaluation(played: dict[str, Played]) -> None:
    rows = [row for run in played.values() for row in run.evaluations]
    assert len(rows) >= 2 * len(ALGORITHMS)
    assert all(row == rows[0] for row in rows), "the policy is always the same, and so is what is played with it"


def test_one_budget_counts_every_step_of_all(played: dict[str, Played]) -> None:
    for name, run in played.items():
        spent = run.run.budget.spent
        assert spent.env_steps == run.engine.learner.turns >= 150, name
        assert spent.updates == run.engine.rollout.version
        assert spent.env_steps < 150 + 4 * 8 * 5, "no further than the iteration or wave that reached the limit"


def test_a_search_learns_in_waves_and_rollouts_at_the_end(played: dict[str, Played]) -> None:
    updates = {name: run.run.budget.spent.updates / run.run.iteration for name, run in played.items()}
    assert updates["grpo"] == updates["gigpo"] == 1
    assert updates["3spo"] > 2
