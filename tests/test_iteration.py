"""The metrics of an iteration are those of its turns, however they came in batches."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from threespo_bench.contracts.algorithm import Credit
from threespo_bench.iteration import IterationMetrics
from threespo_bench.testing.batches import sample_turns
from threespo_bench.turns import TurnBatch


def credit(turns: TurnBatch, **diagnostics: float) -> Credit:
    return Credit(np.zeros(turns.response_mask.shape), diagnostics=diagnostics)


def summary(*batches: TurnBatch) -> dict[str, float]:
    measured = IterationMetrics()
    for turns in batches:
        measured.add(turns, credit(turns), {})
    return measured.summary()


def test_outcomes_are_counted_by_episode() -> None:
    turns = sample_turns()
    row = summary(turns)
    ended = turns.terminated | turns.truncated
    assert row["train/episodes"] == ended.sum() == len(set(turns.traj_id))
    assert row["train/success"] == turns.success.sum() / ended.sum()
    assert row["train/truncated"] == turns.truncated.sum() / ended.sum()
    assert row["train/valid_actions"] == turns.action_valid.mean()
    assert row["train/response_tokens"] == pytest.approx(turns.response_mask.sum() / len(turns))
    assert (row["train/turns"], row["train/batches"]) == (len(turns), 1)


def test_many_small_waves_and_one_big_batch_say_the_same() -> None:
    turns = sample_turns()
    parts = [turns.take(rows) for rows in np.array_split(np.arange(len(turns)), 5)]
    whole, waves = summary(turns), summary(*parts)
    assert waves.pop("train/batches") == 5
    assert whole.pop("train/batches") == 1
    assert waves == pytest.approx(whole)


def test_a_time_out_is_not_counted_as_success() -> None:
    turns = sample_turns()
    none = np.zeros(len(turns), bool)
    last = turns.terminated | turns.truncated
    row = summary(replace(turns, terminated=none, truncated=last, success=none))
    assert (row["train/success"], row["train/truncated"]) == (0, 1)


def test_padding_rows_count_for_nothing() -> None:
    turns = sample_turns()
    padded = turns.take(np.r_[np.arange(len(turns)), 0, 0])
    assert summary(replace(padded, padding=np.arange(len(padded)) >= len(turns))) == summary(turns)


def test_means_are_weighted_by_turns_maxima_are_maxima_and_amounts_are_summed() -> None:
    turns, measured = sample_turns(), IterationMetrics()
    one, three = turns.take(np.arange(10)), turns.take(np.arange(30))
    measured.add(one, credit(one, spread=1.0), {"loss": 2.0, "logprob_gap_max": 5.0, "optimizer_steps": 2, "tokens": 30})
    measured.add(three, credit(three, spread=5.0), {"loss": 6.0, "logprob_gap_max": 3.0, "optimizer_steps": 1, "tokens": 50})
    row = measured.summary()
    assert row["spread"] == pytest.approx(4.0)
    assert row["update/loss"] == pytest.approx(5.0)
    assert row["update/logprob_gap_max"] == 5.0
    assert row["update/optimizer_steps"] == 3
    assert row["update/tokens"] == 80


def test_values_that_are_not_finite_do_not_spoil_a_mean() -> None:
    turns, measured = sample_turns(), IterationMetrics()
    for value in (1.0, math.nan, math.inf, 3.0):
        measured.add(turns, credit(turns, spread=value, never=math.nan), {})
    row = measured.summary()
    assert row["spread"] == 2.0
    assert "never" not in row


def test_an_iteration_without_endings_or_turns_has_no_success_rate() -> None:
    turns = sample_turns()
    none = np.zeros(len(turns), bool)
    row = summary(replace(turns, terminated=none, truncated=none, success=none))
    assert row["train/episodes"] == 0 and math.isnan(row["train/success"])
    assert math.isnan(summary()["train/valid_actions"])


def test_batches_without_the_optional_columns() -> None:
    turns = sample_turns()
    bare = TurnBatch(turns.group_id, turns.traj_id, turns.step_id, turns.step_reward, turns.response_mask)
    row = summary(bare)
    assert row["train/turns"] == len(turns) and row["train/episodes"] == 0
