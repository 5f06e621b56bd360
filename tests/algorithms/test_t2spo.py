"""T2SPO: the worked numbers of the specification, the memory, the regressors, and what they must not do."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from threespo_algorithms.distance_memory import DistanceMemory, Reduction
from threespo_algorithms.distance_regressors import NearestNeighbours
from threespo_algorithms.grpo import GRPO, GRPOConfig
from threespo_algorithms.t2spo import T2SPO, T2SPOKNN, T2SPOConfig, T2SPOKNNConfig, distance_change, distance_credit, unchanged
from threespo_bench.errors import DataError, UsageError
from threespo_bench.testing import check_algorithm, sample_turns
from threespo_bench.turns import TurnBatch, object_column

DIMENSIONS = 6
SMALL = {"minimum_support": 4, "neighbours": 3}


def batch(seed: int = 0, tasks: int = 4) -> TurnBatch:
    """A sample with the vectors of its observations."""
    turns = sample_turns(seed, tasks)
    rng = np.random.default_rng(9)
    vectors = {f"state {number}": rng.normal(size=DIMENSIONS) for number in range(10)}
    turns.extras["embedding"] = turns.extras["prompt_embedding"] = object_column([vectors[name] for name in turns.anchor_obs])
    return turns


def score(turns: TurnBatch) -> np.ndarray:
    return np.zeros(turns.response_mask.shape)


def trained(**options) -> T2SPOKNN:
    algorithm = T2SPOKNN(T2SPOKNNConfig(**{**SMALL, **options}))
    for seed in range(1, 4):
        algorithm.observe(batch(seed), score)
    return algorithm


def credit(algorithm, turns: TurnBatch) -> np.ndarray:
    return algorithm.credit(turns).advantages[:, 0]


def outcome(turns: TurnBatch) -> np.ndarray:
    return credit(GRPO(GRPOConfig()), turns)


# The formulas.


def test_worked_success():
    last, success = np.array([0, 0, 0, 1], bool), np.array([0, 0, 0, 1], bool)
    change = distance_change(np.array([5, 4, 4.5, 2]), last, success, gamma=1.0)
    np.testing.assert_allclose(change, [1, -0.5, 2.5, 2])
    np.testing.assert_allclose(distance_credit(change, np.ones(4, bool), 1.0, 3.0), [0.731573, -0.399424, 1.367263, 1.198271], atol=1e-6)
    total = 1.154700 + distance_credit(change, np.ones(4, bool), 0.5, 3.0)
    np.testing.assert_allclose(total, [1.520487, 0.954989, 1.838332, 1.753836], atol=1e-6)


def test_worked_failure():
    change = distance_change(np.array([5, 4, 4.5]), np.array([0, 0, 1], bool), np.zeros(3, bool), gamma=1.0)
    np.testing.assert_allclose(change, [1, -0.5, 0])
    np.testing.assert_allclose(distance_credit(change, np.ones(3, bool), 1.0, 3.0), [1.520224, -0.830011, 0], atol=1e-6)


def test_discount_and_trajectories_one_after_another():
    change = distance_change(np.array([4.0, 2, 7, 3]), np.array([0, 1, 0, 1], bool), np.array([0, 1, 0, 0], bool), gamma=0.5)
    assert change.tolist() == [3, 2, 5.5, 0]


def test_masked_turns_enter_nothing():
    change, mask = np.array([1, np.nan, -0.5, np.inf, 0]), np.array([1, 0, 1, 0, 1], bool)
    np.testing.assert_allclose(distance_credit(change, mask, 1.0, 3.0), [1.520224, 0, -0.830011, 0, 0], atol=1e-6)
    assert distance_credit(change, np.zeros(5, bool), 1.0, 3.0).tolist() == [0] * 5
    assert distance_credit(np.zeros(5), np.ones(5, bool), 1.0, 3.0).tolist() == [0] * 5


def test_clip():
    change = np.r_[100.0, np.zeros(99)]
    assert distance_credit(change, np.ones(100, bool), 0.5, 3.0).max() == 1.5


# The algorithm.


def test_contract():
    check_algorithm(T2SPOKNN, turns=batch())
    check_algorithm(T2SPOKNN, T2SPOKNNConfig(**SMALL), batch())


def test_without_support_it_is_grpo():
    turns = batch()
    algorithm = T2SPOKNN(T2SPOKNNConfig(minimum_support=10**3, memory_size=10**4))
    algorithm.observe(turns, score)
    assert len(algorithm.memory) > 0
    assert credit(algorithm, turns).tolist() == outcome(turns).tolist()


def test_credit_with_a_memory_by_hand():
    algorithm, turns = trained(neighbours=1), batch()
    assert not np.allclose(credit(algorithm, turns), outcome(turns))
    features = [np.r_[vector, step, 3] for vector, step in zip(turns.extras["prompt_embedding"], turns.step_id, strict=True)]
    states = algorithm.memory.states
    mean, scale = states.mean(axis=0), states.std(axis=0)
    distance = []
    for feature in features:
        apart = np.linalg.norm((states - feature) / scale, axis=1)
        distance.append(algorithm.memory.turns_left[apart <= apart.min() + 1e-9].mean())
    assert np.isfinite(mean).all() and (scale > 0).all()
    change = distance_change(np.array(distance), turns.terminated | turns.truncated, turns.success, 1.0)  # the sample is in the order of time
    mask = turns.anchor_obs != turns.next_anchor_obs
    np.testing.assert_allclose(credit(algorithm, turns), outcome(turns) + distance_credit(change, mask, 1.0, 3.0), atol=1e-9)


def test_row_order_and_padding_carry_no_meaning():
    algorithm, turns = trained(), batch()
    expected, order = credit(algorithm, turns), np.random.default_rng(5).permutation(len(turns))
    np.testing.assert_allclose(credit(algorithm, turns.take(order)), expected[order], atol=1e-12)
    rows = np.r_[np.arange(len(turns)), 0, 1]
    padded = turns.take(rows)
    padded = replace(padded, padding=np.arange(len(rows)) >= len(turns))
    padded.extras["prompt_embedding"][len(turns) :] = [np.full(2, np.nan), None]
    np.testing.assert_allclose(credit(algorithm, padded), np.r_[expected, 0, 0], atol=1e-12)
    other = trained()
    other.observe(turns, score)
    algorithm.observe(padded.take(np.random.default_rng(6).permutation(len(rows))), score)
    assert np.array_equal(other.memory.states, algorithm.memory.states)


def test_no_leakage_from_the_batch_that_is_credited():
    algorithm, turns = trained(), batch()
    before, held = credit(algorithm, turns), algorithm.memory.states.copy()
    assert np.array_equal(credit(algorithm, turns), before) and np.array_equal(algorithm.memory.states, held)
    algorithm.observe(turns, score)
    assert not np.array_equal(credit(algorithm, turns), before)  # now they are known


def test_only_successes_are_remembered_with_the_turns_that_were_left():
    algorithm, turns = T2SPOKNN(T2SPOKNNConfig()), batch()
    algorithm.observe(turns, score)
    won = np.isin(turns.traj_id, turns.traj_id[turns.success])
    assert 0 < won.sum() < len(turns) == len(won)
    length = {name: (turns.traj_id == name).sum() for name in set(turns.traj_id)}
    assert algorithm.memory.turns_left.tolist() == [length[name] - step for name, step in zip(turns.traj_id[won], turns.step_id[won], strict=True)]
    np.testing.assert_array_equal(algorithm.memory.states[:, :DIMENSIONS], np.stack(list(turns.extras["prompt_embedding"][won])))
    assert algorithm.memory.states[:, DIMENSIONS].tolist() == turns.step_id[won].tolist()
    assert set(algorithm.memory.states[:, -1]) == {0} and algorithm.round == 1


def test_a_turn_that_changes_nothing_has_no_credit():
    algorithm, turns = trained(), batch()
    turns.next_anchor_obs[3] = turns.anchor_obs[3]
    assert credit(algorithm, turns)[3] == outcome(turns)[3]
    turns.extras |= {"observation": object_column(["same"] * len(turns)), "next_observation": object_column(["same"] * len(turns))}
    assert unchanged(turns).all() and credit(algorithm, turns).tolist() == outcome(turns).tolist()  # the texts tell, where there are any
    del turns.extras["observation"]
    turns.next_anchor_obs = None
    with pytest.raises(DataError, match="t2spo needs the column next_anchor_obs"):
        credit(algorithm, turns)


def test_predictions_that_are_not_finite_are_left_out():
    algorithm, turns = trained(), batch()
    turns.extras["prompt_embedding"][1] = np.full(DIMENSIONS, np.nan)  # the second turn of its trajectory
    result = credit(algorithm, turns)
    assert np.isfinite(result).all() and result[:2].tolist() == outcome(turns)[:2].tolist()
    algorithm.observe(replace(turns, success=np.isin(np.arange(len(turns)), np.flatnonzero(turns.terminated))), score)
    assert np.isfinite(algorithm.memory.states).all()


def test_predictions_are_clipped():
    class Wild:
        def predict(self, support, labels, queries):
            return np.linspace(-50, 500, len(queries))

    algorithm = trained()
    algorithm.regressor = Wild()
    from threespo_algorithms.observation_history import time_order

    distance = algorithm.distances(batch(), time_order(batch()))
    assert distance.min() == 0 and distance.max() == 100


def test_states_that_do_not_differ_tell_nothing():
    algorithm, turns = T2SPOKNN(T2SPOKNNConfig(**SMALL)), batch()
    algorithm.memory.add(np.ones((9, DIMENSIONS + 2)), np.arange(9.0))
    assert credit(algorithm, turns).tolist() == outcome(turns).tolist()


def test_missing_columns_are_named():
    with pytest.raises(DataError, match="t2spo needs the column prompt_embedding"):
        T2SPOKNN(T2SPOKNNConfig()).credit(sample_turns())


def test_states_told_by_the_observation_alone():
    algorithm, other, turns = trained(state="observation"), trained(), batch()
    assert algorithm.needs == {"embeddings"} and algorithm.requires == ("success", "embedding") and other.needs == {"prompt_embeddings"}
    expected = credit(other, turns)
    turns.extras["prompt_embedding"] = turns.extras["prompt_embedding"][::-1]
    assert credit(algorithm, turns).tolist() == expected.tolist() != credit(other, turns).tolist()


# Memory, reduction and nearest neighbours.


def test_first_in_first_out():
    memory = DistanceMemory(3)
    for number in range(3):
        memory.add(np.array([[number, 0.0], [number, 1.0]]), np.array([number, number + 0.5]))
    assert memory.states.tolist() == [[1, 1], [2, 0], [2, 1]] and memory.turns_left.tolist() == [1.5, 2, 2.5]
    memory.add(np.array([[np.nan, 0]]), np.ones(1))
    other = DistanceMemory(3)
    other.load_state_dict(memory.state_dict())
    assert len(other) == 3 and other.states.tolist() == memory.states.tolist()


def test_reduction_is_the_truncated_decomposition_of_the_standardised_support():
    rng = np.random.default_rng(0)
    support, queries = rng.normal(size=(50, 8)) @ rng.normal(size=(8, 8)) + 5, rng.normal(size=(7, 8))
    support[:, 2] = 4.0  # never varies, so that the queries' value says nothing
    scale = np.where(np.arange(8) == 2, np.inf, support.std(axis=0))
    left, singular, right = np.linalg.svd((support - support.mean(axis=0)) / scale, full_matrices=False)
    reduce = Reduction(support, 3)
    np.testing.assert_allclose(np.abs(reduce(support)), np.abs(left[:, :3] * singular[:3]), atol=1e-9)
    np.testing.assert_allclose(np.abs(reduce(queries)), np.abs((queries - support.mean(axis=0)) / scale @ right[:3].T), atol=1e-9)
    assert reduce(support).shape == (50, 3) and Reduction(support, 99)(support).shape == (50, 7)


def test_nearest_neighbours():
    support, labels = np.array([[0.0], [1], [2], [10]]), np.array([1.0, 2, 4, 9])
    predict = NearestNeighbours(2).predict
    np.testing.assert_allclose(predict(support, labels, np.array([[0.1], [9], [np.nan]])), [1.5, 6.5, np.nan])
    np.testing.assert_allclose(NearestNeighbours(1).predict(support, labels, np.array([[0.5]])), [1.5])  # a tie counts on both sides
    np.testing.assert_allclose(NearestNeighbours(99).predict(support, labels, np.array([[3.0]])), [4])


# TabPFN.


@pytest.fixture
def tabpfn(monkeypatch, tmp_path) -> dict:
    """The package, by a stand-in that answers with the mean of the labels, and a file with its weights."""
    seen = {"weights": str(tmp_path / "regressor.ckpt"), "asked": 0}
    (tmp_path / "regressor.ckpt").write_bytes(b"weights")

    class TabPFNRegressor:
        def __init__(self, **options):
            seen["options"] = options

        def fit(self, features, labels):
            assert np.isfinite(features).all()
            self.mean = labels.mean()
            return self

        def predict(self, features):
            assert np.isfinite(features).all()
            seen["asked"] += len(features)
            return np.full(len(features), self.mean, np.float32) + features[:, 0].astype(np.float32)

    module = ModuleType("tabpfn")
    module.TabPFNRegressor = TabPFNRegressor
    monkeypatch.setitem(sys.modules, "tabpfn", module)
    monkeypatch.setenv("TABPFN_DISABLE_TELEMETRY", "1")
    return seen


def test_tabpfn_is_asked_once_for_equal_states(tabpfn):
    algorithm = T2SPO(T2SPOConfig(minimum_support=4, tabpfn_weights=tabpfn["weights"]))
    algorithm.memory, turns = trained().memory, batch()
    assert not np.allclose(credit(algorithm, turns), outcome(turns))
    assert tabpfn["options"] == {"model_path": tabpfn["weights"], "device": "cpu", "ignore_pretraining_limits": True, "random_state": 0}
    assert tabpfn["asked"] == len(set(zip(turns.anchor_obs, turns.step_id, strict=True))) < len(turns)


def test_contract_with_tabpfn(tabpfn):
    check_algorithm(T2SPO, T2SPOConfig(minimum_support=4, tabpfn_weights=tabpfn["weights"]), batch())


def test_without_tabpfn_the_fall_back_is_named_and_not_taken(monkeypatch):
    monkeypatch.setitem(sys.modules, "tabpfn", None)
    monkeypatch.setenv("TABPFN_DISABLE_TELEMETRY", "1")
    with pytest.raises(UsageError, match="t2spo predicts distances with TabPFN, which cannot be imported") as caught:
        T2SPO(T2SPOConfig())
    assert "threespo-bench[tabpfn]" in caught.value.fix and "t2spo_knn" in caught.value.fix


@pytest.mark.parametrize("weights", ["", "/nowhere/regressor.ckpt"])
def test_without_weights_the_fall_back_is_named_and_not_taken(tabpfn, weights):
    with pytest.raises(UsageError, match=r"tabpfn_weights=/nowhere|needs its weights in a local file") as caught:
        T2SPO(T2SPOConfig(tabpfn_weights=weights))
    assert "t2spo_knn" in caught.value.fix


@pytest.mark.parametrize(
    "option",
    [{"distance_weight": -1}, {"distance_clip": 0}, {"gamma": 2}, {"memory_size": 8}, {"minimum_support": 0}, {"components": 0},
     {"maximum_distance": 0}, {"neighbours": 0}],
)  # fmt: skip
def test_bad_options(option):
    with pytest.raises(UsageError, match=next(iter(option))):
        T2SPOKNNConfig(**option).validate()
