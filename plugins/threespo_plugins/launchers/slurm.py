"""The launcher ``slurm``: one Slurm job for each run, through submitit."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from submitit.core.core import Job
from submitit.core.utils import FailedJobError
from submitit.local.local import LocalExecutor
from submitit.slurm.slurm import SlurmExecutor

from threespo_bench.contracts.launcher import Cell, LauncherConfig, Monitor, require
from threespo_bench.devices import detect, environment_for, one_each, visible
from threespo_bench.errors import UsageError
from threespo_bench.remote import FOLDER, carry_out
from threespo_bench.remote_launcher import Ended, RemoteLauncher, explain

LOGS = f"{FOLDER}-logs"
_GOES_ON = "the same command goes on from the newest checkpoint"
_STATES = {
    "TIMEOUT": Ended(error="the job reached its time limit before the run could stop", fix="a larger launcher.minutes or launcher.signal_seconds", again=True),
    "PREEMPTED": Ended(error="the job was preempted", fix=_GOES_ON, again=True),
    "OUT_OF_MEMORY": Ended(error="the job ran out of memory", fix="a larger launcher.mem_gb"),
    "NODE_FAIL": Ended(error="the node of the job failed", fix=_GOES_ON),
    "CANCELLED": Ended(error="the job was cancelled", fix=_GOES_ON),
}


@dataclass
class SlurmConfig(LauncherConfig):
    """Options of the launcher.

    Attributes:
        cluster: ``slurm``; or ``local``, the same machinery with plain processes on this machine, to try it out.
        partition, account, qos, constraint: as for sbatch; null leaves them to the cluster.
        minutes: time limit of a job. A run that reaches it stops by itself with a checkpoint and is submitted again.
        signal_seconds: so long before the time limit a job is told to stop; it should be longer than an iteration.
        requeues: how often a run that was stopped by the time limit or preempted is submitted again.
        cpus: of a run. gpus: of a run. gres: generic resources instead of gpus, e.g. ``gpu:1g.10gb:1`` for a MIG slice. mem_gb: memory of a run.
        setup: shell commands before the run, e.g. ``module load cuda``.
    """

    cluster: str = "slurm"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    minutes: int = 60
    signal_seconds: int = 300
    requeues: int = 10
    cpus: int = 1
    gpus: int = 0
    gres: str | None = None
    mem_gb: float | None = None
    setup: tuple[str, ...] = ()

    def validate(self) -> None:
        """See LauncherConfig."""
        super().validate()
        require(self.cluster in ("slurm", "local"), "cluster", self.cluster, "slurm or local")
        require(self.minutes >= 1, "minutes", self.minutes, ">= 1")
        require(0 <= self.signal_seconds < 60 * self.minutes, "signal_seconds", self.signal_seconds, f">= 0 and below the time limit of {60 * self.minutes} s")
        require(self.requeues >= 0, "requeues", self.requeues, ">= 0")
        require(self.cpus >= 1, "cpus", self.cpus, ">= 1")
        require(self.gpus >= 0, "gpus", self.gpus, ">= 0")
        require(self.mem_gb is None or self.mem_gb > 0, "mem_gb", self.mem_gb, "> 0, or null")
        require(self.gres is None or self.gpus == 0, "gpus", self.gpus, "0 where launcher.gres says what a run gets")


class SlurmLauncher(RemoteLauncher):
    """One job a run. Slurm itself requeues nothing: the comparison submits again what the time limit stopped, and a lost job is a failed run."""

    Config: ClassVar[type[LauncherConfig]] = SlurmConfig
    title = "One Slurm job for each run, through submitit"
    poll_seconds = 1.0

    def open(self, cells: Sequence[Cell], monitor: Monitor) -> None:
        """Find the cluster. Raises UsageError if there is none here."""
        config, logs = self.config, self.folder.resolve() / LOGS
        self.requeues = config.requeues
        self._jobs: list[Job[Any]] = []
        self._asked: dict[str, float] = {}
        self._devices = visible(detect()) if config.cluster == "local" and config.gpus else []
        if config.cluster == "local":
            self._executor: Any = LocalExecutor(logs)
            self._executor.update_parameters(timeout_min=config.minutes, signal_delay_s=config.signal_seconds, stderr_to_stdout=True, setup=list(config.setup))
        elif shutil.which("sbatch") is None or shutil.which("srun") is None:
            raise UsageError("there is no sbatch and srun here", fix="start the comparison on a login node of the cluster, or try launcher.cluster=local")
        else:
            self._executor = SlurmExecutor(logs)
            self._executor.update_parameters(**_parameters(config))
        monitor.say(f"logs of the jobs are in {logs}")

    def submit(self, task: Mapping[str, Any], place: int) -> Job[Any]:
        """See RemoteLauncher."""
        environment = one_each(self._devices, place)
        if self.config.cluster == "slurm":
            self._executor.update_parameters(job_name=f"3spo-{task['name']}"[:100])
        job = self._executor.submit(_carry_out, dict(task), environment, bool(self.config.gpus or self.config.gres) and self.config.cluster == "slurm")
        self._jobs.append(job)
        return job

    def look(self, handle: Job[Any]) -> Ended | None:
        """See RemoteLauncher."""
        if handle.paths.result_pickle.exists():
            try:
                return Ended(handle.result())
            except FailedJobError as error:
                last = [line for line in str(error).splitlines() if ": " in line and not line.startswith((" ", "-", "Job", "You", "  -"))]
                return Ended(error=f"the job could not begin: {last[-1] if last else explain(error)}", fix=f"its log is {handle.paths.stdout}")
        if not handle.done() and not self._left_the_queue(handle):
            return None
        state = handle.state.split()[0].rstrip("+") if handle.state else "UNKNOWN"
        return _STATES.get(state) or Ended(error=f"the job ended without an outcome (state {state})", fix=f"its log is {handle.paths.stdout}")

    def _left_the_queue(self, job: Job[Any]) -> bool:
        """Where Slurm keeps no accounts, only the queue tells that a job is over."""
        if self.config.cluster != "slurm" or job.state != "UNKNOWN" or time.monotonic() - self._asked.get(job.job_id, 0.0) < 30.0:
            return False
        self._asked[job.job_id] = time.monotonic()
        listed = subprocess.run(["squeue", "--noheader", "--jobs", job.job_id], capture_output=True, text=True)
        return (listed.returncode == 0 and not listed.stdout.strip()) or "Invalid job id" in listed.stderr

    def cancel(self, handle: Job[Any]) -> None:
        """See RemoteLauncher."""
        handle.cancel(check=False)

    def close(self) -> None:
        """Jobs in Slurm need nobody to wait for them; processes of this machine shall not be left behind."""
        if self.config.cluster == "slurm":
            return
        deadline = time.monotonic() + 10.0
        while any(not job.done() for job in self._jobs) and time.monotonic() < deadline:
            time.sleep(0.1)


def _parameters(config: SlurmConfig) -> dict[str, Any]:
    """What sbatch is told."""
    asked = {
        "partition": config.partition,
        "account": config.account,
        "qos": config.qos,
        "constraint": config.constraint,
        "gpus_per_node": config.gpus or None,
        "gres": config.gres,
        "mem": None if config.mem_gb is None else f"{round(1024 * config.mem_gb)}MB",
        "setup": list(config.setup) or None,
    }
    fixed = {
        "time": config.minutes,
        "signal_delay_s": config.signal_seconds,
        "cpus_per_task": config.cpus,
        "nodes": 1,
        "ntasks_per_node": 1,
        "stderr_to_stdout": True,
        "additional_parameters": {"no-requeue": True},
    }
    return fixed | {key: value for key, value in asked.items() if value is not None}


def _carry_out(task: Mapping[str, Any], environment: Mapping[str, str], own_devices: bool) -> dict[str, Any]:
    """The job. With ``own_devices`` it takes what Slurm gave it: its GPUs, or of several MIG slices one, since a process can use no more."""
    if own_devices:
        devices = visible(detect())
        environment = environment_for(devices[:1] if any(device.mig for device in devices) else devices)
    return carry_out(task, environment)
