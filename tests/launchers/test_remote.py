"""What all launchers do that start processes elsewhere, shown with plain processes of this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import ClassVar

import pytest

from tests.experiment.test_experiment import planned
from tests.runner import toy_bench
from tests.runner.conftest import Watcher, fingerprint
from threespo_bench.config.schema import Component
from threespo_bench.contracts.launcher import LauncherConfig
from threespo_bench.errors import EngineError
from threespo_bench.experiment import execute
from threespo_bench.remote_launcher import Ended, RemoteLauncher
from threespo_bench.runner import run
from threespo_bench.store import read_status

SLOW = ["engine.slow_save=0.2", "checkpoint.every_iterations=1"]


@dataclass
class ProcessConfig(LauncherConfig):
    """No further options."""


class ProcessLauncher(RemoteLauncher):
    """A process for each run."""

    Config = ProcessConfig
    poll_seconds, settle_seconds = 0.05, 1.0
    processes: ClassVar[list[subprocess.Popen]] = []
    seen: ClassVar[list[int]] = []
    refuse: ClassVar[str] = ""

    def open(self, cells, monitor):
        if self.refuse == "open":
            raise EngineError("no cluster")
        type(self).processes, type(self).seen = [], []

    def submit(self, task, place):
        if self.refuse == task["name"]:
            raise ValueError("the queue is full")
        self.seen.append(place)
        code = "import json, sys; from threespo_bench.remote import carry_out; print(json.dumps(carry_out(json.load(sys.stdin))))"
        process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        process.stdin.write(json.dumps(task))
        process.stdin.close()
        self.processes.append(process)
        return process

    def look(self, handle):
        if handle.poll() is None:
            return None
        if handle.poll() == 0:
            return Ended(json.loads(handle.stdout.read().splitlines()[-1]))
        return Ended(error=f"the process ended with code {handle.poll()}", fix="go on")

    def cancel(self, handle):
        handle.kill()

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdout.close()


@pytest.fixture
def launch(borrow, monkeypatch):
    """Carry out a plan with this launcher."""
    host = borrow("processes", f"{__name__}:ProcessLauncher")
    monkeypatch.setattr(ProcessLauncher, "refuse", "")
    monkeypatch.setattr(ProcessLauncher, "requeues", 0)

    def go(runs, jobs=2, **more):
        return execute(runs, host, launcher=Component("processes", ProcessConfig(jobs)), **more)

    return go


def test_elsewhere_equals_here(tmp_path, host, launch):
    lines, watchers = [], {}
    runs = planned(tmp_path / "there", host, "counting", "needy", seeds=[0])
    comparison = launch(runs, progress=lambda name: watchers.setdefault(name, Watcher()), say=lines.append)
    good, bad = comparison.outcomes.values()
    assert (good.state, bad.state, bad.exit_code) == ("finished", "failed", 2)
    assert watchers["1count-corridor-seed0"].rows[-1]["iteration"] == 10
    assert fingerprint(good.run) == fingerprint(run(toy_bench.configuration(tmp_path / "here"), toy_bench.host()).run)
    assert sorted(ProcessLauncher.seen) == [0, 1]
    assert not (tmp_path / "there" / "test" / "launcher").exists()
    assert (tmp_path / "there" / "test" / "report" / "index.html").exists()


def test_a_lost_process_costs_one_run_that_goes_on_later(tmp_path, host, launch):
    class Killer(Watcher):
        def iteration(self, row):
            if row["iteration"] == 3 and ProcessLauncher.processes[0].poll() is None:
                os.kill(ProcessLauncher.processes[0].pid, signal.SIGKILL)

    runs = planned(tmp_path, host, "counting", overrides=SLOW)
    comparison = launch(runs, progress=lambda name: Killer() if name.endswith("seed0") else Watcher())
    first, second = comparison.outcomes.values()
    assert (first.state, first.error, second.state) == ("failed", "the process ended with code -9", "finished")
    assert not comparison.interrupted and comparison.error().exit_code == 7
    assert read_status(first.run)["state"] == "failed"
    again = launch(runs)
    assert again.error() is None
    assert [outcome.run for outcome in again.outcomes.values()] == [first.run, second.run]
    whole = run(toy_bench.configuration(tmp_path / "whole", *SLOW), toy_bench.host())
    assert fingerprint(first.run) == fingerprint(whole.run)


def test_ctrl_c_stops_what_runs_and_starts_nothing_more(tmp_path, host, launch):
    class Presser(Watcher):
        def iteration(self, row):
            if row["iteration"] == 2:
                signal.raise_signal(signal.SIGINT)

    runs = planned(tmp_path, host, "counting", seeds=[0, 1], overrides=SLOW)
    comparison = launch(runs, jobs=1, progress=lambda name: Presser())
    assert comparison.interrupted
    assert [outcome.state for outcome in comparison.outcomes.values()] == ["interrupted"]
    assert read_status(tmp_path / "test" / "1count-corridor-seed0")["state"] == "interrupted"
    assert len(ProcessLauncher.processes) == 1
    assert launch(runs).error() is None


def test_what_the_cluster_stops_is_submitted_again(tmp_path, host, launch, monkeypatch):
    """SIGUSR2 is what comes before a time limit: the run stops with a checkpoint, and goes on by itself."""
    monkeypatch.setattr(ProcessLauncher, "requeues", 1)

    class Limit(Watcher):
        def iteration(self, row):
            if row["iteration"] == 2 and len(ProcessLauncher.processes) == 1:
                ProcessLauncher.processes[0].send_signal(signal.SIGUSR2)

    lines = []
    comparison = launch(planned(tmp_path, host, "counting", seeds=[0], overrides=SLOW), progress=lambda name: Limit(), say=lines.append)
    assert comparison.error() is None
    assert len(ProcessLauncher.processes) == 2
    assert any("submitted again to go on (1 of 1 times)" in line for line in lines)
    whole = run(toy_bench.configuration(tmp_path / "whole", *SLOW), toy_bench.host())
    assert fingerprint(comparison.outcomes["1count-corridor-seed0"].run) == fingerprint(whole.run)


def test_a_refused_run_costs_no_other(tmp_path, host, launch, monkeypatch):
    monkeypatch.setattr(ProcessLauncher, "refuse", "1count-corridor-seed0")
    comparison = launch(planned(tmp_path, host, "counting"))
    first, second = comparison.outcomes.values()
    assert (first.state, first.error, second.state) == ("failed", "ValueError: the queue is full", "finished")


def test_no_cluster_is_an_error_at_once(tmp_path, host, launch, monkeypatch):
    monkeypatch.setattr(ProcessLauncher, "refuse", "open")
    with pytest.raises(EngineError, match="no cluster"):
        launch(planned(tmp_path, host, "counting"))
    assert json.loads((tmp_path / "test" / "experiment.json").read_text())["runs"][0]["state"] == "planned"


def test_a_machine_without_the_folder_says_so(tmp_path, host, launch, monkeypatch):
    monkeypatch.setattr("threespo_bench.remote.Exchange.begin", lambda self: self.folder.mkdir(parents=True))  # no mark, as on a disk of another machine
    comparison = launch(planned(tmp_path, host, "counting", seeds=[0]))
    outcome = comparison.outcomes["1count-corridor-seed0"]
    assert outcome.exit_code == 6
    assert f"does not see the folder {tmp_path / 'test'} of the machine that started the comparison" in outcome.error
