"""The order of the training tasks."""

from __future__ import annotations

from collections import Counter

import pytest

from threespo_bench.contracts.environment import Task
from threespo_bench.seeding import Streams
from threespo_bench.tasks import TaskStream


def stream(number: int = 10, seed: int = 0) -> TaskStream:
    return TaskStream([Task(f"t{i}", "kind", "train") for i in range(number)], Streams(seed))


def keys(tasks: list[Task]) -> list[str]:
    return [task.key for task in tasks]


def test_equal_seeds_give_equal_orders_whatever_the_algorithm() -> None:
    first, second = stream(), stream()
    assert [keys(first.take(4)) for _ in range(9)] == [keys(second.take(4)) for _ in range(9)]
    assert keys(stream(seed=0).take(10)) != keys(stream(seed=1).take(10))


def test_an_epoch_has_every_task_once_and_the_next_another_order() -> None:
    tasks = stream()
    epochs = [keys(tasks.take(5)) + keys(tasks.take(5)) for _ in range(4)]
    assert all(sorted(epoch) == sorted(epochs[0]) and len(set(epoch)) == 10 for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 4


def test_no_task_comes_twice_in_one_iteration() -> None:
    tasks = stream(10)
    taken = [keys(tasks.take(8)) for _ in range(50)]
    assert all(len(set(part)) == 8 for part in taken)


def test_no_task_is_lost_at_the_end_of_an_epoch() -> None:
    tasks = stream(10)
    visits = Counter(key for _ in range(50) for key in keys(tasks.take(8)))
    assert set(visits.values()) <= {39, 40, 41} and sum(visits.values()) == 400


@pytest.mark.parametrize(("number", "count"), [(1, 5), (3, 8)])
def test_more_than_there_are(number: int, count: int) -> None:
    taken = keys(stream(number).take(count))
    assert len(taken) == count
    assert len(set(taken[:number])) == number


@pytest.mark.parametrize("done", [0, 1, 3, 7])
def test_the_state_dict_is_the_whole_state(done: int) -> None:
    straight, stopped = stream(), stream()
    parts = [keys(straight.take(4)) for _ in range(12)]
    for _ in range(done):
        stopped.take(4)
    resumed = stream()
    resumed.load_state_dict(stopped.state_dict())
    assert [keys(resumed.take(4)) for _ in range(12 - done)] == parts[done:]
