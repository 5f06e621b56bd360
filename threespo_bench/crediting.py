"""Credit of a recorded batch: what an algorithm would have learned from it, without a policy, an environment or an update."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from threespo_bench.batch_checks import lone_groups, turn_name, unanswered
from threespo_bench.contracts.algorithm import Algorithm, Credit
from threespo_bench.errors import BenchError, DataError, PluginError
from threespo_bench.recorded import Recorded
from threespo_bench.turns import TurnBatch


@dataclass(frozen=True)
class Credited:
    """What one algorithm makes of a batch.

    Attributes:
        label: the algorithm as the user wrote it. credit: its answer for the whole batch.
        notes: what the reader of the numbers should know; warnings: what probably is not as intended.
    """

    label: str
    credit: Credit
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def shown_rows(turns: TurnBatch) -> tuple[np.ndarray, dict[str, int]]:
    """(N,) true on rows that can get credit, and how many others there are, by reason.

    A turn without a response token is no action. It is left out of the answer, but the algorithm sees it: its reward belongs to its trajectory.
    """
    silent = unanswered(turns)
    return turns.real & ~silent, {"padding": int((~turns.real).sum()), "no_response_tokens": int(silent.sum())}


def credit_turns(label: str, algorithm: Algorithm, recorded: Recorded) -> Credited:
    """Ask one algorithm for its credit, and check the answer.

    Raises:
        DataError: the batch lacks a column that the algorithm needs, or the algorithm cannot make sense of one.
        PluginError: the answer is not what an algorithm may give.
    """
    turns = recorded.turns
    _require(label, algorithm, recorded)
    try:
        credit = algorithm.credit(turns)
    except BenchError:
        raise
    except Exception as error:  # what a column of an unexpected type leads to is as various as the algorithms
        if os.environ.get("THREESPO_BENCH_DEBUG"):
            raise
        cause = f"{type(error).__name__}: {' '.join(str(error).split())}"
        fix = f"compare the columns with those that it reads ({', '.join(algorithm.requires) or 'see its notes'}); THREESPO_BENCH_DEBUG=1 shows where it failed"
        raise DataError(f"{label} cannot credit this batch: {cause}", fix=fix) from error
    _check_answer(label, credit, turns)
    return Credited(label, credit, tuple(_notes(label, credit, turns)), tuple(_warnings(label, algorithm, credit, turns)))


def mean_advantages(credit: Credit, turns: TurnBatch) -> np.ndarray:
    """(N,) the mean advantage of each turn over its response tokens, 0 for turns without any."""
    count = turns.response_mask.sum(axis=1)
    return np.where(turns.response_mask, credit.advantages, 0.0).sum(axis=1) / np.maximum(count, 1)


def _require(label: str, algorithm: Algorithm, recorded: Recorded) -> None:
    try:
        recorded.turns.require(algorithm.requires, label)
    except DataError as error:
        name = next(name for name in algorithm.requires if getattr(recorded.turns, name, None) is None and name not in recorded.turns.extras)
        reason = recorded.unused.get(name)
        fix = f"the file has {name}, but {reason}" if reason else "runs of the same algorithm record it with save_turns=true"
        raise DataError(str(error), fix=fix) from error


def _check_answer(label: str, credit: Credit, turns: TurnBatch) -> None:
    advantages = credit.advantages
    if np.shape(advantages) != turns.response_mask.shape:
        raise PluginError(f"{label} gave advantages of shape {np.shape(advantages)}, expected {turns.response_mask.shape}")
    bad = ~np.isfinite(advantages) & turns.response_mask & turns.real[:, None]
    if bad.any():
        row = int(np.argwhere(bad)[0][0])
        raise PluginError(f"{label} gave {turn_name(turns, row)} an advantage that is not finite", fix="look for missing numbers in the columns that it reads")


def _notes(label: str, credit: Credit, turns: TurnBatch) -> list[str]:
    notes = []
    if credit.selected is not None:
        left_out = int((turns.real & ~credit.selected).sum())
        if left_out:
            notes.append(f"{label} does not learn from {left_out} of {int(turns.real.sum())} turns, whatever their advantage")
    if credit.preferences is not None:
        notes.append(f"{label} learns from {len(credit.preferences.chosen)} preferences; its advantages only show who gets the credit")
    return notes


def _warnings(label: str, algorithm: Algorithm, credit: Credit, turns: TurnBatch) -> list[str]:
    """Groups of one under an algorithm that compares the members of a group, with what their turns really get."""
    if not _compares(algorithm):
        return []
    lone = lone_groups(turns)
    if not lone.count:
        return []
    values = mean_advantages(credit, turns)[lone.rows & ~unanswered(turns)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
    given = f"{low:.4g}" if low == high else f"between {low:.4g} and {high:.4g}"
    return [f"{label}: {lone.count} of {lone.groups} groups are groups of one, with nothing to compare; their {len(values)} turns get {given}"]


def _compares(algorithm: Algorithm) -> bool:
    """Whether its baseline is the group's: it samples several rollouts of a task, or several children of a state."""
    from threespo_bench.rollout.adaptive_tree import TreeAlgorithm

    sampler = getattr(algorithm, "sampler", None)
    size = getattr(algorithm.config, "group_size", None) or getattr(sampler, "group_size", None) or 1
    return isinstance(algorithm, TreeAlgorithm) or size > 1
