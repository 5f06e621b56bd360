"""Jobs through submitit: on this machine, and on a cluster of fake commands that run everything here."""

from __future__ import annotations

import os
import signal
import sys

import pytest

pytest.importorskip("submitit", reason="submitit is not installed (pip install 'threespo-bench[slurm]')")

from tests.experiment.test_experiment import planned
from tests.runner import toy_bench
from tests.runner.conftest import Watcher, fingerprint
from threespo_bench.config.launcher import compose_launcher
from threespo_bench.errors import UsageError
from threespo_bench.experiment import execute
from threespo_bench.runner import run
from threespo_plugins.launchers.slurm import SlurmConfig, _parameters

SLOW = ["engine.slow_save=0.2", "checkpoint.every_iterations=1"]
SBATCH = """
number=$(( $(cat "$CLUSTER/last" 2>/dev/null || echo 100) + 1 )); echo $number > "$CLUSTER/last"
cp "${@: -1}" "$CLUSTER/script-$number"
(
  export SLURM_JOB_ID=$number SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0
  echo RUNNING > "$CLUSTER/state-$number"
  bash "$CLUSTER/script-$number" > "$CLUSTER/log-$number" 2>&1; code=$?
  if [ $code = 137 ] && [ -f "$CLUSTER/next-reason" ]; then cp "$CLUSTER/next-reason" "$CLUSTER/state-$number"
  else echo COMPLETED > "$CLUSTER/state-$number"; fi
) < /dev/null > /dev/null 2>&1 &
echo "Submitted batch job $number"
"""
SRUN = """
while [[ $1 == -* ]]; do case $1 in --output|--error) shift 2;; *) shift;; esac; done
"$@"
"""
SACCT = """
echo "JobID|State|NodeList"
for file in "$CLUSTER"/state-*; do [ -e "$file" ] && echo "${file##*-}|$(cat "$file")|here"; done; exit 0
"""


@pytest.fixture
def launch(borrow):
    """Carry out a plan with the launcher."""
    host = borrow("slurm", "threespo_plugins.launchers.slurm:SlurmLauncher")

    def go(runs, *settings, **more):
        return execute(runs, host, launcher=compose_launcher(["launcher=slurm", *settings], host), **more)

    return go


@pytest.fixture
def cluster(fake_tool, tmp_path, monkeypatch):
    """A cluster whose commands run everything here; the folder has scripts and states."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    monkeypatch.setenv("CLUSTER", str(folder))
    for name, script in {"sbatch": SBATCH, "srun": SRUN, "sacct": SACCT, "scancel": "exit 0", "squeue": "exit 0"}.items():
        fake_tool(name, script)
    return folder


class AtIteration(Watcher):
    """Does something once, at an iteration, with the number of the process that the run is in."""

    def __init__(self, experiment, name, iteration, act):
        super().__init__()
        self.experiment, self.name, self.at, self.act = experiment, name, iteration, act

    def iteration(self, row):
        super().iteration(row)
        if row["iteration"] == self.at and self.act is not None:
            import json

            (events,) = self.experiment.glob(f"launcher/*/{self.name}.events.jsonl")
            act, self.act = self.act, None
            act(json.loads(events.read_text().splitlines()[0])["pid"])


def test_without_a_cluster_it_says_so(tmp_path, host, launch, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="there is no sbatch and srun here"):
        launch(planned(tmp_path, host, "counting"))


def test_what_sbatch_is_told():
    assert _parameters(SlurmConfig()) == {
        "time": 60,
        "signal_delay_s": 300,
        "cpus_per_task": 1,
        "nodes": 1,
        "ntasks_per_node": 1,
        "stderr_to_stdout": True,
        "additional_parameters": {"no-requeue": True},
    }
    more = _parameters(SlurmConfig(partition="gpu", account="lab", gres="gpu:1g.10gb:1", mem_gb=8, setup=("module load cuda",)))
    assert {"partition": "gpu", "account": "lab", "gres": "gpu:1g.10gb:1", "mem": "8192MB", "setup": ["module load cuda"]}.items() <= more.items()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["launcher.cluster=debug"], "launcher.cluster=debug is out of range: must be slurm or local"),
        (["launcher.minutes=1", "launcher.signal_seconds=60"], "launcher.signal_seconds=60 is out of range: must be >= 0 and below the time limit of 60 s"),
        (["launcher.gpus=1", "launcher.gres=gpu:1"], "0 where launcher.gres says"),
        (["launcher.jobs=0"], "launcher.jobs=0 is out of range: must be >= 1, or null"),
    ],
)
def test_options_out_of_range(borrow, settings, words):
    host = borrow("slurm", "threespo_plugins.launchers.slurm:SlurmLauncher")
    with pytest.raises(UsageError) as refused:
        compose_launcher(["launcher=slurm", *settings], host)
    assert words in str(refused.value)


def test_jobs_of_this_machine(tmp_path, host, launch):
    """One is killed: it costs one run. The logs are in the folder of the experiment."""
    experiment = tmp_path / "there" / "test"

    def progress(name):
        return AtIteration(experiment, name, 3, lambda pid: os.kill(pid, signal.SIGKILL) if name.endswith("seed0") else None)

    runs = planned(tmp_path / "there", host, "counting", overrides=SLOW)
    comparison = launch(runs, "launcher.cluster=local", "launcher.jobs=2", progress=progress)
    first, second = comparison.outcomes.values()
    assert (first.state, second.state) == ("failed", "finished"), (first, second)
    assert first.error.startswith("the job ended without an outcome") and "log" in first.fix
    assert list((experiment / "launcher-logs").glob("*_log.out"))
    assert fingerprint(second.run) == fingerprint(run(toy_bench.configuration(tmp_path / "here", *SLOW, seed=1), toy_bench.host()).run)


@pytest.mark.skipif(sys.platform != "linux", reason="the fake commands are bash scripts for Linux")
def test_a_cluster_and_its_time_limit(tmp_path, host, launch, cluster):
    """A job that is killed at its time limit is submitted again and goes on; sbatch gets the options."""
    (cluster / "next-reason").write_text("TIMEOUT")
    experiment = tmp_path / "there" / "test"
    killed = []

    def kill(pid):
        if not killed:
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    lines = []
    runs = planned(tmp_path / "there", host, "counting", seeds=[0], overrides=SLOW)
    comparison = launch(runs, "launcher.partition=gpu", progress=lambda name: AtIteration(experiment, name, 3, kill), say=lines.append)
    (outcome,) = comparison.outcomes.values()
    assert outcome.state == "finished", (outcome, lines)
    assert any("submitted again to go on (1 of 10 times)" in line for line in lines)
    script = (cluster / "script-101").read_text()
    assert "#SBATCH --partition=gpu" in script and "#SBATCH --no-requeue" in script and "#SBATCH --signal=USR2@300" in script
    assert "#SBATCH --job-name=3spo-1count-corridor-seed0" in script
    assert fingerprint(outcome.run) == fingerprint(run(toy_bench.configuration(tmp_path / "here", *SLOW), toy_bench.host()).run)
