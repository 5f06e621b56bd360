"""Integer codes of ids: any hashable ids, long and short runs, and what a batch remembers of them."""

from __future__ import annotations

import pickle
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest

from threespo_bench import turn_codes
from threespo_bench.testing.batches import sample_turns
from threespo_bench.turn_codes import codes, group_codes, integer_codes, pair_codes
from threespo_bench.turns import object_column

IDS = {
    "texts in runs": [f"t{i // 40}" for i in range(400)] + ["t3", "t0"],
    "texts in disorder": [f"t{i * 7919 % 31}" for i in range(400)],
    "tuples": [("a", i // 90) for i in range(400)],
    "mixed": ["1", 1, ("1",), 1, "1", None, frozenset({1}), None],
    "numbers": list(np.arange(400) % 17),
    "nothing": [],
}


def by_dictionary(values) -> list[int]:
    index: dict[object, int] = {}
    return [index.setdefault(value, len(index)) for value in values]


def partition(labels) -> set[frozenset[int]]:
    rows: dict[object, list[int]] = {}
    for row, label in enumerate(labels):
        rows.setdefault(label, []).append(row)
    return {frozenset(members) for members in rows.values()}


@pytest.mark.parametrize("kind", IDS)
def test_codes_in_order_of_first_appearance(kind):
    assert codes(object_column(IDS[kind])).tolist() == by_dictionary(IDS[kind])


def test_a_run_that_begins_after_a_long_one_is_seen():
    ids = ["long"] * 1000 + ["short", "long", "short"]
    assert codes(object_column(ids)).tolist() == by_dictionary(ids)


def own_objects(values) -> np.ndarray:
    """A column in which no two rows share an object, as texts have that were made one by one."""
    return np.array(["".join(list(value)) for value in values], object)


@pytest.mark.parametrize("kind", ["texts in runs", "texts in disorder"])
def test_equal_texts_may_be_one_object_or_many(kind):
    shared, own = object_column(IDS[kind]), own_objects(IDS[kind])
    assert len(set(map(id, shared))) == len(set(IDS[kind])) < len(set(map(id, own))) == len(own)
    half = np.where(np.arange(len(own)) % 2, shared, own)
    for column in (shared, own, half, shared[::-1][::-1], np.repeat(own, 2)[::2]):
        assert codes(column).tolist() == by_dictionary(IDS[kind])


def test_a_column_that_begins_with_few_objects_and_goes_on_with_many():
    ids = ["a", "b", "c"] * 100 + [f"t{i % 50}" for i in range(600)]
    column = object_column(ids)
    column[300:] = own_objects(ids[300:])
    assert codes(column).tolist() == by_dictionary(ids)


@pytest.mark.parametrize("kind", ["few", "all different", "same hash", "negative", "small type"])
def test_integer_codes(kind):
    rng = np.random.default_rng(2)
    values = {
        "few": rng.integers(0, 9, 500) * 10**15,
        "all different": rng.permutation(500) << 40,
        "same hash": rng.integers(0, 9, 500) << 55,  # the hash takes the highest bits of a product: many of these lose their slot
        "negative": rng.integers(-4, 4, 500),
        "small type": rng.integers(-4, 4, 500).astype(np.int8),
    }[kind]
    found, first = integer_codes(values)
    assert found.tolist() == by_dictionary(values.tolist()) == codes(values).tolist()
    assert [values.tolist().index(value) for value in values[first].tolist()] == first.tolist()
    assert found[first].tolist() == list(range(len(first)))


def test_integers_that_share_a_slot_are_told_apart(monkeypatch):
    monkeypatch.setattr(turn_codes, "_first_rows", lambda slots, size: np.zeros(len(slots), np.int32))  # as if all hashes were equal
    values = np.array([5, 7, 5, 9, 7, 5])
    assert integer_codes(values)[0].tolist() == [0, 1, 0, 2, 1, 0]


@pytest.mark.parametrize("spread", [3, 10**6])
def test_pair_codes_with_a_table_and_by_hashing(spread):
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 5, 300) * spread, rng.integers(0, 4, 300)
    found = pair_codes(one, other)
    assert partition(found.tolist()) == partition(zip(one.tolist(), other.tolist(), strict=True))
    assert sorted(set(found.tolist())) == list(range(len(set(found.tolist()))))


def test_group_codes_of_three_columns():
    rng = np.random.default_rng(1)
    columns = [rng.integers(0, 4, 200).astype(str).astype(object) for _ in range(3)]
    assert partition(group_codes(*columns).tolist()) == partition(zip(*columns, strict=True))
    assert len(group_codes(*(np.array([], object) for _ in range(2)))) == 0


# ---- on a batch


def test_a_batch_computes_its_codes_once():
    turns = sample_turns()
    found = turns.codes("traj_id")
    assert found.tolist() == codes(turns.traj_id).tolist()
    assert turns.codes("traj_id") is found
    pairs = turns.codes("group_id", "anchor_obs")
    assert partition(pairs.tolist()) == partition(zip(turns.group_id, turns.anchor_obs, strict=True))
    assert turns.codes("group_id", "anchor_obs") is pairs
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 7


def test_extra_columns_have_codes():
    turns = sample_turns()
    turns.extras["command"] = object_column([f"go {i % 3}" for i in range(len(turns))])
    assert turns.codes("command").tolist() == [i % 3 for i in range(len(turns))]


@pytest.mark.parametrize("in_place", [True, False])
def test_changed_columns_get_new_codes(in_place):
    turns = sample_turns()
    turns.codes("group_id", "anchor_obs")
    if in_place:
        turns.anchor_obs[:] = "".join(["sa", "me"])
    else:
        turns.anchor_obs = object_column(["same"] * len(turns))
    assert partition(turns.codes("group_id", "anchor_obs").tolist()) == partition(turns.group_id)


def test_an_object_at_the_address_of_an_earlier_one_is_noticed():
    turns = replace(sample_turns(), group_id=own_objects(["a new text"] * len(sample_turns())))
    assert set(turns.codes("group_id").tolist()) == {0}
    for attempt in range(200):  # without a reference to the old texts, one of the new ones would soon lie where an old one was
        turns.group_id[0] = None
        turns.group_id[0] = f"a text {attempt:03}"
        assert turns.codes("group_id").tolist() == [0] + [1] * (len(turns) - 1)


def test_numbers_as_ids_that_are_changed_in_place():
    turns = replace(sample_turns(), group_id=np.zeros(len(sample_turns()), int))
    assert set(turns.codes("group_id").tolist()) == {0}
    turns.group_id[0] = 1
    assert turns.codes("group_id").tolist() == [0] + [1] * (len(turns) - 1)


def test_copies_do_not_inherit_them():
    turns = sample_turns()
    turns.codes("traj_id")
    plain = sample_turns()
    for copied in (turns.take(np.arange(len(turns))), replace(turns), deepcopy(turns), pickle.loads(pickle.dumps(turns))):
        assert vars(copied).keys() == vars(plain).keys()
        assert copied.codes("traj_id").tolist() == turns.codes("traj_id").tolist()
    assert len(pickle.dumps(turns)) == len(pickle.dumps(replace(turns)))
