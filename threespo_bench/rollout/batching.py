"""From played turns to a :class:`~threespo_bench.turns.TurnBatch`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from threespo_bench.rollout.episode import PlayedTurn
from threespo_bench.turns import TurnBatch, object_column, pad_tokens


def make_batch(turns: Sequence[PlayedTurn], group_ids: Sequence[str], traj_ids: Sequence[str], extras: dict[str, np.ndarray] | None = None) -> TurnBatch:
    """The batch of ``turns``, one row each, in the given order.

    Args:
        turns: N played turns. group_ids, traj_ids: N ids each. extras: further columns of length N.
    """
    width = max(len(turn.generation.token_ids) for turn in turns)
    lengths = np.array([len(turn.generation.token_ids) for turn in turns])
    log_probs = pad_tokens([turn.generation.log_probs for turn in turns], width, np.float64)
    return TurnBatch(
        group_id=object_column(group_ids),
        traj_id=object_column(traj_ids),
        step_id=np.array([turn.step_id for turn in turns]),
        step_reward=np.array([turn.reward for turn in turns], float),
        response_mask=np.arange(width) < lengths[:, None],
        task_key=object_column([turn.task.key for turn in turns]),
        anchor_obs=object_column([turn.anchor for turn in turns]),
        next_anchor_obs=object_column([turn.next_anchor for turn in turns]),
        action_valid=np.array([turn.action.valid for turn in turns]),
        terminated=np.array([turn.terminated for turn in turns]),
        truncated=np.array([turn.truncated for turn in turns]),
        success=np.array([turn.success for turn in turns]),
        policy_version=np.array([turn.generation.policy_version for turn in turns]),
        response_ids=pad_tokens([turn.generation.token_ids for turn in turns], width, np.int32),
        old_log_probs=log_probs,
        rollout_log_probs=log_probs,
        prompt_ids=object_column([turn.generation.prompt_ids for turn in turns]),
        extras={
            "observation": object_column([turn.observation for turn in turns]),
            "next_observation": object_column([turn.next_observation for turn in turns]),
            "command": object_column([turn.action.command for turn in turns]),
            "invalid_reason": object_column([turn.action.reason or ("not_admissible" if not turn.action.valid else "") for turn in turns]),
            **_next_prompts(turns),
            **(extras or {}),
        },
    )


def _next_prompts(turns: Sequence[PlayedTurn]) -> dict[str, np.ndarray]:
    """The prompts after the turns, empty where none was kept; no column where none was kept at all."""
    if all(turn.next_prompt_ids is None for turn in turns):
        return {}
    none = np.zeros(0, np.int32)
    return {"next_prompt_ids": object_column([none if turn.next_prompt_ids is None else turn.next_prompt_ids for turn in turns])}
