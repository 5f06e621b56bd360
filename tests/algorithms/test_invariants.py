"""What every registered algorithm must satisfy, whatever its formula: shown on random batches, with the options of its YAML and of its presets."""

from __future__ import annotations

from dataclasses import fields, replace
from importlib import resources
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.algorithms.registered import NAMES, PRESETS, batch, configured, experienced, host, with_pairs
from threespo_bench.contracts.algorithm import Credit
from threespo_bench.contracts.objective import PolicyGradient
from threespo_bench.testing import check_algorithm
from threespo_bench.turns import TurnBatch, object_column

every_algorithm = pytest.mark.parametrize("name", NAMES)
every_preset = pytest.mark.parametrize("name", [*NAMES, *PRESETS])
few = settings(max_examples=8, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)
shapes = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=3)
TOKEN_FLOATS = ("old_log_probs", "rollout_log_probs", "ref_log_probs", "values")

NOT_RELATIVE = {
    "dpo_offline": "the file says what is preferred",
    "kto": "a trajectory is good or bad by itself",
    "ppo": "compared with the values of a critic",
    "ppo_row": "compared with the values of a critic",
    "ppo_turn": "compared with the values of a critic",
    "reinforce_pp": "compared with the whole batch, whose groups may differ",
    "remax": "compared with a greedy episode",
    "sapo_autoreg": "compared with the values of the policy itself",
    "spo_segment_chain": "compared with the values of fresh continuations",
    "spo_stream": "compared with the success rate at dispatch",
    "spopp": "compared with the success rate at dispatch",
    "t2spo": "turns that come nearer to success have credit of their own",
    "t2spo_knn": "turns that come nearer to success have credit of their own",
    "threespo_ppo": "compared with the values of a critic",
    "vineppo": "compared with the values of fresh continuations",
}
"""Why the trajectories of a group may have advantages although they are all the same. All other algorithms must give exactly 0."""

SCALE = {
    "cdpo": "neither", "dmpo": "neither", "dpo": "neither", "dpo_offline": "unchanged", "gigpo": "unchanged", "grpo": "unchanged",
    "hgpo": "unchanged", "ipo": "neither", "kto": "unchanged", "opo": "scaled", "ppo": "unchanged", "ppo_row": "unchanged", "ppo_turn": "unchanged",
    "progpo": "neither", "reinforce_pp": "unchanged", "reinforce_pp_baseline": "unchanged", "remax": "scaled", "rloo": "scaled",
    "sapo_autoreg": "neither", "spo_segment_chain": "unchanged", "spo_segment_tree": "scaled", "spo_stream": "unchanged", "spopp": "unchanged",
    "step_dpo": "unchanged", "t2spo": "unchanged", "t2spo_knn": "unchanged", "threespo": "unchanged", "threespo_dpo": "unchanged",
    "threespo_ppo": "unchanged", "vineppo": "unchanged",
}  # fmt: skip
"""What becomes of the advantages, up to the epsilon of a division, if all rewards are multiplied by c. Neither: a return counts from ``min_gap`` on
(preferences over trajectories), success is worth ``transition_scale`` (ProGPO), or values have the unit ``reward_max`` (SAPO)."""

IN_UNITS_OF_REWARD = {
    "ppo": ("values", "next_value"), "ppo_row": ("values",), "ppo_turn": ("values", "next_value"), "remax": ("baseline_return",),
    "spo_segment_chain": ("values",), "spo_segment_tree": ("edge_value", "parent_value"), "vineppo": ("values", "next_value"),
}  # fmt: skip
"""Columns that scale with the rewards."""


def assert_same(found: Credit, expected: Credit, rows: np.ndarray, columns: np.ndarray | None = None) -> None:
    """All that a learner reads of a credit is that of another one.

    Args:
        rows: (N,) the row of ``found`` that stands for each row of ``expected``. columns: (T,) likewise; by default equal ones.
    """
    for name in ("advantages", "selected", "selected_tokens", "returns", "action_returns"):
        one, other = getattr(found, name), getattr(expected, name)
        assert (one is None) == (other is None), name
        if one is not None:
            one = one[rows] if columns is None or one.ndim == 1 else one[rows][:, columns]
            np.testing.assert_allclose(one.astype(float), other.astype(float), rtol=1e-9, atol=1e-9, err_msg=name)
    assert found.scale == pytest.approx(expected.scale, rel=1e-12)
    assert _items(found, np.arange(len(found.advantages))) == _items(expected, rows)


def _items(credit: Credit, rows: np.ndarray) -> Any:
    """The preferences, however they are ordered, each item's rows renamed."""
    if credit.preferences is None:
        return None
    chosen, rejected = (
        [tuple(sorted(zip(rows[item.rows].tolist(), item.weights.round(9).tolist(), strict=True))) for item in side]
        for side in (credit.preferences.chosen, credit.preferences.rejected)
    )
    return sorted(zip(chosen, rejected, strict=True)) if credit.preferences.paired else (sorted(chosen), sorted(rejected))


