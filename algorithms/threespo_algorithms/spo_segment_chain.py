"""SPO-chain: responses are split where the policy was uncertain, a segment's advantage is its gain in value, and only uncertain tokens are trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from threespo_algorithms.episode_term import require_choice
from threespo_algorithms.segments import cut_points, mask_certain, segment_advantages, token_probabilities, whiten
from threespo_bench.contracts.algorithm import Credit
from threespo_bench.errors import DataError, UsageError
from threespo_bench.rollout.episode import PlayedTurn
from threespo_bench.rollout.monte_carlo import Cut, MonteCarloAlgorithm, MonteCarloConfig, MonteCarloSampler
from threespo_bench.turns import TurnBatch


@dataclass
class SegmentChainConfig(MonteCarloConfig):
    """Options of SPO-chain.

    Attributes:
        cut_unit: what can be cut before: a ``turn`` whose least probable token is below the threshold, or such a ``token``, inside responses too.
        probability_threshold: a token with a smaller probability is uncertain.
        cutpoint_interval: every how many cut points a value is estimated.
        estimate_root: the first state is always valued; otherwise the tokens before the first cut point get advantage 0, as in the reference code.
        probability_mask: only uncertain tokens are trained; otherwise all are.
        whiten: advantages get mean 0 and variance 1 over the trained tokens.
    """

    cut_unit: str = "turn"
    probability_threshold: float = 0.9
    cutpoint_interval: int = 5
    estimate_root: bool = True
    probability_mask: bool = True
    whiten: bool = True

    def validate(self) -> None:
        super().validate()
        require_choice("algorithm.cut_unit", self.cut_unit, ("turn", "token"))
        if not 0 < self.probability_threshold <= 1:
            raise UsageError(f"algorithm.probability_threshold={self.probability_threshold} is out of range: must be in (0, 1]")
        if self.cutpoint_interval < 1:
            raise UsageError(f"algorithm.cutpoint_interval={self.cutpoint_interval} is out of range: must be >= 1")


class SegmentChain(MonteCarloAlgorithm):
    """Segment Policy Optimization, chain."""

    Config = SegmentChainConfig
    title = "Segment Policy Optimization, chain (SPO-chain)"
    source = "arXiv:2505.23564"
    notes = (
        "Cut before tokens with p < threshold and keep every n-th cut; V(cut) = mean return of K continuations. A segment's advantage is V(its end) - V(its "
        "beginning) plus the rewards between. Tokens with p > threshold get 0, and the loss is the mean over tokens with p < threshold. The published "
        "method cuts one response at tokens (`cut_unit=token`, which needs an engine that goes on from given tokens); cuts at turns are a reconstruction "
        "for agents."
    )
    needs = frozenset({"restore"})
    requires = ("values", "old_log_probs")

    def __init__(self, config: SegmentChainConfig) -> None:
        super().__init__(config)
        if config.cut_unit == "token":
            self.needs = frozenset({"restore", "prefix"})
        self.sampler = MonteCarloSampler(config.episodes_per_task, config.continuations, token_values=True)

    def cuts(self, turns: Sequence[PlayedTurn]) -> list[Cut]:
        """The kept cut points of an episode, and its first state."""
        config = self.config
        of_turns = [np.exp(turn.generation.log_probs.astype(float)) for turn in turns]
        if config.cut_unit == "turn":
            least = np.array([probabilities.min(initial=1.0) for probabilities in of_turns])
            found = [(int(turn), 0) for turn in cut_points(least, config.probability_threshold, config.cutpoint_interval)]
        else:
            starts = np.cumsum([0, *map(len, of_turns)])
            places = cut_points(np.concatenate(of_turns), config.probability_threshold, config.cutpoint_interval)
            in_turns = np.searchsorted(starts, places, side="right") - 1
            found = [(int(turn), int(place - starts[turn])) for turn, place in zip(in_turns, places, strict=True)]
        return found if not config.estimate_root or (0, 0) in found else [(0, 0), *found]

    def credit(self, turns: TurnBatch) -> Credit:
        """Segment advantages on the uncertain tokens, which alone take part in the update."""
        turns.require(self.requires, "spo_segment_chain")
        if turns.values.ndim != 2:
            raise DataError(f"spo_segment_chain needs values before tokens, but the column values has shape {turns.values.shape}")
        config, tokens = self.config, turns.response_mask & turns.real[:, None]
        advantages, selected = segment_advantages(turns), tokens
        if config.probability_mask:
            advantages, selected = mask_certain(advantages, token_probabilities(turns), config.probability_threshold)
        diagnostics = _diagnostics(turns, advantages, selected, tokens)
        if config.whiten:
            advantages = whiten(advantages, selected if selected.any() else tokens)
        return Credit(advantages, selected=selected.any(axis=1), selected_tokens=selected, diagnostics=diagnostics)

    def diagnostics(self) -> dict[str, float]:
        """The continuations of the last iteration."""
        return self.sampler.diagnostics()


def _diagnostics(turns: TurnBatch, advantages: np.ndarray, selected: np.ndarray, tokens: np.ndarray) -> dict[str, float]:
    count, inside = max(int(tokens.sum()), 1), advantages[selected]
    return {
        "segments/cuts": float(np.isfinite(turns.values[tokens]).sum()),
        "segments/trained_token_share": float(selected.sum() / count),
        "advantage/mean": float(inside.mean()) if len(inside) else 0.0,
        "advantage/std": float(inside.std()) if len(inside) else 0.0,
    }
