"""SPO against the worked numbers of the specification, its measure of drift, and runs that are stopped and resumed."""

from __future__ import annotations

import numpy as np
import pytest

from tests.algorithms.streaming import ToyRun, of_trajectories, stream_turns
from threespo_algorithms.spo_stream import SPOStream, SPOStreamConfig
from threespo_bench.errors import DataError, UsageError
from threespo_bench.testing import check_algorithm
from threespo_bench.turns import TurnBatch


def started(**options) -> SPOStream:
    """Tasks t0, t1, t2 with 3, 8 and 0 successes in 8 rollouts."""
    algorithm = SPOStream(SPOStreamConfig(**options))
    for key, successes in (("t0", 3), ("t1", 8), ("t2", 0)):
        algorithm.initialise(key, successes, 8, version=0)
    return algorithm


def level(value: float):
    """A policy that gives every token the same log-probability."""
    return lambda turns: np.where(turns.response_mask, value, 0.0)


def test_contract():
    check_algorithm(SPOStream)
    check_algorithm(SPOStream, SPOStreamConfig(rho_min=0.875, rho_max=0.875))


def test_worked_example():
    algorithm, batch = started(), stream_turns([1, 1, 0], [[2], [3], [1]])
    credit = algorithm.credit(batch)
    np.testing.assert_allclose(of_trajectories(credit.advantages, batch), [1.140647, -0.414781, -0.725866], atol=1e-6)
    assert credit.diagnostics["stream/advantage"] == pytest.approx((0.611111 + 0.055556 - 0.055556) / 3, abs=1e-6)
    np.testing.assert_allclose(algorithm.task_weights(["t0", "t1", "t2"]), [0.537498, 0.279061, 0.279061], atol=1e-6)


def test_one_scalar_per_trajectory_however_many_turns_it_has():
    algorithm, batch = started(), stream_turns([1, 1, 0], [[2], [3, 1, 2, 9], [1, 1]])
    np.testing.assert_allclose(of_trajectories(algorithm.credit(batch).advantages, batch), [1.140647, -0.414781, -0.725866], atol=1e-6)


def test_a_value_frozen_at_dispatch_is_used_before_the_trackers():
    batch = stream_turns([1, 1, 0], [[2], [3], [1]], values=[0.388889, 0.944444, 0.055556])
    np.testing.assert_allclose(of_trajectories(SPOStream(SPOStreamConfig()).credit(batch).advantages, batch), [1.140647, -0.414781, -0.725866], atol=1e-5)


def test_unseen_tasks_count_one_half_and_a_batch_of_one_is_not_whitened():
    batch = stream_turns([1], [[2, 2]])
    assert of_trajectories(SPOStream(SPOStreamConfig()).credit(batch).advantages, batch) == [0.5]


def test_a_trajectory_without_tokens_enters_nothing():
    whole, short = stream_turns([1, 1, 0, 1], [[2], [3], [1], [0, 0]]), stream_turns([1, 1, 0], [[2], [3], [1]])
    advantages = started().credit(whole).advantages
    np.testing.assert_array_equal(advantages[:3], started().credit(short).advantages)
    assert (advantages[3:] == 0).all()


@pytest.mark.parametrize(("drift", "rho"), [(0, 0.96), (0.003, 0.96), (0.006, 0.933033), (0.0116, 0.875), (0.03, 0.875)])
def test_retention(drift, rho):
    assert SPOStream(SPOStreamConfig()).retention(drift) == pytest.approx(rho, abs=1e-6)


# ---- memory and drift


def test_drift_is_measured_on_the_previous_trajectory_under_the_new_policy():
    algorithm = started()
    algorithm.observe(stream_turns([1], [[2, 1]]), level(-1.0))
    a, b = 0.96 * 28 / 9 + 1, 0.96 * 44 / 9  # a first visit: D = 0
    assert algorithm.tracker.counts("t0") == pytest.approx((a, b))
    scored: list[TurnBatch] = []

    def score(turns: TurnBatch) -> np.ndarray:
        scored.append(turns)
        # By 0.012, 0 and 0.006 on the three tokens of the old trajectory.
        moved = np.array([[-1.012, -1.0], [-0.994, 0.0]]) if len(scored) == 1 else np.full(turns.response_mask.shape, -2.0)
        return np.where(turns.response_mask, moved, 0.0)

    algorithm.observe(stream_turns([0], [[1]]), score)
    assert [len(prompt) for prompt in scored[0].prompt_ids] == [2, 3] and scored[0].response_mask.tolist() == [[True, True], [True, False]]
    rho = 2 ** (-0.006 / 0.06)
    assert algorithm.tracker.counts("t0") == pytest.approx((rho * a, rho * b + 1))
    assert algorithm.diagnostics()["value/drift"] == pytest.approx(0.006) and algorithm.diagnostics()["value/retention"] == pytest.approx(rho)


