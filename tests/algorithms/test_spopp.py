"""SPO++ against the worked numbers of the specification, and runs that are stopped and resumed."""

from __future__ import annotations

import numpy as np
import pytest

from tests.algorithms.streaming import ToyRun, of_trajectories, stream_turns
from threespo_algorithms.spopp import SPOPlusPlus, SPOPlusPlusConfig
from threespo_bench.errors import DataError, UsageError
from threespo_bench.testing import check_algorithm
from threespo_bench.testing.batches import sample_turns
from threespo_bench.turns import TurnBatch, codes

LENGTHS = [[2], [1, 3, 2], [3, 1]]  # 2, 6 and 4 tokens


def example() -> TurnBatch:
    """A = 0.611111, -0.4, 0.2."""
    return stream_turns([1, 0, 1], LENGTHS, values=[0.388889, 0.4, 0.8])


def no_score(turns: TurnBatch) -> np.ndarray:
    raise AssertionError("SPO++ asks for no log-probabilities")


def recorded() -> TurnBatch:
    turns = sample_turns()
    turns.extras["dispatch_value"] = np.array([0.2, 0.5, 0.9])[codes(turns.task_key)]
    return turns


def test_contract():
    check_algorithm(SPOPlusPlus, turns=recorded())
    check_algorithm(SPOPlusPlus, SPOPlusPlusConfig(whitening_measure="trajectory"), recorded())


def test_whitening_over_action_tokens():
    batch = example()
    credit = SPOPlusPlus(SPOPlusPlusConfig()).credit(batch)
    np.testing.assert_allclose(of_trajectories(credit.advantages, batch), [1.564796, -0.897390, 0.563687], atol=2e-6)
    assert credit.advantages.sum() == pytest.approx(0, abs=1e-12), "the sum over all tokens"
    assert credit.diagnostics["stream/token_mean_advantage"] == pytest.approx(0, abs=1e-12)


def test_whitening_over_trajectories_tilts_the_update_by_the_covariance_with_length():
    batch = example()
    credit = SPOPlusPlus(SPOPlusPlusConfig(whitening_measure="trajectory")).credit(batch)
    np.testing.assert_allclose(of_trajectories(credit.advantages, batch), [0.932322, -1.056146, 0.123824], atol=2e-6)
    assert credit.diagnostics["stream/token_mean_advantage"] == pytest.approx(-0.331411, abs=1e-6)


def test_a_trajectory_without_action_tokens_is_dropped():
    batch = stream_turns([1, 0, 1, 1], [*LENGTHS, [0, 0]], values=[0.388889, 0.4, 0.8, 0.0])
    advantages = SPOPlusPlus(SPOPlusPlusConfig()).credit(batch).advantages
    np.testing.assert_array_equal(advantages[:6], SPOPlusPlus(SPOPlusPlusConfig()).credit(example()).advantages)
    assert (advantages[6:] == 0).all()


def test_one_token_is_not_whitened():
    batch = stream_turns([1], [[1]], values=[0.25])
    assert SPOPlusPlus(SPOPlusPlusConfig()).credit(batch).advantages.tolist() == [[0.75]]


def test_the_batch_must_carry_the_frozen_values():
    batch = example()
    del batch.extras["dispatch_value"]
    with pytest.raises(DataError, match="spopp needs the column dispatch_value"):
        SPOPlusPlus(SPOPlusPlusConfig()).credit(batch)


@pytest.mark.parametrize("bad", [float("nan"), 1.5, -0.1])
def test_frozen_values_are_success_rates(bad):
    batch = example()
    batch.extras["dispatch_value"][0] = bad
    with pytest.raises(DataError, match=r"dispatch_value.*not in \[0, 1\]"):
        SPOPlusPlus(SPOPlusPlusConfig()).credit(batch)


