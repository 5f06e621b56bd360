"""A search whose episodes live in other processes: the children of a state step at the same time, and nothing else changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.rollout.slow_worlds import (
    Hurrying,
    MeetingWorld,
    QuarrellingWorld,
    ReplayedSlowWorld,
    SlowConfig,
    SlowWorld,
)
from tests.rollout.test_adaptive_tree import Told
from tests.rollout.worker_plays import SAMPLERS, collected, iteration, told, workers_of
from threespo_bench.contracts.environment import Environment
from threespo_bench.contracts.sampler import RolloutContext
from threespo_bench.rollout.environment_workers import EnvironmentWorkers
from threespo_bench.turns import TurnBatch


def one_tree(environment: Environment, workers: EnvironmentWorkers | None, **more: Any) -> tuple[RolloutContext, AsyncIterator[TurnBatch]]:
    run = iteration(environment, workers, tasks=1, engine=Hurrying(), **more)
    return run, Told(4, search_key="place", env_steps_per_tree=20).collect(run)


def test_children_of_one_state_step_at_the_same_time(tmp_path: Path) -> None:
    environment = MeetingWorld(SlowConfig(notes=str(tmp_path)))
    with workers_of(environment, 2) as workers:
        _, waves = one_tree(environment, workers)
        assert [len(turns) for turns in collected(waves)] == [4] * 5
        assert {path.name for path in tmp_path.glob("step-*")} == {f"step-{process}" for process in workers.processes}


@pytest.mark.parametrize("env_steps", [1, 5, 9, 100_000])
def test_the_run_s_budget_ends_the_search_after_the_same_wave(env_steps: int) -> None:
    environment, found = SlowWorld(SlowConfig(delay=0.002)), []
    for count in (0, 2):
        with workers_of(environment, count) as workers:
            run, waves = one_tree(environment, workers, env_steps=env_steps)
            found.append(([told(turns) for turns in collected(waves)], run.budget.charges))
    assert found[0] == found[1]
    assert len(found[0][1]) == min(4 * -(-env_steps // 4), 20)


@pytest.mark.parametrize("kind", [SlowWorld, ReplayedSlowWorld])
@pytest.mark.parametrize(("fault", "times"), [("exit", 2), ("hang", 1)])
def test_a_crash_among_the_children_of_a_state_costs_nothing(tmp_path: Path, kind: type[SlowWorld], fault: str, times: int) -> None:
    run, waves = one_tree(kind(SlowConfig()), None)
    found = collected(waves)
    whole, charges = [told(turns) for turns in found], run.budget.charges
    command = found[2].extras["command"][1]  # of the second child of the third state
    environment = kind(SlowConfig(fault=fault, fault_command=command, times=times, notes=str(tmp_path)))
    with workers_of(environment, 2, timeout=5.0 if fault == "hang" else 60.0) as workers:
        run, waves = one_tree(environment, workers)
        assert ([told(turns) for turns in collected(waves)], run.budget.charges) == (whole, charges)
        counts = workers.take_counts()
        assert counts["environment/worker_crashes"] == times
        assert times <= counts["environment/episodes_retried"] <= 2 * times, "at most the copies of the worker"


def test_the_error_of_the_first_sample_is_raised_whichever_fails_first() -> None:
    environment, found = QuarrellingWorld(SlowConfig()), []
    for count in (0, 2):
        with workers_of(environment, count) as workers:
            run, waves = one_tree(environment, workers)
            with pytest.raises(ValueError, match="a fails slow-00") as error:
                collected(waves)
            found.append((str(error.value), run.budget.charges))
    assert found[0] == found[1] and len(found[0][1]) == 4


@pytest.mark.parametrize("name", SAMPLERS)
def test_an_error_ends_all_that_goes_on_at_the_same_time(tmp_path: Path, name: str) -> None:
    environment = SlowWorld(SlowConfig(fault="raise", fault_step=1, notes=str(tmp_path)))
    with pytest.raises(ZeroDivisionError):
        collected(SAMPLERS[name](iteration(environment, None)))


def test_a_search_that_is_over_needs_its_copies_no_more() -> None:
    class OneGivesUp(Told):
        def samples(self, task_key: str, key: str, root: bool) -> int:
            return 4 if root or task_key == "slow-01" else 0

    environment, loads = SlowWorld(SlowConfig()), []
    with workers_of(environment, 2) as workers:
        run = iteration(environment, workers, tasks=2)

        async def collect() -> None:
            async for _ in OneGivesUp(search_key="place", env_steps_per_tree=12).collect(run):
                loads.append([worker.load for worker in workers._workers])

        asyncio.run(collect())
    assert [sum(load) for load in loads] == [8, 4, 4]
