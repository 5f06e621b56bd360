"""SPO-tree against worked numbers, and on trees that were really grown."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.algorithms.batches import turns
from tests.rollout.trails import Bits, Trail, iteration
from threespo_algorithms.spo_segment_tree import SegmentTree, SegmentTreeConfig, prover_term
from threespo_bench.errors import DataError, UsageError
from threespo_bench.testing import check_algorithm
from threespo_bench.testing.batches import sample_turns
from threespo_bench.turns import TurnBatch

THIRD = 1 / 3


def tree(turns_of_a: int = 1) -> TurnBatch:
    """root -> a {1, 0, 1}, b {0, 0, 0}; the edge to ``a`` may have several turns."""
    edges = ["a"] * turns_of_a + ["b", "a0", "a1", "a2", "b0", "b1", "b2"]
    step = [*range(turns_of_a), 0] + [turns_of_a] * 3 + [1] * 3
    groups = ["r" if len(edge) == 1 else edge[0] for edge in edges]
    value = {"a": 2 * THIRD, "b": 0.0, "r": THIRD, "a0": 1.0, "a1": 0.0, "a2": 1.0, "b0": 0.0, "b1": 0.0, "b2": 0.0}
    batch = turns(groups, edges, step, ["s"] * len(edges), [0.0] * len(edges), [1] * len(edges), [2] * len(edges))
    for name in ("value", "success"):
        batch.extras[f"edge_{name}"] = np.array([value[edge] for edge in edges])
        batch.extras[f"parent_{name}"] = np.array([value[group] for group in groups])
    batch.old_log_probs = np.full(batch.response_mask.shape, np.log(0.5))
    return batch


def credit(batch: TurnBatch, **options):
    return SegmentTree(SegmentTreeConfig(**options)).credit(batch)


def test_rloo():
    found = credit(tree())
    np.testing.assert_allclose(found.advantages[:, 0], [THIRD, -THIRD, THIRD, -2 * THIRD, THIRD, 0, 0, 0], atol=1e-6)
    assert found.selected.tolist() == [True] * 5 + [False] * 3
    assert found.diagnostics["edges/dropped_share"] == 3 / 8


def test_grpo_divides_by_the_population_deviation():
    found = credit(tree(), advantage="grpo")
    np.testing.assert_allclose(found.advantages[:, 0], [1, -1, 0.707107, -1.414214, 0.707107, 0, 0, 0], atol=1e-6)
    assert found.selected.tolist() == [True] * 5 + [False] * 3


def test_prover_term():
    batch = tree()
    np.testing.assert_allclose(prover_term(batch, np.ones(8, bool), 4)[:2], [0.185185, -0.802469], atol=1e-6)
    expected = [THIRD + 0.185185, -THIRD - 0.802469]
    np.testing.assert_allclose(credit(batch, prover_best_of=4).advantages[:2, 0], expected, atol=1e-6)
    np.testing.assert_allclose(credit(batch, prover_best_of=4, prover_weight=0.5).advantages[0, 0], THIRD + 0.5 * 0.185185, atol=1e-6)
    assert credit(batch, prover_best_of=4).selected.tolist() == [True] * 5 + [False] * 3
    assert (credit(batch, prover_best_of=4, prover_weight=0.0).advantages == credit(batch).advantages).all()


@pytest.mark.parametrize("mode", ["rloo", "grpo"])
def test_an_edge_counts_once_however_many_turns_it_has(mode):
    short, long = credit(tree(), advantage=mode).advantages[:, 0], credit(tree(turns_of_a=4), advantage=mode).advantages[:, 0]
    np.testing.assert_allclose(long, np.r_[[short[0]] * 4, short[1:]], atol=1e-9)


@pytest.mark.parametrize("mode", ["rloo", "grpo"])
def test_a_single_child_and_equal_siblings_get_exactly_nothing(mode):
    batch = tree().take(np.array([0, 2]))
    batch.extras["parent_value"] = batch.extras["edge_value"] - 0.1
    assert (credit(batch, advantage=mode, prover_best_of=4).advantages == 0).all()
    equal = turns("r" * 7, "abcdefg", [0] * 7, ["s"] * 7, [0] * 7, [1] * 7, [1] * 7)
    for name in ("value", "success"):
        equal.extras[f"edge_{name}"] = np.full(7, 0.1)
        equal.extras[f"parent_{name}"] = np.full(7, sum([0.1] * 7) / 7)
    equal.old_log_probs = np.full((7, 1), -1.0)
    assert equal.extras["parent_value"][0] != 0.1, "the mean differs by rounding"
    found = credit(equal, advantage=mode, prover_best_of=4)
    assert (found.advantages == 0).all() and not found.selected.any()


def test_probability_mask():
    batch = tree()
    batch.old_log_probs[:, 1] = np.log(0.95)
    found = credit(batch)
    assert (found.advantages[:, 1] == 0).all()
    assert found.selected_tokens[:5].tolist() == [[True, False]] * 5 and not found.selected_tokens[5:].any()
    assert credit(batch, probability_mask=False).selected_tokens[:5].all()
    batch.old_log_probs[0] = np.log(0.95)  # an edge without an uncertain token
    assert not credit(batch).selected[0]


@pytest.mark.parametrize("seed", range(3))
def test_advantages_along_a_path_sum_to_what_it_returned_less_the_value_of_the_root(seed):
    world = Trail(pays=lambda trail: float(trail[-1]) + len(trail) / 8, ends=lambda trail: trail.endswith("111") or len(trail) == 7)
    algorithm = SegmentTree(SegmentTreeConfig(branch_factors=(3, 2, 2), segment_turns=2, probability_mask=False))

    async def grow() -> TurnBatch:
        (batch,) = [batch async for batch in algorithm.collect(iteration(world, Bits(), tasks=2, seed=seed))]
        return batch

    batch = asyncio.run(grow())
    advantage = dict(zip(batch.traj_id, algorithm.credit(batch).advantages[:, 0], strict=True))
    root = {group: value for group, value in zip(batch.group_id, batch.extras["parent_value"], strict=True) if group.count("/") == 1}
    leaves = np.flatnonzero(batch.terminated)
    for row in leaves:
        path = batch.traj_id[row].split("/")
        on_path = ["/".join(path[:depth]) for depth in range(3, len(path) + 1)]
        gains = [advantage[edge] for edge in on_path]
        returned = batch.step_reward[np.isin(batch.traj_id, on_path)].sum()
        assert sum(gains) == pytest.approx(returned - root["/".join(path[:2])], abs=1e-9)
    assert len(leaves) > 8


def sampled() -> TurnBatch:
    batch = sample_turns()
    rng = np.random.default_rng(2)
    edge = {name: rng.random(3) for name in sorted(set(batch.traj_id))}
    of_edge = np.array([edge[name] for name in batch.traj_id])
    batch.extras |= {"edge_value": of_edge[:, 0], "parent_value": np.full(len(batch), 0.5), "edge_success": of_edge[:, 1], "parent_success": of_edge[:, 2]}
    return batch


@pytest.mark.parametrize("options", [{}, {"advantage": "grpo", "prover_best_of": 4}, {"probability_mask": False}])
def test_contract(options):
    check_algorithm(SegmentTree, SegmentTreeConfig(**options), sampled())


def test_missing_values_are_named():
    with pytest.raises(DataError, match="spo_segment_tree needs the column edge_value"):
        credit(sample_turns())


@pytest.mark.parametrize(
    "option",
    [{"branch_factors": ()}, {"branch_factors": (3, 0)}, {"segment_turns": 0}, {"advantage": "ppo"}, {"probability_threshold": 0}, {"prover_best_of": -1}],
)
def test_bad_options(option):
    with pytest.raises(UsageError, match=next(iter(option))):
        SegmentTreeConfig(**option).validate()