def test_an_outcome_does_not_change_its_own_baseline():
    algorithm, batch = SPOPlusPlus(SPOPlusPlusConfig()), example()
    before = algorithm.credit(batch).advantages
    algorithm.observe(batch, no_score)
    np.testing.assert_array_equal(algorithm.credit(batch).advantages, before)


# ---- evidence


def outcome(reward: float, version: int, key: str = "t") -> TurnBatch:
    batch = stream_turns([reward], [[1, 1]], task_keys=[key])
    batch.policy_version[:] = version
    return batch


@pytest.mark.parametrize("received", [[(0, 1), (1, 2)], [(1, 2), (0, 1)]])
def test_evidence_counts_by_the_version_that_generated_it(received):
    algorithm = SPOPlusPlus(SPOPlusPlusConfig())
    algorithm.initialise("t", 3, 8, version=0)
    for reward, version in received:
        algorithm.observe(outcome(reward, version), no_score)
    assert algorithm.tracker.counts_at("t", 4) == pytest.approx((2.589301, 3.535699), abs=1e-6)
    assert algorithm.dispatch_value("t", 4) == pytest.approx(0.422743, abs=1e-6)


def test_one_batch_or_two_is_the_same():
    one, two = SPOPlusPlus(SPOPlusPlusConfig()), SPOPlusPlus(SPOPlusPlusConfig())
    parts = [outcome(1, 5), outcome(0, 3)]
    parts[1].traj_id[:] = "0/1/0"
    one.observe(TurnBatch.concatenate(parts), no_score)
    for part in parts[::-1]:
        two.observe(part, no_score)
    assert one.tracker.counts_at("t", 5) == pytest.approx(two.tracker.counts_at("t", 5), abs=1e-12)
    assert one.tracker.counts_at("t", 5) == pytest.approx((0.875**2 * 0.5 + 1, 0.875**2 * 1.5), abs=1e-12)


def test_padding_rows_are_not_observed():
    batch = outcome(1, 0)
    batch.padding[:] = True
    algorithm = SPOPlusPlus(SPOPlusPlusConfig())
    algorithm.observe(batch, no_score)
    assert not algorithm.knows("t")


# ---- runs


@pytest.mark.parametrize("extra", [(), ("algorithm.offline_rollouts=2",), ("algorithm.unfinished=finish",), ("algorithm.collection=batch",)])
def test_a_stopped_run_goes_on_as_if_nothing_had_happened(tmp_path, extra):
    settings = ("algorithm.batch_episodes=5", "algorithm.in_flight=4", *extra)
    whole = ToyRun(tmp_path, "spopp", *settings).train()
    first = ToyRun(tmp_path, "spopp", *settings).train(stop_at=2)
    second = ToyRun(tmp_path, "spopp", *settings).continue_from(first, tmp_path).train()
    rows = [row for row in whole.rows if row["kind"] == "train"]
    assert [row for row in [*first.rows, *second.rows] if row["kind"] == "train"] == rows
    assert len(rows) == 4 and rows[-1]["stream/baseline"] != 0.5


def test_batches_of_a_run_keep_to_one_version_and_carry_the_values_of_their_dispatch(tmp_path):
    toy = ToyRun(tmp_path, "spopp", "algorithm.batch_episodes=5", "algorithm.in_flight=4")
    seen: list[TurnBatch] = []
    toy.run.keep_turns = lambda iteration, number, turns: seen.append(turns)
    toy.train()
    assert len(seen) >= 4
    for version, turns in enumerate(seen):
        assert set(turns.policy_version) == set(turns.extras["dispatch_version"]) == {version}
        assert all(len(set(turns.extras["dispatch_value"][turns.traj_id == name])) == 1 for name in set(turns.traj_id))


@pytest.mark.parametrize("option", [{"rho": 1.0}, {"rho": 0}, {"whitening_measure": "turn"}, {"batch_episodes": 100}])
def test_bad_options(option):
    with pytest.raises(UsageError, match=next(iter(option))):
        SPOPlusPlusConfig(**option).validate()
