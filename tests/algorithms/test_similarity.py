"""Clusters of similar texts: against comparing everything, and as an option of GiGPO."""

from __future__ import annotations

from difflib import SequenceMatcher

import numpy as np
import pytest

from tests.algorithms.batches import b1, turns
from threespo_algorithms import similarity
from threespo_algorithms.gigpo import GiGPO, GiGPOConfig
from threespo_algorithms.similarity import similar_texts, similar_vectors
from threespo_bench.errors import DataError, UsageError
from threespo_bench.testing import check_algorithm
from threespo_bench.turns import object_column


def texts(rng: np.random.Generator, number: int) -> np.ndarray:
    """Sentences that differ in a word or a number."""
    places, things = ["desk", "shelf", "drawer", "bed"], ["mug", "book", "key", "lamp"]
    return object_column([f"You are at the {rng.choice(places)} {rng.integers(3)}. You see a {rng.choice(things)} {rng.integers(3)}." for _ in range(number)])


def by_comparing_everything(group: np.ndarray, keys: np.ndarray, threshold: float) -> list[tuple[str, str]]:
    leader = {}
    for name in sorted(set(group)):
        leaders: list[str] = []
        for text in sorted(set(keys[group == name])):
            found = next((other for other in leaders if SequenceMatcher(None, other, text).ratio() >= threshold), text)
            if found == text:
                leaders.append(text)
            leader[name, text] = (name, found)
    return [leader[pair] for pair in zip(group, keys, strict=True)]


def partition(labels) -> set[frozenset[int]]:
    rows: dict[object, list[int]] = {}
    for row, label in enumerate(labels):
        rows.setdefault(label, []).append(row)
    return {frozenset(members) for members in rows.values()}


@pytest.mark.parametrize("threshold", [0.8, 0.9, 0.95, 1.0])
def test_the_bounds_lose_nothing(threshold):
    rng = np.random.default_rng(0)
    keys, group = texts(rng, 120), object_column(rng.choice(["g", "h"], 120).tolist())
    found = similar_texts(group, keys, np.ones(120, bool), threshold)
    assert partition(found.tolist()) == partition(by_comparing_everything(group, keys, threshold))


def test_threshold_one_is_equality():
    keys = texts(np.random.default_rng(1), 60)
    found = similar_texts(object_column(["g"] * 60), keys, np.ones(60, bool), 1.0)
    assert partition(found.tolist()) == partition(keys)


def test_row_order_carries_no_meaning():
    rng = np.random.default_rng(2)
    keys, group, order = texts(rng, 100), object_column(["g"] * 100), rng.permutation(100)
    found, shuffled = (similar_texts(group, some, np.ones(100, bool), 0.9) for some in (keys, keys[order]))
    assert partition(found[order].tolist()) == partition(shuffled.tolist())


def test_duplicates_and_texts_of_other_lengths_are_never_compared(monkeypatch):
    asked = []

    class Counting(SequenceMatcher):
        def __init__(self, junk, one, other):
            asked.append((one, other))
            super().__init__(junk, one, other)

    monkeypatch.setattr(similarity, "SequenceMatcher", Counting)
    keys = object_column(["aaaa"] * 50 + ["a" * 40] * 50 + ["zzzz"] * 50)
    similar_texts(object_column(["g"] * 150), keys, np.ones(150, bool), 0.95)
    assert asked == []
    similar_texts(object_column(["g"] * 4 + ["h"] * 4), object_column(["abcdefghij" * 3, "abcdefghij" * 3 + "k"] * 4), np.ones(8, bool), 0.95)
    assert asked == [("abcdefghij" * 3, "abcdefghij" * 3 + "k")]


def test_few_of_all_pairs_are_compared(monkeypatch):
    asked = [0]

    class Counting(SequenceMatcher):
        def __init__(self, junk, one, other):
            asked[0] += 1
            super().__init__(junk, one, other)

    monkeypatch.setattr(similarity, "SequenceMatcher", Counting)
    rng = np.random.default_rng(0)
    things = [f"a {name} {number}" for name in ("mug", "apple", "book", "statue", "pillow", "laptop", "plate", "tomato") for number in (1, 2, 3)]
    seen = [", ".join(rng.choice(things, size)) for size in rng.integers(2, 7, 400)]
    keys = object_column([f"You arrive at drawer {place}. In it, you see {text}." for place, text in zip(rng.integers(1, 12, 400), seen, strict=True)])
    distinct = len(set(keys))
    similar_texts(object_column(["g"] * 400), keys, np.ones(400, bool), 0.95)
    assert 0 < asked[0] < distinct * (distinct - 1) / 2 / 50


def test_rows_that_are_no_members_found_nothing():
    keys = object_column(["abcdefghijklmnopqrst", "abcdefghijklmnopqrsu", "abcdefghijklmnopqrXu"])
    everything = similar_texts(object_column(["g"] * 3), keys, np.array([True, True, True]), 0.95)
    assert len(set(everything.tolist())) == 2
    without = similar_texts(object_column(["g"] * 3), keys, np.array([True, False, True]), 0.95)
    assert without[0] != without[2]


def test_unusual_texts():
    keys = object_column(["", "", "é世界🙂", "\0", "\ud800"])
    assert len(set(similar_texts(object_column(["g"] * 5), keys, np.ones(5, bool), 0.95).tolist())) == 4


def test_similar_vectors():
    vectors = object_column([np.array(v, float) for v in ([1, 0], [2, 0.01], [0, 1], [1, 0], [0, 0])])
    group, keys = object_column(["g", "g", "g", "h", "g"]), object_column(list("abcad"))
    found = similar_vectors(group, keys, vectors, np.ones(5, bool), 0.99)
    assert partition(found.tolist()) == {frozenset({0, 1}), frozenset({2}), frozenset({3}), frozenset({4})}


def alike():
    """Two turns in states whose texts differ by one character in twenty."""
    return turns("gg", "ab", [0, 0], ["you see a mug here 1", "you see a mug here 2"], [1, 0], [1, 1], [1, 1])


def gigpo(batch, **options) -> np.ndarray:
    return GiGPO(GiGPOConfig(**options)).credit(batch).advantages[:, 0]


def test_gigpo_compares_turns_with_alike_texts():
    np.testing.assert_allclose(gigpo(alike()), gigpo(alike(), step_weight=0))
    step = gigpo(alike(), similarity=True) - gigpo(alike(), step_weight=0)
    np.testing.assert_allclose(step, [2**-0.5, -(2**-0.5)], atol=1e-5)
    np.testing.assert_allclose(gigpo(alike(), similarity=True, similarity_threshold=0.96), gigpo(alike(), step_weight=0))


def test_gigpo_with_unlike_texts_is_unchanged():
    np.testing.assert_allclose(gigpo(b1(), similarity=True), gigpo(b1()))


def test_gigpo_contract():
    check_algorithm(GiGPO, GiGPOConfig(similarity=True, similarity_threshold=0.8))


def test_gigpo_similarity_needs_texts():
    batch = alike()
    batch.anchor_obs = object_column([1, 2])
    with pytest.raises(DataError, match="needs texts, but 1 is a int"):
        gigpo(batch, similarity=True)


@pytest.mark.parametrize("threshold", [0, 1.5])
def test_bad_threshold(threshold):
    with pytest.raises(UsageError, match="similarity_threshold"):
        GiGPOConfig(similarity_threshold=threshold).validate()
