"""The loop: who is called when, what is measured when, when it ends, and that it learns from no stale policy."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runner import toy_bench
from threespo_bench.assembly import build
from threespo_bench.contracts.algorithm import Credit
from threespo_bench.errors import EngineError
from threespo_bench.training import TrainingRun, train


class Diary:
    """A run that writes down what happens to it."""

    def __init__(self, folder: Path, *overrides: str, seed: int = 0) -> None:
        self.run = build(toy_bench.configuration(folder, *overrides, seed=seed), toy_bench.host())
        self.calls: list[str] = []
        self.rows: list[tuple[str, dict[str, float]]] = []
        self.saved: list[int] = []
        self.run.log = self._log
        self.run.checkpoint = self._checkpoint

    def watch(self) -> Diary:
        """Write down the calls of one batch's life."""
        algorithm, engine = self.run.algorithm, self.run.engine
        for owner, name in ((algorithm, "credit"), (engine.learner, "update"), (algorithm, "observe"), (engine, "publish"), (algorithm, "diagnostics")):
            setattr(owner, name, self._noted(name, getattr(owner, name)))
        return self

    def train(self) -> bool:
        return asyncio.run(train(self.run))

    def kinds(self, kind: str) -> list[dict[str, float]]:
        return [row for logged, row in self.rows if logged == kind]

    def _noted(self, name: str, call: Any) -> Any:
        def noted(*arguments: Any) -> Any:
            self.calls.append(name)
            return call(*arguments)

        return noted

    def _log(self, kind: str, metrics: dict[str, float], seconds: dict[str, float]) -> None:
        self.calls.append(kind)
        self.rows.append((kind, dict(metrics)))
        assert all(value >= 0 for value in seconds.values())

    def _checkpoint(self) -> None:
        self.calls.append("checkpoint")
        self.saved.append(self.run.iteration)


NEVER = "evaluation.every_env_steps=1000000"


def test_a_batch_is_credited_learned_from_observed_and_published(tmp_path: Path) -> None:
    diary = Diary(tmp_path, "budget.iterations=2", "checkpoint.every_iterations=1", NEVER).watch()
    assert diary.train()
    batch = ["credit", "update", "observe", "publish", "diagnostics", "train"]
    assert diary.calls == ["eval", *batch, "checkpoint", *batch, "eval", "checkpoint"]


def test_every_turn_is_made_by_the_policy_published_last(tmp_path: Path) -> None:
    diary = Diary(tmp_path, "budget.iterations=4", NEVER)
    versions: list[set[int]] = []
    diary.run.keep_turns = lambda iteration, number, turns: versions.append(set(turns.policy_version.tolist()))
    diary.train()
    assert versions == [{0}, {1}, {2}, {3}]


def test_an_engine_that_forgets_what_was_published_stops_the_run(tmp_path: Path) -> None:
    diary = Diary(tmp_path, "engine.forget_publish=true")
    with pytest.raises(EngineError, match="stale weights: version 1 was published, but the rollout engine still generates with version 0"):
        diary.train()
    assert diary.kinds("train") == []


def test_turns_of_a_policy_that_was_never_published_are_refused(tmp_path: Path) -> None:
    diary = Diary(tmp_path)
    generate = diary.run.engine.rollout.generate

    async def ahead(*arguments: Any) -> Any:
        return replace(await generate(*arguments), policy_version=9)

    diary.run.engine.rollout.generate = ahead  # type: ignore[method-assign]
    diary.watch()
    with pytest.raises(EngineError, match="policy version 9, but 0 is the newest published"):
        diary.train()
    assert "update" not in diary.calls


# ---- evaluation


