"""Evaluation: what is counted, and that it is the same experiment every time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.rollout.players import Drawing, Knowing, Player, household
from threespo_bench.contracts.engine import Generation, Sampling
from threespo_bench.contracts.environment import Step, Task
from threespo_bench.errors import EngineError
from threespo_bench.rollout.evaluation import evaluate
from threespo_bench.seeding import Streams
from threespo_bench.turns import TurnBatch
from threespo_envs.household.environment import HouseholdEnvironment

SAMPLING = Sampling(temperature=0.4, max_new_tokens=9)


def run(environment: HouseholdEnvironment, player: Player, tasks: list[Task], seed: int = 0, max_turns: int = 20) -> dict[str, float]:
    return asyncio.run(evaluate(environment, player, tasks, Streams(seed), SAMPLING, max_turns))


def test_success_as_a_whole_and_by_kind_of_task() -> None:
    environment = household()
    tasks = environment.tasks("valid_unseen")  # two of each of the six kinds
    solved = [*tasks[:6], tasks[6]]
    metrics = run(environment, Knowing(environment, solved), tasks)
    assert metrics["success"] == pytest.approx(7 / 12)
    assert metrics["truncated"] == pytest.approx(5 / 12)
    assert metrics["return"] == pytest.approx(10 * 7 / 12)
    assert metrics["valid_actions"] == 1
    assert metrics["episodes_evaluated"] == 12
    lengths = [len(environment.load_game(task).walkthrough) for task in solved] + [20] * 5
    assert metrics["turns"] == pytest.approx(sum(lengths) / 12)
    by_kind = {name.partition("/")[2]: value for name, value in metrics.items() if name.startswith("success/")}
    assert by_kind == {task.kind: 1.0 if task is tasks[0] else 0.5 for task in tasks[:6]}


def test_a_time_out_is_no_success() -> None:
    environment = household()
    metrics = run(environment, Drawing(), environment.tasks("valid_unseen"), max_turns=1)
    assert (metrics["success"], metrics["truncated"], metrics["turns"]) == (0, 1, 1)
    assert 0.6 < metrics["valid_actions"] < 1


class Scored(HouseholdEnvironment):
    """It tells how well it went of the tasks that were won."""

    def step(self, command: str) -> Step:
        step = super().step(command)
        return replace(step, score=0.75 if step.success else None)


def test_the_score_is_that_of_the_last_turn_and_none_counts_as_nothing() -> None:
    environment = household(Scored)
    tasks = environment.tasks("valid_unseen")
    assert run(environment, Knowing(environment, tasks[:4]), tasks)["score"] == pytest.approx(0.75 * 4 / 12)
    assert "score" not in run(environment, Drawing(), tasks, max_turns=1)
    assert "score" not in run(household(), Drawing(), tasks[:2])


def test_the_same_noise_every_time_whatever_is_evaluated_beside() -> None:
    environment = household()
    tasks = environment.tasks("valid_unseen")
    players = [Drawing() for _ in range(4)]
    first = run(environment, players[0], tasks)
    assert first == run(environment, players[1], tasks)
    assert sorted(players[0].requests, key=repr) == sorted(players[1].requests, key=repr)
    assert first == run(environment, players[2], tasks[::-1])
    run(environment, players[3], tasks[:2])
    assert set(map(repr, players[3].requests)) <= set(map(repr, players[0].requests))


def test_another_seed_is_other_noise() -> None:
    environment = household()
    tasks = environment.tasks("valid_unseen")
    one, other = Drawing(), Drawing()
    run(environment, one, tasks, seed=0)
    run(environment, other, tasks, seed=1)
    assert not {seed for _, seed, _ in one.requests} & {seed for _, seed, _ in other.requests}


def test_sampling_is_as_asked_for() -> None:
    environment, player = household(), Drawing()
    run(environment, player, environment.tasks("valid_unseen")[:2])
    assert {sampling for _, _, sampling in player.requests} == {SAMPLING}


def test_some_turns_from_all_over_the_episodes_are_looked_at_again() -> None:
    environment, looked = household(), []
    tasks = environment.tasks("valid_unseen")[:3]
    metrics = asyncio.run(evaluate(environment, Knowing(environment, tasks), tasks, Streams(0), SAMPLING, 20, verify=looked.append))
    (turns,) = looked
    assert metrics["turns"] * 3 > len(turns) == 8
    assert set(turns.task_key) == {task.key for task in tasks}
    assert turns.step_id[0] == 0 and turns.terminated[-1], "the first turn of all and the last"
    one = asyncio.run(evaluate(environment, Drawing(), tasks[:1], Streams(0), SAMPLING, 1, verify=looked.append))
    assert (one["turns"], len(looked[1])) == (1, 1)


def test_turns_that_are_not_what_they_should_be_give_no_result() -> None:
    def refuse(turns: TurnBatch) -> None:
        raise EngineError("stale weights")

    environment = household()
    with pytest.raises(EngineError, match="stale weights"):
        asyncio.run(evaluate(environment, Drawing(), environment.tasks("valid_unseen")[:2], Streams(0), SAMPLING, 2, verify=refuse))


def test_an_error_in_one_episode_ends_the_others() -> None:
    environment = household()
    tasks = environment.tasks("valid_unseen")[:3]

    class Failing(Drawing):
        asked = 0

        async def generate(self, *arguments: object, **more: object) -> Generation:
            self.asked += 1
            if self.asked == len(tasks):
                raise EngineError("gone")
            await asyncio.sleep(3600)
            raise AssertionError

    async def left() -> set[asyncio.Task[object]]:
        before = asyncio.all_tasks()
        with pytest.raises(EngineError, match="gone"):
            await evaluate(environment, Failing(), tasks, Streams(0), SAMPLING, 2)
        return asyncio.all_tasks() - before

    assert asyncio.run(left()) == set()
