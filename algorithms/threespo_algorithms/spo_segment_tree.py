"""SPO-tree: a tree of segments in which every edge is both a sample of values and a sample that is learned from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from threespo_algorithms.episode_term import require_choice
from threespo_algorithms.group_statistics import GroupStatistics, first_turns, group_statistics, over_tokens
from threespo_algorithms.segments import mask_certain, token_probabilities
from threespo_bench.contracts.algorithm import Algorithm, AlgorithmConfig, Credit
from threespo_bench.errors import UsageError
from threespo_bench.rollout.segment_tree import SegmentTreeSampler
from threespo_bench.turns import TurnBatch, codes

_EPSILON = 1e-8


@dataclass
class SegmentTreeConfig(AlgorithmConfig):
    """Options of SPO-tree.

    Attributes:
        branch_factors: edges that leave a state, level by level from the root.
        segment_turns: turns of an edge; on the last level an edge goes on to the end of its episode.
        advantage: ``rloo``, an edge's value less its parent's (a name only: the parent's mean includes the edge), or ``grpo``, that divided by the
            deviation of the siblings.
        probability_mask: only uncertain tokens are trained; otherwise all tokens of an edge are.
        probability_threshold: a token with a smaller probability is uncertain.
        prover_best_of: n of the prover term, which compares the chances that the best of n attempts from both ends of an edge succeeds; 0 is without it.
        prover_weight: factor on the prover term where it is added to the advantage.
    """

    branch_factors: tuple[int, ...] = (6, 6, 6)
    segment_turns: int = 4
    advantage: str = "rloo"
    probability_mask: bool = True
    probability_threshold: float = 0.9
    prover_best_of: int = 0
    prover_weight: float = 1.0

    def validate(self) -> None:
        super().validate()
        require_choice("algorithm.advantage", self.advantage, ("rloo", "grpo"))
        if not self.branch_factors or any(factor < 1 for factor in self.branch_factors):
            raise UsageError(f"algorithm.branch_factors={list(self.branch_factors)} is out of range: must be one number >= 1 for each level")
        if self.segment_turns < 1:
            raise UsageError(f"algorithm.segment_turns={self.segment_turns} is out of range: must be >= 1")
        if not 0 < self.probability_threshold <= 1:
            raise UsageError(f"algorithm.probability_threshold={self.probability_threshold} is out of range: must be in (0, 1]")
        for name in ("prover_best_of", "prover_weight"):
            if getattr(self, name) < 0:
                raise UsageError(f"algorithm.{name}={getattr(self, name)} is out of range: must be >= 0")


class SegmentTree(Algorithm):
    """Segment Policy Optimization, tree."""

    Config = SegmentTreeConfig
    title = "Segment Policy Optimization, tree (SPO-tree)"
    source = "arXiv:2505.23564"
    notes = (
        "V(leaf) = return, V(state) = mean over its children, A(edge) = V(its end) - V(its beginning), divided by the population deviation of the siblings "
        "in mode `grpo`; edges with advantage 0 are dropped and only uncertain tokens are trained. A level is a number of turns where the published one is "
        "a number of tokens: a reconstruction for agents. The published code tests the sum of the advantage and the best-of-4 prover term for 0, which "
        "drops the same edges as the advantage alone where a return says no more than success; `prover_best_of=4` adds the term to the advantage. "
        "Replay of edges of earlier iterations is left out."
    )
    needs = frozenset({"restore"})
    requires = ("edge_value", "parent_value", "edge_success", "parent_success", "old_log_probs")

    def __init__(self, config: SegmentTreeConfig) -> None:
        super().__init__(config)
        self.sampler = SegmentTreeSampler(config.branch_factors, config.segment_turns)

    def credit(self, turns: TurnBatch) -> Credit:
        """The edge's advantage on its uncertain tokens; edges with advantage 0 take no part in the update."""
        turns.require(self.requires, "spo_segment_tree")
        config, first = self.config, first_turns(turns)  # the first turn stands for its edge
        advantage, siblings = self._value_term(turns, first)
        if config.prover_best_of:
            advantage = advantage + config.prover_weight * prover_term(turns, first, config.prover_best_of)
        advantages = over_tokens(advantage, turns)
        selected = turns.response_mask & turns.real[:, None]
        if config.probability_mask:
            advantages, selected = mask_certain(advantages, token_probabilities(turns), config.probability_threshold)
        kept = turns.real & (advantage != 0)
        selected = selected & kept[:, None]
        edges = max(int(first.sum()), 1)
        diagnostics = siblings.shares("siblings", first) | {
            "edges/dropped_share": float((first & ~kept).sum() / edges),
            "segments/trained_token_share": float(selected.sum() / max(int(turns.response_mask[turns.real].sum()), 1)),
            "advantage/absolute_mean": float(np.abs(advantage[first]).mean()) if first.any() else 0.0,
        }
        return Credit(advantages, selected=selected.any(axis=1), selected_tokens=selected, diagnostics=diagnostics)

    def diagnostics(self) -> dict[str, float]:
        """The trees of the last iteration."""
        return self.sampler.diagnostics()

    def _value_term(self, turns: TurnBatch, first: np.ndarray) -> tuple[np.ndarray, GroupStatistics]:
        """(N,) A = V(child) - V(parent), over the siblings' deviation in mode ``grpo``, and the moments of the siblings."""
        statistics = group_statistics(turns.extras["edge_value"], codes(turns.group_id), first)
        gain = _between_siblings(turns.extras["edge_value"] - turns.extras["parent_value"], statistics)
        if self.config.advantage == "rloo":
            return gain, statistics
        population = statistics.population()
        return gain / (population.std + _EPSILON), population


def prover_term(turns: TurnBatch, first: np.ndarray, best_of: int) -> np.ndarray:
    """(N,) ``B(child) - B(parent)`` with ``B(s) = 1 - (1 - p(s))^n``, the chance that one of n attempts from s succeeds.

    Args:
        first: (N,) bool, the first turn of each edge. best_of: n.
    """
    chance = {name: 1.0 - (1.0 - turns.extras[name]) ** best_of for name in ("edge_success", "parent_success")}
    statistics = group_statistics(turns.extras["edge_success"], codes(turns.group_id), first)
    return _between_siblings(chance["edge_success"] - chance["parent_success"], statistics)


def _between_siblings(gain: np.ndarray, siblings: GroupStatistics) -> np.ndarray:
    """(N,) the gain, exactly 0 for edges without siblings and among equal siblings."""
    return np.where(siblings.single | siblings.constant, 0.0, gain)
