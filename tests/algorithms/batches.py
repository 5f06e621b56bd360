"""The worked batches of the algorithm specification, built by code."""

from __future__ import annotations

import numpy as np

from threespo_bench.turns import TurnBatch


def b1() -> TurnBatch:
    """One group, trajectories A (won), B (truncated, one invalid action) and C (failed): 3, 2 and 3 turns."""
    return turns(
        group="gggggggg", trajectory="AAABBCCC", step=[0, 1, 2, 0, 1, 0, 1, 2], anchor=["s0", "s1", "s2", "s0", "s1", "s0", "s0", "s1"],
        reward=[0, 0, 10, 0, 0, 0, 0, 0], valid=[1, 1, 1, 1, 0, 1, 1, 1], length=[2, 3, 1, 2, 2, 1, 2, 3],
    )  # fmt: skip


def b2() -> TurnBatch:
    """One group of three trajectories of three turns; the first one wins."""
    return turns(
        group="ggggggggg", trajectory="AAABBBCCC", step=[0, 1, 2] * 3, anchor=["s0", "s1", "s2", "s0", "s2", "s1", "s0", "s1", "s1"],
        reward=[0, 0, 10, 0, 0, 0, 0, 0, 0], valid=[1] * 9, length=[1] * 9,
    )  # fmt: skip


def b3() -> TurnBatch:
    """A single-turn group of four with scores 1, 0, 0, 1."""
    return turns(group="gggg", trajectory="ABCD", step=[0] * 4, anchor=["s0"] * 4, reward=[1, 0, 0, 1], valid=[1] * 4, length=[2, 4, 3, 1])


def turns(group, trajectory, step, anchor, reward, valid, length, width: int | None = None) -> TurnBatch:
    """A batch from plain sequences; response lengths instead of a mask."""
    lengths = np.array(length)
    return TurnBatch(
        group_id=list(group), traj_id=list(trajectory), step_id=np.array(step), step_reward=np.array(reward, float), anchor_obs=list(anchor),
        action_valid=np.array(valid, bool), task_key=["t"] * len(lengths), response_mask=np.arange(width or lengths.max()) < lengths[:, None],
    )  # fmt: skip