def test_evaluations_come_at_the_start_at_every_mark_and_at_the_end(tmp_path: Path) -> None:
    diary = Diary(tmp_path, "budget.iterations=9", "evaluation.every_env_steps=100")
    diary.train()
    steps = [int(row["env_steps"]) for row in diary.kinds("eval")]
    after = [0, *(int(row["env_steps"]) for row in diary.kinds("train"))]
    passed_a_mark = [now for before, now in pairwise(after) if now // 100 > before // 100]
    assert len(passed_a_mark) > 2
    assert steps == sorted({0, *passed_a_mark, after[-1]})


def test_evaluation_costs_no_budget_and_changes_nothing(tmp_path: Path) -> None:
    often, seldom = (Diary(tmp_path, "budget.iterations=5", f"evaluation.every_env_steps={steps}") for steps in (1, 10**6))
    often.train()
    seldom.train()
    assert len(often.kinds("eval")) > len(seldom.kinds("eval")) == 2
    assert often.kinds("train") == seldom.kinds("train")
    assert often.kinds("eval")[-1] == seldom.kinds("eval")[-1]


def test_evaluation_rows_have_the_axes_and_the_results(tmp_path: Path) -> None:
    diary = Diary(tmp_path, "budget.iterations=3")
    diary.train()
    row = diary.kinds("eval")[-1]
    spent = diary.run.budget.spent
    assert (row["iteration"], row["env_steps"], row["tokens"], row["episodes"], row["updates"]) == (3, spent.env_steps, spent.tokens, spent.episodes, 3)
    assert {"success", "return", "truncated", "success/kind0", "success/kind1"} <= row.keys()
    assert row["episodes_evaluated"] == 6


# ---- endings


@pytest.mark.parametrize(("name", "limit"), [("env_steps", 200), ("tokens", 200), ("updates", 4), ("iterations", 4)])
def test_a_run_ends_with_the_iteration_that_reaches_a_limit(tmp_path: Path, name: str, limit: int) -> None:
    diary = Diary(tmp_path, "budget.iterations=null", f"budget.{name}={limit}", NEVER)
    assert diary.train()
    reached = [row["iteration" if name == "iterations" else name] for row in diary.kinds("train")]
    assert reached[-1] >= limit > reached[-2]


def test_a_run_that_is_asked_to_stop_finishes_its_iteration_and_can_go_on(tmp_path: Path) -> None:
    diary = Diary(tmp_path, "checkpoint.every_iterations=100", NEVER)
    diary.run.should_stop = lambda: diary.run.iteration >= 2
    assert not diary.train()
    assert len(diary.kinds("train")) == 2
    assert diary.saved == [2]


@pytest.mark.parametrize(("every", "saved"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (5, [5]), (9, [5])])
def test_checkpoints(tmp_path: Path, every: int, saved: list[int]) -> None:
    diary = Diary(tmp_path, "budget.iterations=5", f"checkpoint.every_iterations={every}", NEVER)
    diary.train()
    assert diary.saved == saved


def test_a_spent_budget_trains_nothing(tmp_path: Path) -> None:
    diary = Diary(tmp_path, "budget.iterations=1", NEVER)
    diary.run.budget.charge(iterations=1)
    assert diary.train()
    assert (diary.kinds("train"), diary.saved) == ([], [])


# ---- matched comparisons


def first_iterations(folder: Path, *overrides: str, seed: int = 0) -> list[list[tuple[str, int, str]]]:
    """Of three iterations: task, step and what was done."""
    diary = Diary(folder, "budget.iterations=3", NEVER, *overrides, seed=seed)
    kept: list[list[tuple[str, int, str]]] = []
    diary.run.keep_turns = lambda _, __, turns: kept.append(list(zip(turns.task_key, turns.step_id.tolist(), turns.extras["command"], strict=True)))
    diary.train()
    return kept


def test_equal_seeds_are_equal_runs_and_other_seeds_are_others(tmp_path: Path) -> None:
    assert first_iterations(tmp_path) == first_iterations(tmp_path)
    assert first_iterations(tmp_path) != first_iterations(tmp_path, seed=1)


def test_algorithms_with_one_seed_get_the_same_tasks_and_the_same_noise(tmp_path: Path) -> None:
    small, large = (first_iterations(tmp_path, f"algorithm.group_size={size}") for size in (2, 5))
    for few, many in zip(small, large, strict=True):
        assert list(dict.fromkeys(task for task, _, _ in few)) == list(dict.fromkeys(task for task, _, _ in many))
    # The weights are still equal in the first iteration, so what the first rollout of the first task does is equal too.
    length = next(place for place in range(1, len(small[0]) + 1) if place == len(small[0]) or small[0][place][1] == 0)
    assert small[0][:length] == large[0][:length]


# ---- what is kept


def test_rows_of_the_training_metrics(tmp_path: Path) -> None:
    diary = Diary(tmp_path, "budget.iterations=3")
    diary.train()
    rows = diary.kinds("train")
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    assert [row["updates"] for row in rows] == [1, 2, 3]
    assert all(first["env_steps"] < second["env_steps"] for first, second in pairwise(rows))
    assert {"train/success", "credit/spread", "update/loss", "update/grad_norm_max", "states/known"} <= rows[-1].keys()


def test_the_turns_of_a_run_are_handed_over_if_it_keeps_them(tmp_path: Path) -> None:
    diary = Diary(tmp_path, "budget.iterations=2")
    kept: list[tuple[int, int, int]] = []
    diary.run.keep_turns = lambda iteration, number, turns: kept.append((iteration, number, len(turns)))
    diary.train()
    assert [place for *place, _ in kept] == [[0, 0], [1, 0]]
    assert sum(number for *_, number in kept) == diary.run.budget.spent.env_steps


def test_a_run_goes_on_from_its_state(tmp_path: Path) -> None:
    whole = Diary(tmp_path, "budget.iterations=6", "evaluation.every_env_steps=60")
    whole.train()
    first = Diary(tmp_path, "budget.iterations=6", "evaluation.every_env_steps=60")
    first.run.should_stop = lambda: first.run.iteration >= 2
    first.train()
    second = Diary(tmp_path, "budget.iterations=6", "evaluation.every_env_steps=60")
    _continue(first.run, second.run, tmp_path)
    second.train()
    assert [*first.rows, *second.rows] == whole.rows


def _continue(old: TrainingRun, new: TrainingRun, folder: Path) -> None:
    old.engine.learner.save(folder)
    new.engine.learner.load(folder)
    new.engine.publish()
    new.algorithm.load_state_dict(old.algorithm.state_dict())
    new.load_state_dict(old.state_dict())


def test_a_sampler_may_yield_nothing(tmp_path: Path) -> None:
    diary = Diary(tmp_path, "budget.iterations=2", NEVER)

    async def nothing(context: Any) -> Any:
        return
        yield

    diary.run.algorithm.collect = nothing  # type: ignore[method-assign]
    assert diary.train()
    assert [row["train/turns"] for row in diary.kinds("train")] == [0, 0]


def test_many_batches_an_iteration_are_so_many_updates(tmp_path: Path) -> None:
    diary = Diary(tmp_path, "budget.iterations=2", NEVER)
    collect = diary.run.algorithm.collect

    async def halves(context: Any) -> Any:
        async for turns in collect(context):
            rows = np.arange(len(turns))
            yield turns.take(rows[: len(rows) // 2])
            yield turns.take(rows[len(rows) // 2 :])

    diary.run.algorithm.collect = halves  # type: ignore[method-assign]
    diary.watch().train()
    assert diary.calls.count("publish") == 4
    assert [(row["updates"], row["train/batches"]) for row in diary.kinds("train")] == [(2, 2), (4, 2)]


def test_diagnostics_of_the_credit_are_metrics(tmp_path: Path) -> None:
    diary = Diary(tmp_path, "budget.iterations=1", NEVER)
    diary.run.algorithm.credit = lambda turns: Credit(np.zeros(turns.response_mask.shape), diagnostics={"mine/share": 0.25})  # type: ignore[method-assign]
    diary.train()
    assert diary.kinds("train")[0]["mine/share"] == 0.25


def test_the_reference_moves_at_the_end_of_the_iterations_that_the_algorithm_says(tmp_path: Path) -> None:
    diary = Diary(tmp_path, "budget.iterations=5", NEVER, "checkpoint.every_iterations=2").watch()
    asked: list[int] = []
    diary.run.algorithm.refreshes_reference = lambda iteration: asked.append(iteration) or iteration % 2 == 0  # type: ignore[method-assign]
    diary.run.engine.learner.refresh_reference = lambda: diary.calls.append("refresh")  # type: ignore[method-assign]
    diary.train()
    assert asked == [1, 2, 3, 4, 5]
    batch = ["credit", "update", "observe", "publish"]
    rest = ["diagnostics", "train"]
    assert diary.calls[1:-2] == [*batch, *rest, *batch, "refresh", *rest, "checkpoint"] * 2 + [*batch, *rest]
    quiet = Diary(tmp_path, "budget.iterations=2", NEVER)
    assert quiet.train(), "by default nobody asks the learner for a reference"
