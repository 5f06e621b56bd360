"""Is a batch of turns what it says it is? Checks that hold for every algorithm, on recorded batches and on fresh ones.

Each check is one pass over the columns and looks at no padding row. What is wrong is a :class:`DataError` that names the turn by its
trajectory and step, because rows have no meaningful order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from threespo_bench.errors import DataError
from threespo_bench.turns import TurnBatch, codes, group_codes

_NUMBERS_OF_TOKENS = ("old_log_probs", "rollout_log_probs", "ref_log_probs", "values")


def check_batch(turns: TurnBatch) -> None:
    """All checks below, in the order in which a reader would want to know.

    Raises:
        DataError: the first thing that is wrong.
    """
    check_responses(turns)
    check_steps(turns)
    check_rewards(turns)
    check_groups(turns)
    check_numbers(turns)


def check_responses(turns: TurnBatch) -> None:
    """Raises DataError unless some turn has a response token: otherwise nothing can get credit."""
    if not turns.real.any():
        raise DataError("the batch has no turn" + (" that is not padding" if len(turns) else ""))
    if not (turns.response_mask.any(axis=1) & turns.real).any():
        raise DataError("no turn of the batch has a response token", fix="response_mask is 1 on the tokens that the policy generated")


def check_steps(turns: TurnBatch) -> None:
    """Raises DataError unless the steps of each trajectory are consecutive and each comes once. A branch of a tree may begin at any step."""
    rows = np.flatnonzero(turns.real)
    trajectory = codes(turns.traj_id)[rows]
    order = np.lexsort((turns.step_id[rows], trajectory))
    rows, owner = rows[order], trajectory[order]
    steps = turns.step_id[rows]
    if (steps < 0).any():
        row = rows[np.argmax(steps < 0)]
        raise DataError(f"{turn_name(turns, row)} has a negative step_id", fix="step_id counts the turns of a trajectory from 0")
    inside, stride = owner[1:] == owner[:-1], np.diff(steps)
    if (inside & (stride == 0)).any():
        at = int(np.argmax(inside & (stride == 0)))
        one, other = rows[at], rows[at + 1]
        groups = [turns.group_id[row] for row in (one, other)]
        where = "" if groups[0] == groups[1] else f", in the groups {groups[0]} and {groups[1]}"
        raise DataError(f"{turn_name(turns, one)} comes twice{where}", fix="traj_id must tell all trajectories of the batch apart, step_id the turns of each")
    if (inside & (stride > 1)).any():
        at = int(np.argmax(inside & (stride > 1)))
        gap = f"step_id goes from {steps[at]} to {steps[at + 1]}"
        raise DataError(f"trajectory {turns.traj_id[rows[at]]} has a gap: {gap}", fix="record every turn, or number those that there are without gaps")


def check_rewards(turns: TurnBatch) -> None:
    """Raises DataError for a reward that is not finite: no number can stand for one that is missing."""
    bad = turns.real & ~np.isfinite(turns.step_reward)
    if bad.any():
        row = int(np.argmax(bad))
        fix = "leave the whole trajectory out if its reward is not known"
        raise DataError(f"the step_reward of {turn_name(turns, row)} is {turns.step_reward[row]}, not a finite number", fix=fix)


def check_groups(turns: TurnBatch) -> None:
    """Raises DataError for a group whose turns belong to different tasks: their returns cannot be compared."""
    if turns.task_key is None:
        return
    rows = np.flatnonzero(turns.real)
    group, task = codes(turns.group_id)[rows], codes(turns.task_key)[rows]
    _, first = np.unique(group, return_index=True)
    task_of_group = np.zeros(int(group.max(initial=-1)) + 1, np.int64)
    task_of_group[group[first]] = task[first]
    other = task != task_of_group[group]
    if other.any():
        at = int(np.argmax(other))
        names = [turns.task_key[row] for row in (rows[first[np.searchsorted(group[first], group[at])]], rows[at])]
        message = f"group {turns.group_id[rows[at]]} mixes tasks: {turn_name(turns, rows[at])} has the task_key {names[1]}, others have {names[0]}"
        raise DataError(message, fix="group_id is for rollouts of one task")


def check_numbers(turns: TurnBatch) -> None:
    """Raises DataError for a log-probability or value that is not finite where it counts, that is under the response mask."""
    mask = turns.response_mask & turns.real[:, None]
    for name in _NUMBERS_OF_TOKENS:
        column = getattr(turns, name)
        if column is None:
            continue
        bad = ~np.isfinite(column) & (mask if column.ndim == 2 else turns.real)
        if bad.any():
            place = np.argwhere(bad)[0]
            of_token = f" at token {place[1]}" if column.ndim == 2 else ""
            raise DataError(f"the column {name} of {turn_name(turns, place[0])} is {column[tuple(place)]}{of_token}, not a finite number")


@dataclass(frozen=True)
class LoneGroups:
    """Groups of one.

    Attributes:
        rows: (N,) true on turns whose trajectory is alone in its group. count: how many such groups there are. groups: how many groups in all.
    """

    rows: np.ndarray
    count: int
    groups: int


def lone_groups(turns: TurnBatch) -> LoneGroups:
    """The groups that have one trajectory: an estimator that compares trajectories has nothing to compare there."""
    group, member = codes(turns.group_id), group_codes(turns.group_id, turns.traj_id)
    _, first = np.unique(member[turns.real], return_index=True)
    size = np.bincount(group[turns.real][first], minlength=int(group.max(initial=-1)) + 1)
    return LoneGroups(turns.real & (size == 1)[group], int((size == 1).sum()), int((size > 0).sum()))


def unanswered(turns: TurnBatch) -> np.ndarray:
    """(N,) true on turns without any response token: there is nothing that could get credit."""
    return turns.real & ~turns.response_mask.any(axis=1)


def turn_name(turns: TurnBatch, row: int) -> str:
    """A turn as messages call it."""
    return f"trajectory {turns.traj_id[row]}, step {turns.step_id[row]}"
