"""The sampler ``segment_tree``: every task grows one tree of segments of turns; all of its edges are valued and learned from.

A state has as many outgoing edges as its level's branch factor. An edge is a sequence of turns: ``segment_turns`` of them, or up to the end of the
episode on the last level. A leaf is worth its return, a state the mean of its children (SPO-tree, arXiv:2505.23564).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from threespo_bench.contracts.algorithm import Algorithm
from threespo_bench.contracts.environment import Task
from threespo_bench.contracts.sampler import RolloutContext, Sampler
from threespo_bench.rollout.batching import make_batch
from threespo_bench.rollout.concurrency import together
from threespo_bench.rollout.episode import Episode, EpisodeState, PlayedTurn
from threespo_bench.rollout.forking import fork
from threespo_bench.rollout.playing import begin, play_turn
from threespo_bench.turns import TurnBatch


@dataclass(frozen=True, slots=True)
class Node:
    """A state of the tree with the edge that led to it.

    Attributes:
        node_id: iteration/task place/branches from the root. turns: those of the edge; none for the root.
        children: empty for a leaf, which is where an episode ended.
        value: the return of a leaf, counted from the root; the mean over the children of any other state.
        success: 1 or 0 for a leaf; the mean over the children of any other state.
    """

    node_id: str
    turns: tuple[PlayedTurn, ...]
    children: tuple[Node, ...]
    value: float
    success: float

    def edges(self) -> Iterator[tuple[Node, Node]]:
        """(parent, child) of all edges below, parents before their children."""
        for child in self.children:
            yield self, child
            yield from child.edges()


class SegmentTreeSampler(Sampler):
    """Grows the trees of all tasks at once and yields one batch, a row for each turn of each edge.

    The group of a row is the state its edge starts from, its trajectory is the edge, and its ``step_id`` counts turns from the root. Further columns, (N,)
    float64 each: ``edge_value`` and ``parent_value``, the values of the states where the edge ends and starts; ``edge_success`` and ``parent_success``,
    their shares of successes.

    Args:
        branch_factors: outgoing edges of a state, level by level. segment_turns: turns of an edge on all levels but the last.
    """

    def __init__(self, branch_factors: Sequence[int], segment_turns: int) -> None:
        self.branch_factors, self.segment_turns = tuple(branch_factors), segment_turns
        self._report: dict[str, float] = {}

    async def collect(self, context: RolloutContext, algorithm: Algorithm) -> AsyncIterator[TurnBatch]:
        """One batch: the edges of all trees, depth first."""
        roots = await together(self._tree(context, place, task) for place, task in enumerate(context.tasks))
        edges = [edge for root in roots for edge in root.edges()]
        self._note(roots, [child for _, child in edges])
        yield _batch(edges)

    def most_env_steps(self, tasks: int, max_turns: int) -> int:
        """All edges at their full length."""
        total, edges, left = 0, 1, max_turns
        for level, branches in enumerate(self.branch_factors, start=1):
            length = left if level == len(self.branch_factors) else min(self.segment_turns, left)
            edges, left = edges * branches, left - length
            total += edges * length
        return tasks * total

    def diagnostics(self) -> dict[str, float]:
        """The shape and the values of the last iteration's trees."""
        return dict(self._report)

    async def _tree(self, context: RolloutContext, place: int, task: Task) -> Node:
        episode = await begin(context, task)
        return await self._expand(context, f"{context.iteration}/{place}", (), episode.state, 0.0, level=0)

    async def _expand(self, context: RolloutContext, node_id: str, turns: tuple[PlayedTurn, ...], state: EpisodeState, collected: float, level: int) -> Node:
        """The inner node at ``state`` with all that grows from it. ``collected`` is the reward on the way to it."""
        branches = range(self.branch_factors[level])
        children = await together(self._grow(context, f"{node_id}/{i}", state, collected, level) for i in branches)
        value, success = (sum(amounts) / len(children) for amounts in zip(*((child.value, child.success) for child in children), strict=True))
        return Node(node_id, turns, tuple(children), value, success)

    async def _grow(self, context: RolloutContext, node_id: str, state: EpisodeState, collected: float, level: int) -> Node:
        """One edge from ``state``, and what grows from its end."""
        episode = await fork(context, state)
        last = level == len(self.branch_factors) - 1
        turns = await _segment(context, episode, None if last else self.segment_turns, lambda turn: context.streams.integer("sample", node_id, turn))
        collected += sum(turn.reward for turn in turns)
        if episode.ended:  # at whatever depth: an early ending is a leaf
            context.budget.charge(episodes=1)
            return Node(node_id, turns, (), collected, float(turns[-1].success))
        return await self._expand(context, node_id, turns, episode.state, collected, level + 1)

    def _note(self, roots: Sequence[Node], nodes: Sequence[Node]) -> None:
        leaves = [node for node in nodes if not node.children]
        depth = len(self.branch_factors)
        early = sum(node.node_id.count("/") - 1 < depth for node in leaves)
        self._report = {
            "tree/edges": float(len(nodes)),
            "tree/leaves": float(len(leaves)),
            "tree/early_leaf_share": early / max(len(leaves), 1),
            "tree/root_value": sum(root.value for root in roots) / max(len(roots), 1),
        }


async def _segment(context: RolloutContext, episode: Episode, limit: int | None, seed_of: Callable[[int], int]) -> tuple[PlayedTurn, ...]:
    """The next ``limit`` turns, or those up to the end of the episode."""
    turns: list[PlayedTurn] = []
    while not episode.ended and (limit is None or len(turns) < limit):
        turns.append(await play_turn(context, episode, seed_of(len(turns))))
    return tuple(turns)


def _batch(edges: Sequence[tuple[Node, Node]]) -> TurnBatch:
    rows = [(parent, child, turn) for parent, child in edges for turn in child.turns]
    return make_batch(
        [turn for _, _, turn in rows],
        group_ids=[parent.node_id for parent, _, _ in rows],
        traj_ids=[child.node_id for _, child, _ in rows],
        extras={
            "edge_value": np.array([child.value for _, child, _ in rows]),
            "parent_value": np.array([parent.value for parent, _, _ in rows]),
            "edge_success": np.array([child.success for _, child, _ in rows]),
            "parent_success": np.array([parent.success for parent, _, _ in rows]),
        },
    )
