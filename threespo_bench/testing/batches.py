"""A recorded batch to try algorithms on: groups of episodes of different lengths and outcomes, with every column of a TurnBatch."""

from __future__ import annotations

from typing import Any

import numpy as np

from threespo_bench.turns import TurnBatch

_TOKENS = 5


def sample_turns(seed: int = 0, tasks: int = 3, rollouts: int = 4) -> TurnBatch:
    """Episodes of 2 to 5 turns in a small world of numbered states; some succeed, some end badly, some are cut. One group is all equal.

    Args:
        seed: of everything random. tasks: groups. rollouts: episodes in a group.
    """
    rng = np.random.default_rng(seed)
    rows: list[dict[str, object]] = []
    for task in range(tasks):
        for rollout in range(rollouts):
            length = int(rng.integers(2, 6))
            outcome = "failed" if task == tasks - 1 else str(rng.choice(["won", "failed", "cut"]))
            states = [0, *rng.integers(1, 4, length)]
            for step in range(length):
                rows.append(_turn(rng, task, rollout, step, step == length - 1, outcome, states))
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    lengths = np.array(columns.pop("length"))
    mask = np.arange(_TOKENS) < lengths[:, None]
    log_probs = np.where(mask, -rng.exponential(1.0, mask.shape), 0.0)
    filled: dict[str, Any] = {name: _column(values) for name, values in columns.items()}
    return TurnBatch(
        **filled,
        response_mask=mask,
        response_ids=np.where(mask, rng.integers(0, 50, mask.shape), 0),
        old_log_probs=log_probs,
        rollout_log_probs=log_probs.copy(),
        ref_log_probs=log_probs - np.where(mask, 0.1, 0.0),
        values=rng.normal(size=len(rows)),
        prompt_ids=_column([np.arange(3, dtype=np.int32)] * len(rows)),
    )


def _turn(rng: np.random.Generator, task: int, rollout: int, step: int, last: bool, outcome: str, states: list[int]) -> dict[str, object]:
    return {
        "group_id": f"0/{task}",
        "traj_id": f"0/{task}/{rollout}",
        "step_id": step,
        "task_key": f"task-{task}",
        "anchor_obs": f"state {states[step]}",
        "next_anchor_obs": f"state {states[step + 1]}",
        "step_reward": 10.0 if last and outcome == "won" else 0.0,
        "action_valid": bool(rng.random() < 0.8),
        "terminated": last and outcome != "cut",
        "truncated": last and outcome == "cut",
        "success": last and outcome == "won",
        "policy_version": 0,
        "length": int(rng.integers(1, _TOKENS + 1)),
    }


def _column(values: list[object]) -> np.ndarray:
    if not isinstance(values[0], (str, np.ndarray)):
        return np.asarray(values)
    out = np.empty(len(values), object)
    for place, value in enumerate(values):
        out[place] = value
    return out
