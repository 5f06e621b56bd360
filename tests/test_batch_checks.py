"""Checks of a batch as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from threespo_bench import batch_checks as checks
from threespo_bench.errors import DataError
from threespo_bench.testing import sample_turns
from threespo_bench.turns import TurnBatch, object_column


def batch(group: str, trajectory: str, step: list[int], reward: list[float] | None = None, length: list[int] | None = None, **columns: Any) -> TurnBatch:
    lengths = np.array(length or [1] * len(step))
    return TurnBatch(
        group_id=object_column(group),
        traj_id=object_column(trajectory),
        step_id=np.array(step),
        step_reward=np.array(reward or [0.0] * len(step)),
        response_mask=np.arange(max(lengths.max(initial=0), 1)) < lengths[:, None],
        **columns,
    )


def test_a_good_batch_passes() -> None:
    checks.check_batch(sample_turns())
    checks.check_batch(batch("ggg", "AAB", [1, 0, 0]))


def test_a_branch_may_begin_at_any_step() -> None:
    checks.check_batch(batch("ggg", "AAB", [6, 5, 9]))


BAD: list[tuple[Callable[[], TurnBatch], str]] = [
    (lambda: batch("", "", []), "the batch has no turn"),
    (lambda: batch("g", "A", [0], padding=np.array([True])), "no turn that is not padding"),
    (lambda: batch("gg", "AB", [0, 0], length=[0, 0]), "no turn of the batch has a response token"),
    (lambda: batch("gg", "AA", [0, -1]), "trajectory A, step -1 has a negative step_id"),
    (lambda: batch("ggg", "ABA", [3, 0, 3]), "trajectory A, step 3 comes twice"),
    (lambda: batch("gh", "AA", [0, 0]), "trajectory A, step 0 comes twice, in the groups g and h"),
    (lambda: batch("ggg", "AAA", [0, 3, 1]), "trajectory A has a gap: step_id goes from 1 to 3"),
    (lambda: batch("gg", "AA", [0, 1], [0, np.nan]), "the step_reward of trajectory A, step 1 is nan"),
    (lambda: batch("gg", "AA", [0, 1], [0, -np.inf]), "the step_reward of trajectory A, step 1 is -inf"),
    (lambda: batch("ghg", "ABC", [0, 0, 0], task_key=object_column("tuu")), "group g mixes tasks: trajectory C, step 0 has the task_key u, others have t"),
    (lambda: batch("g", "A", [2], values=np.array([np.nan])), "the column values of trajectory A, step 2 is nan"),
    (lambda: batch("g", "A", [2], length=[2], old_log_probs=np.array([[-1, np.nan]])), "old_log_probs of trajectory A, step 2 is nan at token 1"),
]


@pytest.mark.parametrize(("make", "words"), BAD, ids=[words for _, words in BAD])
def test_bad_batches(make: Callable[[], TurnBatch], words: str) -> None:
    with pytest.raises(DataError) as refused:
        checks.check_batch(make())
    assert words in str(refused.value)


def test_padding_and_masked_tokens_may_hold_anything() -> None:
    turns = batch("ghg", "ABA", [0, 0, 0], [1, 1, np.nan], [1, 2, 2], padding=np.array([False, False, True]), task_key=object_column("tuv"))
    turns.old_log_probs = np.array([[-1, np.nan], [-1, -1], [np.nan, np.nan]])
    checks.check_batch(turns)


def test_groups_of_one() -> None:
    lone = checks.lone_groups(batch("gghhi", "ABCCD", [0, 0, 0, 1, 0]))
    assert (lone.count, lone.groups, lone.rows.tolist()) == (2, 3, [False, False, True, True, True])
    padded = batch("gg", "AB", [0, 0], padding=np.array([False, True]))
    assert checks.lone_groups(padded).rows.tolist() == [True, False]


def test_turns_without_an_answer() -> None:
    turns = batch("ggg", "AAA", [0, 1, 2], length=[1, 0, 0], padding=np.array([False, False, True]))
    assert checks.unanswered(turns).tolist() == [False, True, False]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), data=st.data())
def test_the_order_of_the_rows_does_not_matter(seed: int, data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.tuples(st.sampled_from("AB"), st.integers(0, 3)), min_size=1, max_size=6))
    turns = batch("g" * len(steps), "".join(name for name, _ in steps), [step for _, step in steps])

    def verdict(one: TurnBatch) -> str:
        try:
            checks.check_steps(one)
        except DataError as error:
            return str(error)
        return ""

    good = all(sorted(step for owner, step in steps if owner == name) == list(range(low, low + count))
               for name in {name for name, _ in steps}
               for low, count in [(min(step for owner, step in steps if owner == name), sum(owner == name for owner, _ in steps))])  # fmt: skip
    assert (verdict(turns) == "") == good
    assert (verdict(turns.take(np.random.default_rng(seed).permutation(len(turns)))) == "") == good


def test_a_large_batch() -> None:
    number = 200_000
    turns = TurnBatch(
        group_id=np.arange(number) // 80,
        traj_id=np.arange(number) // 10,
        step_id=np.arange(number) % 10,
        step_reward=np.zeros(number),
        response_mask=np.ones((number, 1), bool),
        task_key=np.arange(number) // 80,
    )
    checks.check_batch(turns)
    assert checks.lone_groups(turns).count == 0
