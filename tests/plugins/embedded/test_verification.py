"""The first update of a run checks the sampler; every update checks the version of the weights."""

import numpy as np
import pytest

from threespo_bench.contracts.objective import Optimization, PolicyGradient
from threespo_bench.errors import EngineError

STEP = (PolicyGradient(), Optimization(learning_rate=1e-3))


@pytest.fixture
def batch(make_engine, bench):
    engine = make_engine()
    turns = bench.turns(bench.generate(engine, bench.texts(6)))
    return engine, turns, bench.credit(turns)


def test_a_sampler_that_reports_processed_log_probs_is_caught(batch, bench):
    """What an engine does that divides by the temperature before it takes the log-probability (T = 0.6)."""
    engine, turns, credit = batch
    row = int(np.argmax(np.abs(turns.old_log_probs[:, 0])))
    turns.old_log_probs[row] *= 0.6
    before = engine.digest()
    with pytest.raises(EngineError, match="log-probabilities are not the learner's") as caught:
        engine.learner.update(turns, credit, *STEP)
    assert f"row {row}" in str(caught.value)
    assert "temperature" in caught.value.fix
    assert engine.digest() == before


def test_top_p_is_caught(batch):
    engine, turns, credit = batch
    turns.old_log_probs -= np.log(0.8)  # every probability divided by the mass that was kept
    with pytest.raises(EngineError, match=r"2\.23e-01"):
        engine.learner.update(turns, credit, *STEP)


def test_only_the_first_update_is_strict(batch):
    engine, turns, credit = batch
    engine.learner.update(turns, credit, *STEP)
    turns.old_log_probs += 0.05
    assert engine.learner.update(turns, credit, *STEP)["logprob_gap_max"] > 0.01


def test_recorded_batches_without_versions_are_not_compared(batch):
    engine, turns, credit = batch
    turns.policy_version = None
    turns.old_log_probs += 0.05
    assert engine.learner.update(turns, credit, *STEP)["logprob_gap_mean"] == pytest.approx(0.05, abs=1e-4)


def test_a_rollout_engine_that_missed_a_publish_stops_the_run(batch, bench):
    engine, turns, credit = batch
    engine.learner.update(turns, credit, *STEP)
    assert engine.publish() == 1
    forgetful = bench.turns(bench.generate(engine, bench.texts(3)))
    forgetful.policy_version[:] = 0
    with pytest.raises(EngineError, match=r"stale weights: .* version 0, but version 1 is published"):
        engine.learner.update(forgetful, bench.credit(forgetful), *STEP)


def test_a_version_that_was_never_published_stops_the_run(batch):
    engine, turns, credit = batch
    turns.policy_version[2] = 5
    with pytest.raises(EngineError, match="version 5, but version 0"):
        engine.learner.update(turns, credit, *STEP)


def test_replayed_rows_may_be_old_but_not_too_old(make_engine, bench):
    engine = make_engine(max_staleness=2)
    for _ in range(3):
        engine.publish()
    turns = bench.turns(bench.generate(engine, bench.texts(4)))
    assert turns.policy_version.tolist() == [3] * 4
    turns.policy_version[0] = 1
    engine.learner.update(turns, bench.credit(turns), *STEP)
    turns.policy_version[0] = 0
    with pytest.raises(EngineError, match="3 versions old"):
        engine.learner.update(turns, bench.credit(turns), *STEP)


def test_generating_between_update_and_publish_is_refused(batch, bench):
    engine, turns, credit = batch
    engine.learner.update(turns, credit, *STEP)
    with pytest.raises(EngineError, match="not published"):
        bench.generate(engine, ["w1"])
    engine.publish()
    assert bench.generate(engine, ["w1"])[0].policy_version == 1


def test_turns_that_no_update_looks_at_are_compared_where_the_sampler_has_weights_of_its_own(batch):
    engine, turns, _ = batch
    turns.old_log_probs -= 0.05
    engine.learner.verify(turns)  # one module samples and learns
    engine.learner.serve(lambda: None)
    with pytest.raises(EngineError, match=r"sampler's log-probabilities are not the learner's: .* 5\.00e-02"):
        engine.learner.verify(turns)
    turns.old_log_probs += 0.05
    engine.learner.verify(turns)


def test_a_sampler_that_was_right_before_has_old_weights(batch, bench):
    engine, turns, credit = batch
    engine.learner.serve(lambda: None)
    engine.learner.update(turns, credit, *STEP)
    engine.publish()
    with pytest.raises(EngineError, match=r"stale weights: .* version 0, but version 1 is published"):
        engine.learner.verify(turns)
    turns.policy_version[:] = 1
    with pytest.raises(EngineError, match="stale weights: the sampler names the newest policy version"):
        engine.learner.verify(turns)
    engine.learner.verify(bench.turns(bench.generate(engine, bench.texts(3))))
