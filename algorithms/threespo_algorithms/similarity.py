"""Clusters of similar texts or vectors inside each group, greedy and independent of the order of the rows.

The distinct keys of a group are taken in sorted order. Each joins the first earlier cluster whose leader, the key that founded it, is
similar enough, or else founds its own. Similarity is not transitive, so another order could give other clusters; sorting makes them
depend on the set of keys alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher

import numpy as np

from threespo_bench.errors import DataError
from threespo_bench.turns import group_codes

_BUCKETS, _ROWS = 128, 8
_ROUNDING = 1e-9
"""A similarity this little below the threshold still counts: it may be rounding."""


def similar_texts(group_id: np.ndarray, texts: np.ndarray, members: np.ndarray, threshold: float) -> np.ndarray:
    """(N,) cluster codes: equal for rows of one group whose texts are in one cluster; 0 on rows that are no members.

    The similarity of a text to a leader is ``SequenceMatcher(None, leader, text).ratio()``, difflib's 2 M / T. It is asked for only where two
    upper bounds of it reach the threshold: the one by lengths, and the one by how often each character occurs.

    Args:
        group_id: (N,) ids. texts: (N,) strings. members: (N,) bool, rows that enter. threshold: least ratio, in (0, 1].

    Raises:
        DataError: a key is no text.
    """
    alike = _Alike(threshold)
    return _clusters(group_id, texts, members, lambda distinct, _: _text_leaders(distinct, alike))


def similar_vectors(group_id: np.ndarray, keys: np.ndarray, vectors: np.ndarray, members: np.ndarray, threshold: float) -> np.ndarray:
    """(N,) cluster codes of keys by the cosine similarity of their vectors; 0 on rows that are no members.

    Args:
        group_id, keys: (N,) ids; rows with equal keys are always together. vectors: (N,) object array of (D,) float vectors; a key's vector is the mean of
            the directions that its rows in the group have. members: (N,) bool, rows that enter. threshold: least cosine, in (0, 1].
    """
    return _clusters(group_id, keys, members, lambda _, rows: _vector_leaders([_direction(vectors[of_key]) for of_key in rows], threshold))


_Leaders = Callable[[list, list[np.ndarray]], list[int]]
"""From the distinct keys of a group, sorted, and the rows of each: the place of each key's leader among them."""


def _clusters(group_id: np.ndarray, keys: np.ndarray, members: np.ndarray, leaders: _Leaders) -> np.ndarray:
    """(N,) codes of (group, cluster) by the leaders found in each group."""
    rows = np.flatnonzero(members)
    pair = group_codes(group_id[rows], keys[rows])
    order = np.argsort(pair, kind="stable")
    rows_of = np.split(rows[order], np.cumsum(np.bincount(pair))[:-1]) if len(rows) else []
    by_group: dict[object, list[int]] = {}
    for code, of_pair in enumerate(rows_of):
        by_group.setdefault(group_id[of_pair[0]], []).append(code)
    leader = np.arange(len(rows_of))
    for pairs in by_group.values():
        ordered = np.array(sorted(pairs, key=lambda code: str(keys[rows_of[code][0]])))
        leader[ordered] = ordered[leaders([keys[rows_of[code][0]] for code in ordered], [rows_of[code] for code in ordered])]
    clusters = np.zeros(len(members), np.int64)
    clusters[rows] = leader[pair]
    return clusters


class _Alike:
    """Which texts are alike. Answers are kept, since tasks share many texts."""

    def __init__(self, threshold: float) -> None:
        self._least = threshold - _ROUNDING
        self._answers: dict[tuple[str, str], bool] = {}
        self._characters: dict[str, np.ndarray] = {}

    def __call__(self, leader: str, text: str) -> bool:
        """The ratio reaches the threshold."""
        if (leader, text) not in self._answers:
            self._answers[leader, text] = SequenceMatcher(None, leader, text).ratio() >= self._least
        return self._answers[leader, text]

    def possible(self, texts: Sequence[str]) -> Iterator[np.ndarray]:
        """For each text the places of the earlier ones that it may be like: those for which both bounds of the ratio reach the threshold."""
        lengths = np.array([len(text) for text in texts])
        characters = np.stack([self._occurrences(text) for text in texts])
        for start in range(0, len(texts), _ROWS):
            rows = slice(start, start + _ROWS)
            total = lengths[rows, None] + lengths
            near = 2 * np.minimum(lengths[rows, None], lengths) >= self._least * total
            near &= np.tri(near.shape[0], near.shape[1], start - 1, bool)
            one, other = np.nonzero(near)
            common = np.minimum(characters[rows][one], characters[other]).sum(axis=1)  # 2 M / T <= 2 common / T
            near[one, other] = 2 * common >= self._least * total[one, other]
            yield from (np.flatnonzero(row) for row in near)

    def _occurrences(self, text: str) -> np.ndarray:
        """(128,) how often characters occur; those that share a place only make the bound looser."""
        if text not in self._characters:
            points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
            self._characters[text] = np.bincount(points % _BUCKETS, minlength=_BUCKETS).astype(np.int32)
        return self._characters[text]


def _text_leaders(texts: Sequence[str], alike: _Alike) -> list[int]:
    for text in texts:
        if not isinstance(text, str):
            raise DataError(f"the similarity of state keys needs texts, but {text!r} is a {type(text).__name__}")
    leader_of: list[int] = []
    for place, near in enumerate(alike.possible(texts)):
        founders = (other for other in near.tolist() if leader_of[other] == other)
        leader_of.append(next((founder for founder in founders if alike(texts[founder], texts[place])), place))
    return leader_of


def _vector_leaders(directions: list[np.ndarray], threshold: float) -> list[int]:
    matrix = np.stack(directions)
    founders: list[int] = []
    leader_of = []
    for place, direction in enumerate(matrix):
        near = np.flatnonzero(matrix[founders] @ direction >= threshold - _ROUNDING)
        leader_of.append(founders[near[0]] if len(near) else place)
        if not len(near):
            founders.append(place)
    return leader_of


def _direction(vectors: np.ndarray) -> np.ndarray:
    """(D,) the mean direction of some vectors, of length 1 (or 0)."""
    if all(vector is vectors[0] for vector in vectors):  # equal texts usually share one vector
        vectors = vectors[:1]
    matrix = np.stack([np.asarray(vector, float) for vector in vectors])
    return _unit(_unit(matrix).mean(axis=0))


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), np.finfo(float).tiny)
