"""Which of a group's trajectories (or single turns) is preferred to which other one.

The rules: contenders are compared inside their group, by value, among equal values the one with fewer turns is better; equal values are ties and
make no pair, nor do differences below ``min_gap``; contenders of the same content make no pair; an empty response is no part of any; a turn
without a valid action is never on the winning side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from threespo_algorithms.episode_term import require_choice
from threespo_algorithms.generalized_advantage import Segments, trajectories
from threespo_algorithms.preference_credit import PreferenceConfig
from threespo_bench.contracts.algorithm import Item, Preferences
from threespo_bench.errors import UsageError
from threespo_bench.seeding import Streams
from threespo_bench.turns import TurnBatch, codes, object_column

PAIRINGS = ("best_worst", "all_mixed", "adjacent")
_DECIMALS = 9  # values that differ by less are equal: sums of rewards carry rounding errors


@dataclass
class PairedConfig(PreferenceConfig):
    """Options of algorithms that make pairs.

    Attributes:
        pairing: ``best_worst`` is one pair a group, the best and the worst one that is different from it; ``all_mixed`` is every success with every
            failure; ``adjacent`` is each one with the next worse.
        max_pairs_per_group: in ``all_mixed``, so many pairs of a group are drawn from all; the draw depends on their ids only.
        min_gap: least difference of the values, in units of reward; equal values never make a pair.
    """

    pairing: str = "best_worst"
    max_pairs_per_group: int = 4
    min_gap: float = 1.0

    def validate(self) -> None:
        super().validate()
        require_choice("algorithm.pairing", self.pairing, PAIRINGS)
        if self.max_pairs_per_group < 1:
            raise UsageError(f"algorithm.max_pairs_per_group={self.max_pairs_per_group} is out of range: must be >= 1")
        if self.min_gap < 0:
            raise UsageError(f"algorithm.min_gap={self.min_gap} is out of range: must be >= 0")


@dataclass
class TrajectoryPairsConfig(PairedConfig):
    """Options of algorithms that pair whole trajectories, by their returns.

    Attributes:
        loser_extra_turns: the losing trajectory is cut to at most so many turns more than the winning one has (ETO, arXiv:2403.02502); null does not cut.
    """

    loser_extra_turns: int | None = 5

    def validate(self) -> None:
        super().validate()
        if self.loser_extra_turns is not None and self.loser_extra_turns < 0:
            raise UsageError(f"algorithm.loser_extra_turns={self.loser_extra_turns} is out of range: must be >= 0, or null")


@dataclass(frozen=True)
class Contenders:
    """M trajectories or turns that may be preferred to one another.

    Attributes:
        group: (M,) integers, whom they are compared with. value: (M,) what they are compared by. length: (M,) their turns.
        label: (M,) texts that tell them apart; the last tie-breaker, and the seed of draws.
        content: (M,) integers; equal ones say the same, so that neither can be preferred.
        won: (M,) bool, successes. may_win, may_lose: (M,) bool, there is something to learn from on that side.
    """

    group: np.ndarray
    value: np.ndarray
    length: np.ndarray
    label: np.ndarray
    content: np.ndarray
    won: np.ndarray
    may_win: np.ndarray
    may_lose: np.ndarray

    def take(self, places: np.ndarray) -> Contenders:
        """Those at the given places, in that order."""
        return Contenders(**{field.name: getattr(self, field.name)[places] for field in fields(self)})


def choose_pairs(contenders: Contenders, pairing: str, min_gap: float, max_pairs_per_group: int) -> tuple[np.ndarray, np.ndarray]:
    """(P,) numbers of the preferred contenders and (P,) of those they are preferred to. Does not depend on the order of the contenders.

    Args:
        contenders: all of them. pairing, min_gap, max_pairs_per_group: as in :class:`PairedConfig`.
    """
    rank = _ranks(contenders.label)
    value = np.round(contenders.value, _DECIMALS)
    order = np.lexsort((rank, contenders.length, -value, contenders.group))  # group by group, the best first
    order = order[np.isfinite(value[order])]
    ranked, value = contenders.take(order), value[order]
    chosen, rejected = _PAIRINGS[pairing](ranked)
    gap = np.round(value[chosen] - value[rejected], _DECIMALS)
    good = ranked.may_win[chosen] & ranked.may_lose[rejected] & (ranked.content[chosen] != ranked.content[rejected]) & (gap > 0) & (gap >= min_gap)
    chosen, rejected = chosen[good], rejected[good]
    if pairing == "all_mixed":
        kept = _drawn(ranked, chosen, max_pairs_per_group)
        chosen, rejected = chosen[kept], rejected[kept]
    chosen, rejected = order[chosen], order[rejected]
    by_label = np.lexsort((rank[rejected], rank[chosen]))
    return chosen[by_label], rejected[by_label]


def trajectory_preferences(turns: TurnBatch, config: TrajectoryPairsConfig, weigh: Callable[[int], np.ndarray] = np.ones) -> Preferences:
    """Pairs of trajectories of the same group, preferred by their returns.

    Args:
        turns: with ``success`` if ``config.pairing`` is ``all_mixed``. config: the rules.
        weigh: the weights of the turns of a trajectory of n turns, in the order of time; by default all 1.
    """
    segments = trajectories(turns)
    said = response_codes(turns)
    good, spoken = usable(turns, chosen=True), usable(turns, chosen=False)
    chosen, rejected = choose_pairs(_trajectory_contenders(turns, segments, said), config.pairing, config.min_gap, config.max_pairs_per_group)
    winners, losers = [], []
    for better, worse in zip(chosen.tolist(), rejected.tolist(), strict=True):
        won, lost = _rows(segments, better), _rows(segments, worse)
        if config.loser_extra_turns is not None:
            lost = lost[: len(won) + config.loser_extra_turns]
        if np.array_equal(said[won], said[lost]):
            continue  # what was cut is all that made them different
        winner, loser = make_item(won, weigh(len(won)), good), make_item(lost, weigh(len(lost)), spoken)
        if len(winner.rows) and len(loser.rows):
            winners.append(winner)
            losers.append(loser)
    return Preferences(winners, losers)


def turn_preferences(turns: TurnBatch, contenders: Contenders, rows: np.ndarray, pairing: str, min_gap: float, max_pairs_per_group: int) -> Preferences:
    """Pairs of single turns: contender i is the turn in row ``rows[i]``."""
    one = np.ones(1)
    chosen, rejected = choose_pairs(contenders, pairing, min_gap, max_pairs_per_group)
    return Preferences([Item(rows[[i]], one) for i in chosen], [Item(rows[[i]], one) for i in rejected])


def make_item(rows: np.ndarray, weights: np.ndarray, good: np.ndarray) -> Item:
    """Those of the rows that can be learned from, as an item. ``good`` is (N,) of :func:`usable`."""
    kept = good[rows]
    return Item(rows[kept], weights[kept])


def usable(turns: TurnBatch, chosen: bool) -> np.ndarray:
    """(N,) the turn can be learned from on that side: it has response tokens, and where it is chosen, a valid action."""
    spoken = turns.real & turns.response_mask.any(axis=1)
    return spoken & turns.action_valid if chosen and turns.action_valid is not None else spoken


def response_codes(turns: TurnBatch) -> np.ndarray:
    """(N,) integers that are equal where the responses have the same tokens; all different where ``response_ids`` was not recorded."""
    if turns.response_ids is None:
        return np.arange(len(turns))
    packed = np.zeros((len(turns), turns.response_mask.shape[1] + 1), np.int32)
    lengths = turns.response_mask.sum(axis=1)
    packed[:, 0] = lengths
    row, column = np.nonzero(turns.response_mask)
    starts = np.cumsum(lengths) - lengths
    packed[row, 1 + np.arange(len(row)) - starts[row]] = turns.response_ids[row, column]  # without gaps, wherever the mask has them
    data, width = packed.tobytes(), packed.strides[0]
    return codes(object_column([data[start : start + width] for start in range(0, len(data), width)]))


def trajectory_success(turns: TurnBatch, segments: Segments) -> np.ndarray:
    """(S,) some turn of the trajectory succeeded; false where success was not recorded."""
    if turns.success is None:
        return np.zeros(len(segments.starts), bool)
    return _any_of(turns.success[segments.rows], segments)


def _trajectory_contenders(turns: TurnBatch, segments: Segments, said: np.ndarray) -> Contenders:
    first = segments.rows[segments.starts]
    texts = object_column([tuple(said[_rows(segments, place)].tolist()) for place in range(len(first))])
    return Contenders(
        group=codes(turns.group_id)[first],
        value=turns.episode_return()[first],
        length=segments.lengths,
        label=object_column([repr(name) for name in turns.traj_id[first].tolist()]),
        content=codes(texts),
        won=trajectory_success(turns, segments),
        may_win=_any_of(usable(turns, chosen=True)[segments.rows], segments),
        may_lose=_any_of(usable(turns, chosen=False)[segments.rows], segments),
    )


def _any_of(flags: np.ndarray, segments: Segments) -> np.ndarray:
    """(S,) some row of the segment has its flag, which stands in the order of ``segments.rows``."""
    return np.logical_or.reduceat(flags, segments.starts) if len(flags) else np.zeros(0, bool)


def _rows(segments: Segments, place: int) -> np.ndarray:
    """The rows of one segment in the order of time."""
    start = segments.starts[place]
    return segments.rows[start : start + segments.lengths[place]]


def _ranks(labels: np.ndarray) -> np.ndarray:
    """(M,) places of the labels in sorted order."""
    place = {label: number for number, label in enumerate(sorted(set(labels.tolist())))}
    return np.fromiter((place[label] for label in labels.tolist()), np.int64, len(labels))


Places = tuple[np.ndarray, np.ndarray]


def _best_worst(ranked: Contenders) -> Places:
    """The best of each group and the worst of those that say something else. ``ranked`` is in the order of groups, the best first."""
    able = np.flatnonzero(ranked.may_win)
    groups, at = np.unique(ranked.group[able], return_index=True)
    best = np.full(int(ranked.group.max(initial=-1)) + 1, -1)
    best[groups] = able[at]
    mine = best[ranked.group]
    other = np.flatnonzero((mine >= 0) & ranked.may_lose & (ranked.content != ranked.content[mine]) & (np.arange(len(mine)) > mine))
    _, at = np.unique(ranked.group[other[::-1]], return_index=True)
    worst = other[::-1][at]
    return mine[worst], worst


def _all_mixed(ranked: Contenders) -> Places:
    """Every success with every failure of its group."""
    winners, losers = np.flatnonzero(ranked.won), np.flatnonzero(~ranked.won)
    start, end = (np.searchsorted(ranked.group[losers], ranked.group[winners], side) for side in ("left", "right"))
    counts = end - start
    inside = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(winners, counts), losers[np.repeat(start, counts) + inside]


def _adjacent(ranked: Contenders) -> Places:
    """Each with the next one of its group."""
    better = np.flatnonzero(ranked.group[1:] == ranked.group[:-1])
    return better, better + 1


_PAIRINGS: dict[str, Callable[[Contenders], Places]] = {"best_worst": _best_worst, "all_mixed": _all_mixed, "adjacent": _adjacent}


def _drawn(ranked: Contenders, chosen: np.ndarray, most: int) -> np.ndarray:
    """Which pairs stay: at most so many of each group, drawn by a generator whose seed is the labels of the group's contenders."""
    group = ranked.group[chosen]
    kept = np.ones(len(chosen), bool)
    for crowded in np.flatnonzero(np.bincount(group) > most).tolist():
        start, end = np.searchsorted(group, [crowded, crowded + 1])
        labels = sorted(ranked.label[slice(*np.searchsorted(ranked.group, [crowded, crowded + 1]))].tolist())
        kept[start:end] = False
        kept[start + Streams(0).generator("preference.pairs", *labels).permutation(end - start)[:most]] = True
    return kept
