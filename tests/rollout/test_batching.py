"""Played turns as a batch."""

from __future__ import annotations

import numpy as np
import pytest

from threespo_bench.contracts.engine import Generation
from threespo_bench.contracts.environment import Action, Task
from threespo_bench.rollout.batching import make_batch
from threespo_bench.rollout.episode import PlayedTurn

TASK = Task("t", "kind", "train")


def turn(step: int = 0, tokens: int = 2, prompt: int = 3, action: Action | None = None, **more: object) -> PlayedTurn:
    generation = Generation(
        np.arange(prompt, dtype=np.int32), np.arange(5, 5 + tokens, dtype=np.int32), np.full(tokens, -0.1 * (step + 1), np.float32), "look", 3, finished=True
    )
    played = {
        "task": TASK, "step_id": step, "generation": generation, "action": action or Action("look", True, True), "observation": f"see {step}",
        "next_observation": f"see {step + 1}", "anchor": f"s{step}", "next_anchor": f"s{step + 1}", "reward": 0.5 * step, "terminated": False,
        "truncated": False, "success": False,
    }  # fmt: skip
    return PlayedTurn(**(played | more))  # type: ignore[arg-type]


def test_columns() -> None:
    turns = make_batch([turn(0), turn(1, terminated=True, success=True), turn(2, truncated=True)], ["g", "g", "h"], ["a", "a", "b"])
    assert turns.group_id.tolist() == ["g", "g", "h"]
    assert turns.traj_id.tolist() == ["a", "a", "b"]
    assert turns.step_id.tolist() == [0, 1, 2]
    assert turns.step_reward.tolist() == [0, 0.5, 1]
    assert turns.task_key.tolist() == ["t"] * 3
    assert (turns.anchor_obs.tolist(), turns.next_anchor_obs.tolist()) == (["s0", "s1", "s2"], ["s1", "s2", "s3"])
    assert (turns.terminated.tolist(), turns.truncated.tolist(), turns.success.tolist()) == ([0, 1, 0], [0, 0, 1], [0, 1, 0])
    assert turns.policy_version.tolist() == [3] * 3
    assert turns.extras["observation"].tolist() == ["see 0", "see 1", "see 2"]
    assert turns.extras["next_observation"].tolist() == ["see 1", "see 2", "see 3"]
    assert turns.real.all()


def test_responses_are_padded_on_the_right_and_masked() -> None:
    turns = make_batch([turn(0, tokens=1), turn(1, tokens=4), turn(2, tokens=0)], list("ggg"), list("abc"))
    assert turns.response_mask.astype(int).tolist() == [[1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]]
    assert turns.response_ids.tolist() == [[5, 0, 0, 0], [5, 6, 7, 8], [0, 0, 0, 0]]
    np.testing.assert_allclose(turns.old_log_probs[1], -0.2, rtol=1e-6)
    assert turns.old_log_probs.dtype == np.float64
    assert np.array_equal(turns.old_log_probs, turns.rollout_log_probs)


def test_prompts_of_equal_length_stay_vectors_of_their_own() -> None:
    for lengths in ((3, 3), (1, 4)):
        turns = make_batch([turn(0, prompt=lengths[0]), turn(1, prompt=lengths[1])], list("gg"), list("ab"))
        assert turns.prompt_ids.shape == (2,)
        assert [len(ids) for ids in turns.prompt_ids] == list(lengths)


@pytest.mark.parametrize(
    ("action", "valid", "reason"),
    [
        (Action("look", True, True), True, ""),
        (Action("look", True, None), True, ""),
        (Action("fly", True, False), False, "not_admissible"),
        (Action("", False, None, "empty"), False, "empty"),
        (Action("look", False, True, "no_action_tag"), False, "no_action_tag"),
    ],
)
def test_why_an_action_is_invalid(action: Action, valid: bool, reason: str) -> None:
    turns = make_batch([turn(action=action)], ["g"], ["a"])
    assert turns.action_valid.tolist() == [valid]
    assert turns.extras["invalid_reason"].tolist() == [reason]
    assert turns.extras["command"].tolist() == [action.command]


def test_further_columns() -> None:
    turns = make_batch([turn(0), turn(1)], list("gg"), list("ab"), extras={"first": np.array([True, False])})
    assert turns.extras["first"].tolist() == [True, False]
    turns.require(["first", "anchor_obs"], "nobody")