def assert_finite(credit: Credit, turns: TurnBatch) -> None:
    """Every number that a learner reads or the metrics show is finite, and nothing is outside the responses."""
    assert np.isfinite(credit.advantages).all() and np.isfinite(credit.scale)
    assert (credit.advantages[~turns.response_mask] == 0).all() and (credit.advantages[~turns.real] == 0).all()
    for returns in (credit.returns, credit.action_returns):
        assert returns is None or np.isfinite(returns).all()
    for key, value in credit.diagnostics.items():
        assert np.isfinite(value), key


def test_the_tables_name_registered_algorithms_only():
    assert SCALE.keys() == set(NAMES), "say in SCALE what becomes of a new algorithm's advantages if rewards are scaled"
    assert set(NAMES) >= NOT_RELATIVE.keys() and set(NAMES) >= IN_UNITS_OF_REWARD.keys()


@pytest.mark.parametrize("name", [name for name in (*NAMES, *PRESETS) if name != "t2spo"])  # TabPFN is a stand-in here: see test_t2spo
def test_contract(name):
    check_algorithm(type(configured(name)), configured(name).config, batch(name, 3, [[3, 2, 4, 1]] * 3))


@every_preset
@few
@given(shape=shapes, seed=seeds)
def test_row_order_carries_no_meaning(name, shape, seed):
    turns = batch(name, seed, shape)
    order = np.random.default_rng(seed).permutation(len(turns))
    assert_same(experienced(name).credit(turns.take(order)), experienced(name).credit(turns), np.argsort(order))


@every_preset
@few
@given(shape=shapes, seed=seeds)
def test_time_is_the_order_of_the_step_index(name, shape, seed):
    turns = batch(name, seed, shape)
    later = replace(turns, step_id=3 * turns.step_id + 7)
    assert_same(experienced(name).credit(later), experienced(name).credit(turns), np.arange(len(turns)))


@every_preset
@few
@given(shape=shapes, seed=seeds, copies=st.integers(1, 5))
def test_padding_rows_change_nothing(name, shape, seed, copies):
    turns = batch(name, seed, shape)
    number = len(turns)
    padded = turns.take(np.r_[np.arange(number), np.arange(copies) % number])
    padded.padding[number:] = True
    for column in (padded.step_reward, padded.values, padded.old_log_probs, padded.ref_log_probs, *padded.extras.values()):
        if column is not None and column.dtype == np.float64:
            column[number:] = np.nan
    for column in (padded.success, padded.truncated, padded.terminated, padded.action_valid):
        column[number:] ^= True
    credit = experienced(name).credit(padded)
    assert_same(credit, experienced(name).credit(turns), np.arange(number))
    assert_finite(replace(credit, returns=None, action_returns=None), padded)
    for selected in (credit.selected, credit.selected_tokens):
        assert selected is None or not selected[number:].any()


@every_preset
@few
@given(shape=shapes, seed=seeds)
def test_garbage_under_masks_changes_nothing(name, shape, seed):
    turns, expected = batch(name, seed, shape), experienced(name).credit(batch(name, seed, shape))
    for column in TOKEN_FLOATS:
        values = getattr(turns, column)
        if values is not None and values.ndim == 2:
            values[~turns.response_mask] = np.nan
    turns.response_ids[~turns.response_mask] = 10**6
    assert_same(experienced(name).credit(turns), expected, np.arange(len(turns)))


@every_preset
@few
@given(shape=shapes, seed=seeds, gap=st.integers(1, 3))
def test_masked_tokens_between_actions_change_nothing(name, shape, seed, gap):
    turns = batch(name, seed, shape)
    columns = np.r_[0, np.arange(1 + gap, turns.response_mask.shape[1] + gap)]
    wide = with_gap(turns, gap)
    credit = experienced(name).credit(wide)
    assert_same(credit, experienced(name).credit(turns), np.arange(len(turns)), columns)
    assert_finite(replace(credit, returns=None, action_returns=None), wide)


def with_gap(turns: TurnBatch, gap: int) -> TurnBatch:
    """The same with tokens that the policy did not generate after the first column."""

    def spread(column: np.ndarray, filling: float) -> np.ndarray:
        return np.c_[column[:, :1], np.full((len(column), gap), filling, column.dtype), column[:, 1:]]

    known = {field.name: getattr(turns, field.name) for field in fields(turns)}
    columns = {name: column for name, column in known.items() if name != "extras" and column is not None and column.ndim == 2}
    filling = {"response_mask": False, "response_ids": 10**6}
    return TurnBatch(**{**known, **{name: spread(column, filling.get(name, np.nan)) for name, column in columns.items()}})


