"""The sampler ``segment_tree``: its shape, where edges begin, early endings, values, and what it costs."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.rollout.players import Drawing, context, household
from tests.rollout.trails import Bits, ReplayedTrail, Trail, binary, iteration
from threespo_bench.contracts.sampler import RolloutContext
from threespo_bench.rollout.segment_tree import SegmentTreeSampler
from threespo_bench.turns import TurnBatch


def collect(run: RolloutContext, sampler: SegmentTreeSampler) -> TurnBatch:
    async def gather() -> list[TurnBatch]:
        return [turns async for turns in sampler.collect(run, None)]  # type: ignore[arg-type]

    (batch,) = asyncio.run(gather())
    return batch


def edges(turns: TurnBatch) -> dict[str, np.ndarray]:
    """Edge -> its rows, in time."""
    found = {}
    for edge in dict.fromkeys(turns.traj_id):
        rows = np.flatnonzero(turns.traj_id == edge)
        found[edge] = rows[np.argsort(turns.step_id[rows])]
    return found


@pytest.mark.parametrize("world", [Trail, ReplayedTrail])
def test_shape_and_states(world: type[Trail]) -> None:
    run = iteration(world(**binary(7)), Bits(), tasks=2, number=3)
    turns = collect(run, SegmentTreeSampler([2, 3, 2], segment_turns=2))
    found = edges(turns)
    depth = {edge: edge.count("/") - 1 for edge in found}
    assert [sum(d == level for d in depth.values()) for level in (1, 2, 3)] == [2 * 2, 2 * 6, 2 * 12]
    for edge, rows in found.items():
        assert len(rows) == (2 if depth[edge] < 3 else 3), "the last level plays on to the end"
        assert turns.step_id[rows].tolist() == list(range(2 * (depth[edge] - 1), 2 * (depth[edge] - 1) + len(rows)))
        parent = edge.rpartition("/")[0]
        assert set(turns.group_id[rows]) == {parent}
        begun = turns.next_anchor_obs[found[parent][-1]] if parent in found else f"{turns.task_key[rows[0]][-1]}:"
        assert turns.anchor_obs[rows[0]] == begun, "an edge begins where its parent ended"
    assert run.budget.spent.env_steps == len(turns) == 2 * (2 * 2 + 6 * 2 + 12 * 3)
    assert run.budget.spent.episodes == 24
    assert (turns.terminated == (turns.step_id == 6)).all()


def test_values_are_means_over_children_and_a_leaf_is_worth_its_return() -> None:
    turns = collect(iteration(Trail(**binary(5)), Bits(), tasks=2), SegmentTreeSampler([3, 3], segment_turns=2))
    found = edges(turns)
    value = {edge: turns.extras["edge_value"][rows[0]] for edge, rows in found.items()}
    for edge, rows in found.items():
        assert len(set(turns.extras["edge_value"][rows])) == len(set(turns.extras["parent_value"][rows])) == 1
        children = [value[child] for child in found if child.rpartition("/")[0] == edge]
        assert value[edge] == (pytest.approx(np.mean(children)) if children else turns.step_reward[rows[-1]])
        siblings = [value[child] for child in found if child.rpartition("/")[0] == edge.rpartition("/")[0]]
        assert turns.extras["parent_value"][rows[0]] == pytest.approx(np.mean(siblings))


def test_an_early_ending_is_a_leaf_that_weighs_as_much_as_a_subtree() -> None:
    """Trails that begin with 1 end at once and pay 8; the others go on and pay nothing."""
    world = Trail(pays=lambda trail: 8.0 * (trail == "1"), ends=lambda trail: trail == "1" or len(trail) == 4)
    sampler = SegmentTreeSampler([6, 2, 2], segment_turns=1)
    turns = collect(iteration(world, Bits()), sampler)
    top = {edge: rows for edge, rows in edges(turns).items() if edge.count("/") == 2}
    won = [edge for edge, rows in top.items() if turns.success[rows[-1]]]
    assert 0 < len(won) < 6, "the draws show both"
    assert not any(edge.startswith(f"{leaf}/") for leaf in won for edge in turns.traj_id)
    assert set(turns.extras["parent_value"][turns.group_id == "0/0"]) == {8.0 * len(won) / 6}
    assert set(turns.extras["parent_success"][turns.group_id == "0/0"]) == {len(won) / 6}
    told = sampler.diagnostics()
    assert told["tree/leaves"] == len(won) + 4 * (6 - len(won))
    assert told["tree/early_leaf_share"] == len(won) / told["tree/leaves"]
    assert told["tree/root_value"] == pytest.approx(8.0 * len(won) / 6)


def test_returns_count_from_the_root_and_the_step_limit_makes_a_leaf() -> None:
    turns = collect(iteration(Trail(pays=lambda trail: 1.0, ends=lambda trail: False), Bits(), max_turns=5), SegmentTreeSampler([2, 2], segment_turns=2))
    assert set(turns.extras["edge_value"]) == {5.0}
    assert set(turns.extras["edge_success"]) == {0.0}
    assert (turns.truncated == (turns.step_id == 4)).all()


def test_equal_runs_are_equal_and_trees_do_not_depend_on_their_neighbours() -> None:
    environment = household()
    tasks = environment.tasks("train")

    def grow(count: int) -> TurnBatch:
        return collect(context(environment, Drawing(), tasks[:count]), SegmentTreeSampler([2, 2], segment_turns=2))

    both, again, alone = grow(2), grow(2), grow(1)
    assert np.array_equal(both.response_ids, again.response_ids) and np.array_equal(both.traj_id, again.traj_id)
    kept = both.task_key == tasks[0].key
    assert np.array_equal(both.extras["command"][kept], alone.extras["command"])


def test_all_edges_wait_for_the_engine_together() -> None:
    engine = Bits()
    collect(iteration(Trail(**binary(3)), engine, tasks=2), SegmentTreeSampler([3, 4], segment_turns=1))
    assert engine.most_waiting == 2 * 3 * 4
