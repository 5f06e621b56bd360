"""What every estimator must satisfy, whatever its formula: shown on random batches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from threespo_algorithms.gigpo import GiGPO, GiGPOConfig
from threespo_algorithms.grpo import GRPO, GRPOConfig
from threespo_algorithms.threespo import ThreeSPO, ThreeSPOConfig
from threespo_bench.turns import TurnBatch

REFERENCE = {"statistics_unit": "row", "singleton": "raw", "penalty_stage": "before_norm"}
ESTIMATORS = {
    "grpo": lambda: GRPO(GRPOConfig()),
    "grpo reference": lambda: GRPO(GRPOConfig(**REFERENCE)),
    "gigpo": lambda: GiGPO(GiGPOConfig()),
    "gigpo reference": lambda: GiGPO(GiGPOConfig(**REFERENCE)),
    "3spo": lambda: ThreeSPO(ThreeSPOConfig()),
    "3spo paper": lambda: ThreeSPO(ThreeSPOConfig(alpha=50, xi=10, novelty="changed", invalid_actions="penalise", unseen_child="one", truncate_reward=True)),
}
every_estimator = pytest.mark.parametrize("name", ESTIMATORS)
fast = settings(max_examples=30, deadline=None)


@st.composite
def batches(draw) -> TurnBatch:
    """Up to three groups of up to four trajectories of up to four turns, with everything any estimator reads."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = [
        (f"g{g}", f"g{g}t{t}", step) for g in range(draw(st.integers(1, 3))) for t in range(draw(st.integers(1, 4))) for step in range(draw(st.integers(1, 4)))
    ]
    n, width = len(rows), 5
    lengths = rng.integers(1, width + 1, n)
    states = rng.integers(0, 4, (2, n)).astype(str).astype(object)
    return TurnBatch(
        group_id=[row[0] for row in rows], traj_id=[row[1] for row in rows], step_id=np.array([row[2] for row in rows]),
        step_reward=rng.choice([0.0, 0.0, 1.0, 10.0], n), response_mask=np.arange(width) < lengths[:, None], task_key=[row[0] for row in rows],
        anchor_obs=states[0], next_anchor_obs=states[1], action_valid=rng.random(n) < 0.8, success=rng.random(n) < 0.3, padding=np.zeros(n, bool),
        response_ids=rng.integers(0, 9, (n, width)), old_log_probs=-rng.random((n, width)),
        extras={
            "observation": states[0], "next_observation": states[1], "first_on_path": rng.random(n) < 0.5, "clock": np.full(n, 20),
            **{f"{p}_total": rng.integers(5, 9, n) for p in ("known", "next_known")}, **{f"{p}_won": rng.integers(0, 5, n) for p in ("known", "next_known")},
        },
    )  # fmt: skip


@every_estimator
@fast
@given(batch=batches(), seed=st.integers(0, 1000))
def test_row_order_carries_no_meaning(name, batch, seed):
    order = np.random.default_rng(seed).permutation(len(batch))
    plain, shuffled = ESTIMATORS[name]().credit(batch).advantages, ESTIMATORS[name]().credit(batch.take(order)).advantages
    np.testing.assert_allclose(shuffled, plain[order], atol=1e-9)


@every_estimator
@fast
@given(batch=batches(), copies=st.integers(1, 5))
def test_padding_rows_change_nothing(name, batch, copies):
    rows = np.r_[np.arange(len(batch)), np.arange(copies) % len(batch)]
    padded = batch.take(rows)
    padded.padding[len(batch) :] = True
    padded.step_reward[len(batch) :] = np.nan
    credit = ESTIMATORS[name]().credit(padded)
    np.testing.assert_allclose(credit.advantages[: len(batch)], ESTIMATORS[name]().credit(batch).advantages, atol=1e-12)
    assert (credit.advantages[len(batch) :] == 0).all()
    assert all(np.isfinite(value) for value in credit.diagnostics.values())


@every_estimator
@fast
@given(batch=batches())
def test_garbage_under_masks_changes_nothing(name, batch):
    expected = ESTIMATORS[name]().credit(batch).advantages
    batch.old_log_probs[~batch.response_mask] = np.nan
    batch.response_ids[~batch.response_mask] = 10**6
    result = ESTIMATORS[name]().credit(batch).advantages
    assert np.array_equal(result, expected) and (result[~batch.response_mask] == 0).all() and np.isfinite(result).all()


@every_estimator
@fast
@given(batch=batches(), gap=st.integers(1, 3))
def test_masked_tokens_between_actions_change_nothing(name, batch, gap):
    n = len(batch)
    wide = TurnBatch(**{**vars(batch), "response_mask": np.c_[batch.response_mask[:, :1], np.zeros((n, gap), bool), batch.response_mask[:, 1:]],
                        "response_ids": None, "old_log_probs": None})  # fmt: skip
    plain, spread = ESTIMATORS[name]().credit(batch).advantages, ESTIMATORS[name]().credit(wide).advantages
    np.testing.assert_allclose(np.c_[spread[:, :1], spread[:, 1 + gap :]], plain, atol=1e-12)
    assert (spread[:, 1 : 1 + gap] == 0).all()


@every_estimator
@fast
@given(batch=batches(), value=st.sampled_from([0.0, 9.025, 9.9, 0.1]))
def test_equal_outcomes_give_exactly_zero(name, batch, value):
    batch.step_reward[:] = 0
    batch.step_reward[batch.step_id == 0] = value
    batch.step_id[:] = 0  # one turn a trajectory, all with the same reward
    batch.traj_id = np.array([f"{i}" for i in range(len(batch))], object)
    batch.step_reward[:] = value
    batch.action_valid[:], batch.success[:] = True, False
    for column in ("first_on_path", "known_total", "known_won", "next_known_total", "next_known_won"):
        batch.extras[column][:] = batch.extras[column][0]
    batch.extras["next_observation"][:] = batch.extras["observation"][:] = "same"
    batch.group_id[:], batch.anchor_obs[:] = "g", "same"
    if len(batch) == 1:
        return  # a lone sample has its own documented value
    assert (ESTIMATORS[name]().credit(batch).advantages == 0).all()


@pytest.mark.parametrize("name", ["grpo", "gigpo"])
@fast
@given(batch=batches(), factor=st.sampled_from([0.5, 3.0, 100.0]))
def test_scale_of_rewards_does_not_matter_with_normalisation(name, batch, factor):
    plain = ESTIMATORS[name]().credit(batch).advantages
    batch.step_reward *= factor
    # Not exactly, because of the epsilon that is added to the deviation.
    np.testing.assert_allclose(ESTIMATORS[name]().credit(batch).advantages, plain, rtol=1e-4, atol=1e-4)
