"""Runs on a Ray cluster of this machine."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="ray is not installed (pip install 'threespo-bench[ray]')")

from tests.experiment.test_experiment import planned
from tests.runner import toy_bench
from tests.runner.conftest import Watcher, fingerprint
from threespo_bench.config.launcher import compose_launcher
from threespo_bench.errors import EngineError, UsageError
from threespo_bench.experiment import execute
from threespo_bench.runner import run
from threespo_bench.store import read_status

SLOW = ["engine.slow_save=0.5", "checkpoint.every_iterations=1"]


@pytest.fixture
def launch(borrow, monkeypatch):
    """Carry out a plan with the launcher."""
    host = borrow("ray", "threespo_plugins.launchers.ray:RayLauncher")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")

    def go(runs, *settings, **more):
        return execute(runs, host, launcher=compose_launcher(["launcher=ray", *settings], host), **more)

    return go


@pytest.mark.slow
def test_a_killed_worker_then_ctrl_c_then_all_goes_on(tmp_path, host, launch):
    """The killed worker costs one run, Ctrl-C stops the other one with a checkpoint, the same command finishes both, and nothing of Ray is left."""
    experiment, seen = tmp_path / "there" / "test", []

    class Killer(Watcher):
        def iteration(self, row):
            if row["iteration"] == 3:
                seen.extend(ray_processes())
                os.kill(worker_of(experiment, "1count-corridor-seed0"), signal.SIGKILL)

    runs = planned(tmp_path / "there", host, "counting", overrides=SLOW)
    comparison = launch(runs, "launcher.cpus=0.5", progress=lambda name: Killer() if name.endswith("seed0") else Watcher(stop_at=5))
    first, second = comparison.outcomes.values()
    assert (first.state, first.error, second.state) == ("failed", "the run's process was killed", "interrupted"), (first, second)
    assert comparison.interrupted and comparison.error().exit_code == 130
    assert [read_status(outcome.run)["state"] for outcome in (first, second)] == ["failed", "interrupted"]
    again = launch(runs, "launcher.cpus=0.5")
    assert again.error() is None
    for seed, (before, after) in enumerate(zip((first, second), again.outcomes.values(), strict=True)):
        assert after.run == before.run
        whole = run(toy_bench.configuration(tmp_path / "here", *SLOW, seed=seed), toy_bench.host())
        assert fingerprint(after.run) == fingerprint(whole.run)
    deadline = time.monotonic() + 20
    while ray_processes() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert seen
    assert not ray_processes()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["launcher.cpus=0"], "launcher.cpus=0.0 is out of range: must be > 0"),
        (["launcher.address=ray://head:10001"], "must be HOST:PORT of the cluster, auto, or null"),
        (["launcher.gpus=1.5"], "must be 0, a fraction below 1, or a whole number"),
        (["launcher.gpu=1"], "unknown key 'launcher.gpu': the launcher ray has no such option"),
        (["launcher.cpus=many"], "launcher.cpus=many: must be of type float"),
    ],
)
def test_wrong_options(borrow, settings, words):
    host = borrow("ray", "threespo_plugins.launchers.ray:RayLauncher")
    with pytest.raises(UsageError) as refused:
        compose_launcher(["launcher=ray", *settings], host)
    assert words in str(refused.value)


def test_a_cluster_that_is_not_there(tmp_path, host, launch):
    with pytest.raises(EngineError, match=r"cannot join the Ray cluster 127.0.0.1:1: .*refused"):
        launch(planned(tmp_path, host, "counting"), "launcher.address=127.0.0.1:1")


def ray_processes() -> list[str]:
    """What runs of the clusters that this process has started; the folder of a cluster's session is named after the process."""
    lines = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            lines.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace") if entry.name.isdigit() else "")
    return [line for line in lines if "/session_" in line and f"_{os.getpid()}/" in line]


def worker_of(experiment, name: str) -> int:
    """The process that carries a run out, as its first event says."""
    (events,) = experiment.glob(f"launcher/*/{name}.events.jsonl")
    return json.loads(events.read_text().splitlines()[0])["pid"]
