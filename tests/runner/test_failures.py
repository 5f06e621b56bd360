"""Whatever goes wrong in a run is a recorded outcome: one line, an exit code, the lock released, the tracker closed, nothing lost."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from itertools import pairwise

import pytest

from tests.runner import toy_bench
from tests.runner.conftest import Watcher, fingerprint
from threespo_bench import runner
from threespo_bench.errors import DataError, EngineError, PluginError, StorageError, UsageError
from threespo_bench.interruption import Watchdog
from threespo_bench.runner import resume, run
from threespo_bench.store import is_locked, read_status


@pytest.fixture(autouse=True)
def count_steps_from_zero(monkeypatch):
    monkeypatch.setattr(toy_bench.Corridor, "steps", 0)


def calls(out, run_path):
    return [json.loads(line) for line in (out / f"tracker-{run_path.name}.jsonl").read_text().splitlines()]


def assert_failed(outcome, text: str, exit_code: int = 1) -> None:
    status = read_status(outcome.run)
    assert (outcome.state, status["state"]) == ("failed", "failed")
    assert text in outcome.error == status["error"]
    assert "\n" not in outcome.error
    assert outcome.exit_code == status["exit_code"] == exit_code
    assert not is_locked(outcome.run)
    assert "Traceback" in (outcome.run / "events.log").read_text()


@pytest.mark.parametrize(
    ("fault", "text", "exit_code"),
    [
        ("raise", "ZeroDivisionError: the scorer divides by zero", 1),
        ("text", "Corridor gave the reward 'ten' for the command", DataError.exit_code),
        ("nan", "Corridor gave the reward nan for the command", DataError.exit_code),
        ("memory", "out of memory; the peak of this process was", 1),
    ],
)
def test_a_scorer_that_breaks_fails_the_run_and_is_never_a_reward_of_zero(tmp_path, host, fault, text, exit_code):
    outcome = run(toy_bench.configuration(tmp_path, f"env.fault={fault}", "env.fault_step=200", tracker="list"), host)
    assert_failed(outcome, text, exit_code)
    assert calls(tmp_path, outcome.run)[-1] == {"call": "finish", "status": "failed"}
    assert (outcome.run / "metrics.jsonl").read_text().count("\n") >= 2, "what was measured before stays"


def test_a_scorer_that_hangs_ends_within_the_limit(tmp_path, host, monkeypatch):
    monkeypatch.setattr(runner, "Watchdog", lambda say, where, limit: Watchdog(say, where, limit=1.2, warn_after=0.4))
    watcher = Watcher()
    started = time.monotonic()
    outcome = run(toy_bench.configuration(tmp_path, "env.fault=sleep", "env.fault_step=200"), host, progress=watcher)
    assert time.monotonic() - started < 20
    assert_failed(outcome, "nothing has moved for 1 s while iteration", exit_code=EngineError.exit_code)
    assert any("nothing has moved" in message and "environment steps" in message for message in watcher.messages)


def test_a_rollout_that_never_returns_ends_within_the_limit(tmp_path, host, monkeypatch):
    import asyncio

    async def lost(self, messages, seed, sampling, prefix=()):
        await asyncio.Event().wait()

    monkeypatch.setattr(toy_bench._TableRollout, "generate", lost)
    monkeypatch.setattr(runner, "Watchdog", lambda say, where, limit: Watchdog(say, where, limit=1.2, warn_after=0.4))
    assert_failed(run(toy_bench.configuration(tmp_path), host), "nothing has moved", exit_code=EngineError.exit_code)


def test_a_slow_update_is_no_hang(tmp_path, host, monkeypatch):
    update = toy_bench._TableLearner.update

    def slow(self, *arguments):
        time.sleep(3)
        return update(self, *arguments)

    monkeypatch.setattr(toy_bench._TableLearner, "update", slow)
    monkeypatch.setattr(runner, "Watchdog", lambda say, where, limit: Watchdog(say, where, limit=2.0, warn_after=2.0))
    assert run(toy_bench.configuration(tmp_path, "budget.iterations=1"), host).state == "finished"


def test_weights_that_were_not_handed_over_stop_the_run(tmp_path, host):
    outcome = run(toy_bench.configuration(tmp_path, "engine.forget_publish=true"), host)
    assert_failed(outcome, "stale weights", exit_code=EngineError.exit_code)


def test_a_state_that_cannot_be_saved_names_its_owner_and_place(tmp_path, host):
    outcome = run(toy_bench.configuration(tmp_path, "algorithm.bad_state=true"), host)
    assert_failed(outcome, "algorithm counting cannot be checkpointed: algorithm.bad is a set", exit_code=PluginError.exit_code)


def test_a_failed_run_can_be_resumed_when_the_cause_is_gone(tmp_path, host, reference, monkeypatch):
    outcome = run(toy_bench.configuration(tmp_path, "env.fault=raise", "env.fault_step=600"), host)
    assert outcome.state == "failed"
    monkeypatch.setattr(toy_bench.Corridor, "_fault", lambda self: None)
    again = resume(outcome.run, host)
    assert (again.state, again.error, again.fix, again.exit_code) == ("finished", None, "", 0)
    assert fingerprint(again.run) == fingerprint(reference)


@pytest.mark.parametrize(
    ("overrides", "algorithm", "text", "fix"),
    [
        ([], "needy", "algorithm needy needs critic, which engine table does not offer", "engine=NAME"),
        (["algorithm.anchor=stat"], "counting", "algorithm.anchor=stat, but environment corridor has the state keys obs, state", "algorithm.anchor=obs"),
        (["algorithm.objective.kl_coef=0.1"], "counting", "needs a reference policy", "kl_coef=0"),
        (["train_split=tests"], "counting", "no split tests", ""),
    ],
)
def test_parts_that_do_not_fit_are_refused_before_anything_is_written(tmp_path, host, overrides, algorithm, text, fix):
    with pytest.raises(UsageError) as caught:
        run(toy_bench.configuration(tmp_path, *overrides, algorithm=algorithm), host)
    assert text in str(caught.value)
    assert fix in caught.value.fix
    assert not list(tmp_path.iterdir())


def test_a_split_without_tasks(tmp_path, host):
    with pytest.raises(DataError, match="no tasks in the split empty"):
        run(toy_bench.configuration(tmp_path, "train_split=empty"), host)


def test_fewer_tasks_than_asked_for_and_no_held_out_ones_are_said(tmp_path, host):
    watcher = Watcher()
    run(toy_bench.configuration(tmp_path, "evaluation.episodes=50", "evaluation.split=train", "budget.iterations=1"), host, progress=watcher)
    assert any("has only 7 tasks" in message for message in watcher.messages)
    assert any("not measured on held-out tasks" in message for message in watcher.messages)


def test_a_run_is_locked_while_it_goes_on(tmp_path, host):
    seen = []

    class Intruder(Watcher):
        def iteration(self, row):
            if not seen:
                with pytest.raises(StorageError) as caught:
                    resume(next((tmp_path / "test").iterdir()), host)
                seen.append(str(caught.value))

    assert run(toy_bench.configuration(tmp_path), host, progress=Intruder()).state == "finished"
    assert f"process {os.getpid()} works on it" in seen[0]


def test_a_run_in_another_thread(tmp_path, host, reference):
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(run(toy_bench.configuration(tmp_path), host)))
    thread.start()
    thread.join()
    assert fingerprint(outcomes[0].run) == fingerprint(reference)


def test_values_that_are_not_finite_are_null_and_counted(tmp_path, host):
    outcome = run(toy_bench.configuration(tmp_path, "algorithm.odd=true", "budget.iterations=1"), host)
    rows = [json.loads(line) for line in (outcome.run / "metrics.jsonl").read_text().splitlines()]
    train = next(row for row in rows if row["kind"] == "train")
    assert train["odd/nan"] is None
    assert train["odd/inf"] is None
    assert train["odd/big"] == 1e300
    assert train["non_finite"] >= 2


def test_memory_is_in_the_timings(reference):
    rows = [json.loads(line) for line in (reference / "timings.jsonl").read_text().splitlines()]
    metrics = [json.loads(line) for line in (reference / "metrics.jsonl").read_text().splitlines()]
    assert [(row["kind"], row["iteration"], row["env_steps"]) for row in rows] == [(row["kind"], row["iteration"], row["env_steps"]) for row in metrics]
    assert all(row["peak_memory_mb"] >= row["memory_mb"] > 10 for row in rows)
    assert all(earlier["seconds"] <= later["seconds"] for earlier, later in pairwise(rows))


def test_an_alarm_that_somebody_else_set_is_passed_on():
    heard = []
    former = signal.signal(signal.SIGALRM, lambda *what: heard.append(what))
    try:
        with Watchdog(lambda text: None, lambda: "nowhere", limit=60.0):
            signal.raise_signal(signal.SIGALRM)
    finally:
        signal.signal(signal.SIGALRM, former)
    assert len(heard) == 1