def equal_trajectories(name: str, seed: int, groups: int, copies: int) -> TurnBatch:
    """Groups of copies of one trajectory that never returns to a state, whose actions are all valid."""
    turns = 1 if "known_total" in configured(name).requires else 3  # in a tree all of a group's turns act in one state
    one = batch(name, seed, [[turns]] * groups)
    one.anchor_obs[:] = object_column([f"s{step}" for step in one.step_id])
    one.action_valid[:] = True
    whole = one.take(np.tile(np.arange(len(one)), copies))
    branch = np.repeat(np.arange(copies), len(one))
    whole.traj_id = object_column([f"{group}/{number}" for group, number in zip(whole.group_id, branch, strict=True)])
    if "pair" in whole.extras:
        with_pairs(whole, np.random.default_rng(seed))
    return whole


@every_algorithm
@few
@given(seed=seeds, groups=st.integers(1, 3), copies=st.integers(2, 7))
def test_equal_trajectories_of_a_group_give_exactly_zero(name, seed, groups, copies):
    if name not in NOT_RELATIVE:
        credit = experienced(name).credit(equal_trajectories(name, seed, groups, copies))
        assert (credit.advantages == 0).all()
        assert credit.preferences is None or not credit.preferences.chosen


@pytest.mark.parametrize("name", NOT_RELATIVE)
def test_what_is_not_relative_to_the_group_has_advantages_where_all_are_equal(name):
    assert any((experienced(name).credit(equal_trajectories(name, seed, 3, 4)).advantages != 0).any() for seed in range(5))


@every_preset
@few
@given(shape=shapes, seed=seeds)
def test_extreme_rewards_give_finite_numbers(name, shape, seed):
    turns = batch(name, seed, shape)
    turns.step_reward[:] = np.random.default_rng(seed).choice([0.0, 1e-12, 1.0, 1e12, -1e12], len(turns))
    assert_finite(experienced(name).credit(turns), turns)


@every_algorithm
@pytest.mark.parametrize("shape", [[[1]], [[2]], [[1, 1]], [[1], [1]]], ids=str)
def test_the_smallest_batches_give_finite_numbers(name, shape):
    for seed in range(5):
        turns = batch(name, seed, shape)
        assert_finite(experienced(name).credit(turns), turns)
        turns.response_mask[:] = False
        assert_finite(experienced(name).credit(turns), turns)
        padding = replace(turns, padding=np.ones(len(turns), bool))
        assert_finite(experienced(name).credit(padding), padding)


def scaled(name: str, seed: int, shape: Any, factor: float) -> tuple[np.ndarray, np.ndarray]:
    """Advantages before and after all rewards, and what is measured in them, are multiplied."""
    turns = batch(name, seed, shape)
    turns.action_valid[:] = True  # penalties do not scale
    before = experienced(name).credit(turns).advantages
    turns.step_reward *= factor
    for column in IN_UNITS_OF_REWARD.get(name, ()):
        if column == "values":
            turns.values *= factor
        else:
            turns.extras[column] = turns.extras[column] * factor
    return before, experienced(name).credit(turns).advantages


def agrees(kind: str, before: np.ndarray, after: np.ndarray, factor: float) -> bool:
    # Not exactly, because of the epsilon that is added to a deviation.
    return np.allclose(after, before * factor if kind == "scaled" else before, rtol=1e-4, atol=1e-4 * (factor if kind == "scaled" else 1.0))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_RELATIVE])
def test_the_kit_for_plugins_sees_the_same(name):
    tree = "known_total" in configured(name).requires  # all of a group's turns act in one state
    turns = batch(name, 3, [[1, 1, 1]] * 3 if tree else [[3, 2, 4, 1]] * 3)
    kind = SCALE[name] if SCALE[name] != "neither" else None
    check_algorithm(type(configured(name)), configured(name).config, turns, relative=True, scale=kind, in_units_of_reward=IN_UNITS_OF_REWARD.get(name, ()))


@every_preset
def test_how_token_losses_are_aggregated_is_written_down(name):
    algorithm, _, preset = name.partition("@")
    package, _, file = host().find("algorithms", algorithm).entry.defaults.partition(":")
    found = yaml.safe_load(resources.files(package).joinpath(file).read_text())
    written = found.get("objective", {}) | found.get("presets", {}).get(preset or found.get("preset"), {}).get("objective", {})
    if isinstance(configured(name).config.objective, PolicyGradient):
        assert {"aggregation", "unit"} <= written.keys()


@every_algorithm
@few
@given(shape=shapes, seed=seeds, factor=st.sampled_from([0.5, 3.0, 100.0]))
def test_scale_of_rewards(name, shape, seed, factor):
    if SCALE[name] != "neither":
        assert agrees(SCALE[name], *scaled(name, seed, shape, factor), factor)


@pytest.mark.parametrize("name", [name for name in NAMES if SCALE.get(name) == "neither"])
def test_neither_scaled_nor_unchanged(name):
    results = [(*scaled(name, seed, [[3, 2, 4]] * 3, 0.05), 0.05) for seed in range(10)]
    for kind in ("scaled", "unchanged"):
        assert not all(agrees(kind, *result) for result in results)
