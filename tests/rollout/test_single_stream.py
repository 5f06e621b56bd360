"""The sampler ``single_stream``: who is drawn, what a batch waits for, what becomes of the rest, and that nothing is left running."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.rollout.players import Drawing, Knowing, context, household
from threespo_bench.budget import Limits
from threespo_bench.contracts.algorithm import AlgorithmConfig, Credit
from threespo_bench.contracts.environment import Task
from threespo_bench.contracts.sampler import RolloutContext
from threespo_bench.errors import EngineError
from threespo_bench.rollout import single_stream
from threespo_bench.rollout.single_stream import Dispatcher, SingleStreamSampler, StreamAlgorithm, TaskChoice
from threespo_bench.turns import TurnBatch


@dataclass
class StreamOptions(AlgorithmConfig):
    """The sampler's options as those of an algorithm."""

    collection: str = "batch"
    episodes: int = 6
    batch_episodes: int = 6
    in_flight: int = 3
    unfinished: str = "drop"
    offline_rollouts: int = 0


class Noting(StreamAlgorithm):
    """Writes down what it is asked; every dispatch gets a value of its own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(StreamOptions(**options))
        config = self.config
        self.sampler = SingleStreamSampler(
            config.episodes, config.collection, config.batch_episodes, config.in_flight, config.unfinished, config.offline_rollouts
        )
        self.weights: dict[str, float] = {}
        self.begun: dict[str, tuple[int, int, int]] = {}
        self.dispatched: list[tuple[str, int, float]] = []

    def task_weights(self, task_keys: Sequence[str]) -> np.ndarray:
        return np.array([self.weights.get(key, 1.0) for key in task_keys])

    def knows(self, task_key: str) -> bool:
        return task_key in self.begun

    def initialise(self, task_key: str, successes: int, rollouts: int, version: int) -> None:
        assert task_key not in self.begun
        self.begun[task_key] = (successes, rollouts, version)

    def dispatch_value(self, task_key: str, version: int) -> float:
        assert task_key in self.begun, "initialised before it is used"
        self.dispatched.append((task_key, version, len(self.dispatched) / 100))
        return self.dispatched[-1][-1]

    def credit(self, turns: TurnBatch) -> Credit:
        raise NotImplementedError


def collect(algorithm: Noting, run: RolloutContext) -> list[TurnBatch]:
    """The batches of one iteration; fails if a task is still running at the end, or if the event loop had anything to complain of."""
    complaints: list[dict[str, Any]] = []

    async def gather() -> list[TurnBatch]:
        asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))
        try:
            return [turns async for turns in algorithm.collect(run)]
        finally:
            assert asyncio.all_tasks() == {asyncio.current_task()}, "something is still running"

    try:
        return asyncio.run(gather())
    finally:
        assert complaints == []


def pool(count: int = 12, **options: Any) -> tuple[Any, list[Task]]:
    environment = household(**options)
    return environment, environment.tasks("train")[:count]


def lengths(turns: TurnBatch) -> dict[str, int]:
    return dict(Counter(turns.traj_id))


# ---- which tasks


def tasks(count: int) -> list[Task]:
    return [Task(f"t{i}", "kind", "train") for i in range(count)]


def test_tasks_are_drawn_in_proportion_to_their_weights() -> None:
    weights = np.array([0.537498, 0.279061, 0.279061])
    first, second = Counter(), Counter()
    for seed in range(3000):
        choice = TaskChoice(tasks(3), lambda keys: weights, np.random.default_rng(seed))
        first[choice.next().key] += 1
        second[choice.next().key] += 1
    chances = weights / weights.sum()
    assert [first[f"t{i}"] / 3000 for i in range(3)] == pytest.approx(chances, abs=0.03)
    # Without replacement: the first task comes second after either of the others, with its share of what is left.
    assert second["t0"] / 3000 == pytest.approx(2 * chances[1] * chances[0] / (chances[0] + chances[2]), abs=0.03)


def test_the_order_of_the_pool_does_not_matter() -> None:
    def drawn(candidates: list[Task]) -> list[str]:
        choice = TaskChoice(candidates, lambda keys: np.array([1.0 + int(key[1:]) for key in keys]), np.random.default_rng(3))
        return [choice.next().key for _ in range(12)]

    assert drawn(tasks(8)) == drawn(tasks(8)[::-1])


def test_no_task_comes_again_before_all_have_come() -> None:
    choice = TaskChoice(tasks(5), lambda keys: np.array([1e6, 1, 1, 1, 1]), np.random.default_rng(0))
    drawn = [choice.next().key for _ in range(15)]
    assert [len(set(drawn[i : i + 5])) for i in (0, 5, 10)] == [5, 5, 5]


def test_busy_tasks_are_passed_over_and_keep_their_place() -> None:
    choice = TaskChoice(tasks(4), lambda keys: np.ones(4), np.random.default_rng(0))
    order = [task.key for task in choice.upcoming(4)]
    assert choice.next(busy={order[0], order[1]}).key == order[2]
    assert [choice.next().key for _ in range(3)] == [order[0], order[1], order[3]]
    assert choice.next(busy=set(order[:3])).key == order[3]


@pytest.mark.parametrize("options", [{}, {"collection": "first_completed"}])
def test_heavy_tasks_come_first_whatever_the_order_of_the_pool(options: dict[str, Any]) -> None:
    environment, candidates = pool()
    seen = []
    for order in (candidates, candidates[::-1]):
        algorithm = Noting(**options)
        algorithm.weights = {task.key: 1e9 for task in candidates[4:7]}
        collect(algorithm, context(environment, Drawing(), [], pool=order))
        seen.append([key for key, *_ in algorithm.dispatched])
    assert set(seen[0][:3]) == {task.key for task in candidates[4:7]}
    assert seen[0] == seen[1]


# ---- the batch


def test_a_batch_of_single_rollouts() -> None:
    environment, candidates = pool()
    algorithm = Noting()
    (turns,) = collect(algorithm, context(environment, Drawing(), [], pool=candidates, iteration=4))
    assert set(turns.traj_id) == {f"4/{index}/0" for index in range(6)}
    assert len(set(turns.task_key)) == len(set(turns.group_id)) == 6
    ended = turns.terminated | turns.truncated
    assert ended.sum() == 6


@pytest.mark.parametrize("options", [{}, {"collection": "first_completed"}, {"collection": "first_completed", "unfinished": "finish"}])
def test_value_and_version_are_those_of_the_dispatch(options: dict[str, Any]) -> None:
    environment, candidates = pool()
    player, algorithm = Drawing(), Noting(**options)
    player.version = 7
    (turns,) = collect(algorithm, context(environment, player, [], pool=candidates))
    for row in range(len(turns)):
        index = int(turns.traj_id[row].split("/")[1])
        assert algorithm.dispatched[index] == (turns.task_key[row], 7, turns.extras["dispatch_value"][row])
    assert (turns.extras["dispatch_version"] == turns.policy_version).all() and turns.policy_version[0] == 7


def test_more_rollouts_than_tasks() -> None:
    environment, candidates = pool(4)
    algorithm = Noting(episodes=10)
    (turns,) = collect(algorithm, context(environment, Drawing(), [], pool=candidates))
    assert sorted(Counter(key for key, *_ in algorithm.dispatched).values()) == [2, 2, 3, 3]
    assert len(lengths(turns)) == 10


def test_without_a_pool_the_tasks_of_the_iteration_are_the_pool() -> None:
    environment, candidates = pool(3)
    algorithm = Noting(episodes=3)
    collect(algorithm, context(environment, Drawing(), candidates))
    assert {key for key, *_ in algorithm.dispatched} == {task.key for task in candidates}


@pytest.mark.parametrize("options", [{}, {"collection": "first_completed"}, {"collection": "first_completed", "offline_rollouts": 2, "unfinished": "finish"}])
def test_equal_runs_give_equal_batches_and_other_seeds_and_iterations_do_not(options: dict[str, Any]) -> None:
    environment, candidates = pool()

    def told(iteration: int = 0, seed: int = 0) -> list[tuple[Any, ...]]:
        (turns,) = collect(Noting(**options), context(environment, Drawing(), [], pool=candidates, iteration=iteration, seed=seed, max_turns=9))
        return list(zip(turns.task_key, turns.step_id.tolist(), turns.extras["command"], turns.extras["dispatch_value"].tolist(), strict=True))

    assert told() == told()
    assert told() != told(seed=1) and told() != told(iteration=1)


# ---- first completed


class Watched(Dispatcher):
    """Knows at every moment what is in flight."""

    flying: list[str] = []
    most = 0

    async def _play(self, request: Any) -> None:
        Watched.flying.append(request.task.key)
        assert len(set(Watched.flying)) == len(Watched.flying), "two rollouts of a task in flight"
        Watched.most = max(Watched.most, len(Watched.flying))
        try:
            await super()._play(request)
        finally:
            Watched.flying.remove(request.task.key)


def uneven(candidates: list[Task], environment: Any) -> Knowing:
    """Half of the tasks are solved on the shortest way, the others run into the step limit."""
    return Knowing(environment, candidates[::2])


@pytest.mark.parametrize(("tasks_in_pool", "in_flight", "most"), [(12, 4, 4), (3, 8, 3), (1, 4, 1)])
def test_so_many_in_flight_and_never_two_of_a_task(monkeypatch: pytest.MonkeyPatch, tasks_in_pool: int, in_flight: int, most: int) -> None:
    monkeypatch.setattr(single_stream, "Dispatcher", Watched)
    environment, candidates = pool(tasks_in_pool)
    Watched.flying, Watched.most = [], 0
    algorithm = Noting(collection="first_completed", batch_episodes=12, episodes=12, in_flight=in_flight)
    collect(algorithm, context(environment, uneven(candidates, environment), [], pool=candidates, max_turns=20))
    assert Watched.most == most and Watched.flying == []


def test_what_is_dropped_stays_charged() -> None:
    environment, candidates = pool()
    run = context(environment, uneven(candidates, environment), [], pool=candidates, max_turns=30)
    algorithm = Noting(collection="first_completed", batch_episodes=4, episodes=4, in_flight=6)
    (turns,) = collect(algorithm, run)
    seen = algorithm.sampler.diagnostics()
    completed, dropped = seen["stream/completed"], seen["stream/dropped"]
    assert completed >= 4 and dropped > 0 and completed + dropped == len(algorithm.dispatched)
    assert run.budget.spent.env_steps == len(turns) + dropped * seen["stream/dropped_turns"] > len(turns)
    assert run.budget.spent.episodes == completed == len(lengths(turns))
    assert seen["stream/completed_turns"] == len(turns) / completed
    assert (turns.terminated | turns.truncated).sum() == completed, "what is in the batch has ended"


def test_what_is_finished_joins_the_batch() -> None:
    environment, candidates = pool()
    run = context(environment, uneven(candidates, environment), [], pool=candidates, max_turns=30)
    algorithm = Noting(collection="first_completed", batch_episodes=4, episodes=4, in_flight=6, unfinished="finish")
    (turns,) = collect(algorithm, run)
    seen = algorithm.sampler.diagnostics()
    assert seen["stream/dropped"] == 0 and seen["stream/completed"] == len(algorithm.dispatched) == len(lengths(turns)) > 4
    assert run.budget.spent.env_steps == len(turns)
    assert seen["stream/waiting_share"] > 0, "a place is empty while the last ones are waited for"
    assert [int(name.split("/")[1]) for name in lengths(turns)] == list(range(len(algorithm.dispatched)))


def test_dropping_prefers_short_rollouts_and_shows_it() -> None:
    environment, candidates = pool()
    algorithm = Noting(collection="first_completed", batch_episodes=3, episodes=3, in_flight=8)
    (turns,) = collect(algorithm, context(environment, uneven(candidates, environment), [], pool=candidates, max_turns=40))
    assert turns.success[turns.terminated].all() and not turns.truncated.any(), "none that runs into the limit is among the first"


def test_an_iteration_of_many_batches() -> None:
    environment, candidates = pool()
    algorithm = Noting(collection="first_completed", batch_episodes=4, episodes=10, in_flight=2)
    batches = collect(algorithm, context(environment, Drawing(), [], pool=candidates))
    completed = [len(lengths(turns)) for turns in batches]
    assert len(batches) >= 2 and all(number >= 4 for number in completed) and sum(completed[:-1]) < 10 <= sum(completed)
    ids = [name for turns in batches for name in lengths(turns)]
    assert len(set(ids)) == len(ids)


def test_a_spent_budget_ends_the_iteration_after_the_batch() -> None:
    environment, candidates = pool()
    algorithm = Noting(collection="first_completed", batch_episodes=4, episodes=100, in_flight=2)
    assert len(collect(algorithm, context(environment, Drawing(), [], pool=candidates, limits=Limits(env_steps=1)))) == 1


def test_waiting_is_the_share_of_empty_places() -> None:
    environment, candidates = pool()
    algorithm = Noting(episodes=8)
    (turns,) = collect(algorithm, context(environment, uneven(candidates, environment), [], pool=candidates, max_turns=30))
    per_rollout = list(lengths(turns).values())
    assert algorithm.sampler.diagnostics()["stream/waiting_share"] == pytest.approx(1 - sum(per_rollout) / (8 * max(per_rollout)))


# ---- before the first use


def test_rollouts_before_the_first_use() -> None:
    environment, candidates = pool(4)
    player, algorithm = Knowing(environment, candidates[:2]), Noting(episodes=4, offline_rollouts=3)
    run = context(environment, player, [], pool=candidates, max_turns=12)
    (first,) = collect(algorithm, run)
    solved = {task.key: 3 * bool(first.success[first.task_key == task.key].any()) for task in candidates}
    assert algorithm.begun == {key: (wins, 3, 0) for key, wins in solved.items()} and sum(solved.values()) == 6
    seen = algorithm.sampler.diagnostics()
    assert seen["stream/offline_turns"] == 3 * len(first)  # this player always plays the same
    assert run.budget.spent.env_steps == 4 * len(first) and run.budget.spent.episodes == 16
    run.iteration = 1
    (second,) = collect(algorithm, run)
    assert algorithm.sampler.diagnostics()["stream/offline_turns"] == 0, "only before the first use"
    assert run.budget.spent.env_steps == 4 * len(first) + len(second)


def test_without_such_rollouts_a_task_begins_when_it_is_dispatched() -> None:
    environment, candidates = pool()
    player, algorithm = Drawing(), Noting(collection="first_completed", batch_episodes=2, episodes=2, in_flight=2)
    player.version = 5
    collect(algorithm, context(environment, player, [], pool=candidates))
    assert algorithm.begun == {key: (0, 0, 5) for key, *_ in algorithm.dispatched}


# ---- failures


class Failing(Drawing):
    """The engine fails from the n-th request on, for all that wait."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def answer(self, prompt: str, seed: int) -> str:
        if len(self.requests) > self.after:
            raise EngineError("out of memory")
        return super().answer(prompt, seed)


@pytest.mark.parametrize("options", [{}, {"collection": "first_completed"}, {"offline_rollouts": 2}])
def test_an_error_ends_everything_else(options: dict[str, Any]) -> None:
    environment, candidates = pool()
    with pytest.raises(EngineError, match="out of memory"):
        collect(Noting(**options), context(environment, Failing(after=15), [], pool=candidates))


@pytest.mark.parametrize("options", [{}, {"collection": "first_completed"}, {"offline_rollouts": 2}])
def test_an_interrupted_collection_leaves_nothing_behind(options: dict[str, Any]) -> None:
    environment, candidates = pool()

    async def run() -> None:
        algorithm, outer = Noting(**options), asyncio.current_task()

        async def iteration() -> None:
            async for _ in algorithm.collect(context(environment, Drawing(), [], pool=candidates)):
                raise AssertionError("it should have been interrupted")

        collecting = asyncio.create_task(iteration())
        for _ in range(6):
            await asyncio.sleep(0)
        collecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await collecting
        assert asyncio.all_tasks() == {outer}

    asyncio.run(run())