def test_the_new_trajectory_replaces_the_old_one_with_its_log_probabilities_after_the_update():
    algorithm = started()
    for value in (-1.0, -1.5):
        algorithm.observe(stream_turns([1], [[2, 1]]), level(value))
    assert algorithm.memory.drift(["t0", "t1"], level(-1.51)) == pytest.approx({"t0": 0.01})


def test_a_task_that_comes_twice_is_updated_twice():
    algorithm = started()
    algorithm.observe(stream_turns([0], [[1]]), level(-1.0))
    a, b = algorithm.tracker.counts("t0")
    algorithm.observe(stream_turns([1, 0], [[1], [1]], task_keys=["t0", "t0"]), level(-1.006))
    first = 2 ** (-0.006 / 0.06)  # by the trajectory of the batch before; the second's own previous one has D = 0
    assert algorithm.tracker.counts("t0") == pytest.approx((0.96 * (first * a + 1), 0.96 * first * b + 1))


def test_the_order_of_such_updates_is_that_of_the_ids_and_not_of_the_rows():
    batch = stream_turns([1, 0, 1], [[1], [1, 1], [1]], task_keys=["t0", "t0", "t0"])
    batch.traj_id[:] = ["0/9/0", "0/10/0", "0/10/0", "0/11/0"]
    counts = []
    for order in (np.arange(4), np.array([3, 2, 1, 0])):
        algorithm = started()
        algorithm.observe(batch.take(order), level(-1.0))
        counts.append(algorithm.tracker.counts("t0"))
    rho = 0.96
    assert counts[0] == counts[1] == pytest.approx((rho * (rho * (rho * 28 / 9 + 1)) + 1, rho * (rho * rho * 44 / 9 + 1)))


def test_empty_responses_are_not_remembered():
    algorithm = started()
    algorithm.observe(stream_turns([1], [[2, 1]]), level(-1.0))
    algorithm.observe(stream_turns([1], [[0, 0]]), level(-1.0))
    assert algorithm.memory.drift(["t0"], level(-1.25)) == pytest.approx({"t0": 0.25})
    assert algorithm.tracker.counts("t0")[0] == pytest.approx(0.96 * (0.96 * 28 / 9 + 1) + 1), "its outcome counts"


def test_padding_rows_are_not_observed():
    batch = stream_turns([1, 0], [[1], [1]], task_keys=["t0", "t1"])
    batch.padding[1] = True
    algorithm = started()
    before = algorithm.tracker.counts("t1")
    algorithm.observe(batch, level(-1.0))
    assert algorithm.tracker.counts("t1") == before and algorithm.memory.drift(["t1"], level(0.0)) == {}


def test_a_constant_retention_scores_nothing():
    algorithm = started(rho_max=0.875)

    def no_score(turns: TurnBatch) -> np.ndarray:
        raise AssertionError("there is no drift to measure")

    algorithm.observe(stream_turns([1], [[1]]), no_score)
    assert algorithm.tracker.counts("t0")[0] == pytest.approx(0.875 * 28 / 9 + 1)


def test_columns_that_observe_reads_are_named():
    batch = stream_turns([1], [[1]])
    batch.prompt_ids = None
    with pytest.raises(DataError, match="spo_stream needs the column prompt_ids"):
        started().observe(batch, level(-1.0))


# ---- runs


@pytest.mark.parametrize("extra", [(), ("algorithm.offline_rollouts=2",), ("algorithm.collection=first_completed", "algorithm.batch_episodes=5")])
def test_a_stopped_run_goes_on_as_if_nothing_had_happened(tmp_path, extra):
    settings = ("algorithm.in_flight=4", *extra)
    whole = ToyRun(tmp_path, "spo_stream", *settings).train()
    first = ToyRun(tmp_path, "spo_stream", *settings).train(stop_at=2)
    second = ToyRun(tmp_path, "spo_stream", *settings).continue_from(first, tmp_path).train()
    resumed = [*first.rows, *second.rows]
    assert [row for row in resumed if row["kind"] == "train"] == [row for row in whole.rows if row["kind"] == "train"]
    drifts = [row["value/drift"] for row in whole.rows if row["kind"] == "train"]
    assert all(drift > 0 for drift in drifts[1:]), "the policy moves, and that is seen"


@pytest.mark.parametrize("option", [{"drift_half": 0}, {"rho_min": 1.0}, {"rho_max": 0.5}, {"collection": "none"}])
def test_bad_options(option):
    with pytest.raises(UsageError, match=next(iter(option))):
        SPOStreamConfig(**option).validate()
