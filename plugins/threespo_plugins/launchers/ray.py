"""The launcher ``ray``: one Ray task for each run, on a cluster that is there or one that is started for the comparison."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import ray
from ray import exceptions

from threespo_bench.contracts.launcher import Cell, LauncherConfig, Monitor, require
from threespo_bench.devices import detect, environment_for, visible
from threespo_bench.errors import EngineError, UsageError
from threespo_bench.remote import carry_out
from threespo_bench.remote_launcher import Ended, RemoteLauncher, explain
from threespo_plugins.ray_address import LOGS
from threespo_plugins.ray_cluster import check_ray_cluster

_OWN_CLUSTER = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}  # the runs are what the machine is for; Ray's default gives way to all else
_START_CLUSTER = "start it: ray start --head; or leave launcher.address out to have one of the comparison's own"
_OBJECT_STORE_BYTES = 100 * 1024**2  # nothing large is passed; Ray's own default is 30% of the memory


@dataclass
class RayConfig(LauncherConfig):
    """Options of the launcher.

    Attributes:
        address: of a running cluster, ``HOST:PORT`` or ``auto``; null starts one on this machine and ends it with the comparison.
        cpus: CPUs that a run asks the cluster for. gpus: GPUs, or a fraction of one.
        resources: amounts of the cluster's own resources that a run asks for, by name.
    """

    address: str | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    resources: dict[str, float] = field(default_factory=dict)

    def validate(self) -> None:
        """See LauncherConfig."""
        super().validate()
        known = self.address is None or self.address == "auto" or (self.address.rpartition(":")[2].isdigit() and "/" not in self.address)
        require(known, "address", self.address, "HOST:PORT of the cluster, auto, or null")
        require(self.cpus > 0, "cpus", self.cpus, "> 0")
        require(self.gpus >= 0 and (self.gpus < 1 or self.gpus == int(self.gpus)), "gpus", self.gpus, "0, a fraction below 1, or a whole number")
        for name, amount in self.resources.items():
            require(amount > 0, f"resources.{name}", amount, "> 0")


class RayLauncher(RemoteLauncher):
    """One task a run, each in a fresh process. Ray itself retries nothing: a lost worker or node is a failed run, which the next ``compare`` continues."""

    Config: ClassVar[type[LauncherConfig]] = RayConfig
    title = "One Ray task for each run, on a running cluster or one of its own"

    def open(self, cells: Sequence[Cell], monitor: Monitor) -> None:
        """Connect to the cluster or start one. Raises EngineError or UsageError."""
        self._connect()
        config = self.config
        self._function = ray.remote(max_retries=0, max_calls=1, num_cpus=config.cpus, num_gpus=config.gpus, resources=config.resources)(_carry_out)
        missing = self._missing()
        if missing and config.address is None:
            raise UsageError(f"no run can ever start: {missing}", fix="ask for less, or give the address of a cluster that has it")
        if missing:
            monitor.say(f"runs wait until a node joins: {missing}")

    def _connect(self) -> None:
        if self.config.address is not None:
            check_ray_cluster(self.config.address, _START_CLUSTER)
        quiet = {"log_to_driver": False, "logging_level": "error", "configure_logging": False}
        try:
            if self.config.address is not None:
                ray.init(address=self.config.address, **quiet)
                return
            for name, value in _OWN_CLUSTER.items():
                os.environ.setdefault(name, value)
            gpus = visible(detect())
            os.environ.update(environment_for(gpus))  # the cluster hands these round
            ray.init(address="local", include_dashboard=False, num_gpus=len(gpus), object_store_memory=_OBJECT_STORE_BYTES, **quiet)
        except Exception as error:
            where = f"the Ray cluster at {self.config.address} cannot be reached" if self.config.address else "Ray cannot be started on this machine"
            raise EngineError(f"{where}: {explain(error)}", fix=_START_CLUSTER if self.config.address else LOGS) from error

    def _missing(self) -> str:
        """What no node of the cluster has enough of for one run."""
        wanted = {"CPU": self.config.cpus, "GPU": self.config.gpus, **self.config.resources}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if any(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in nodes):
            return ""
        asked = ", ".join(f"{amount:g} {name}" for name, amount in wanted.items() if amount)
        there = "; ".join(", ".join(f"{node.get(name, 0):g} {name}" for name, amount in wanted.items() if amount) for node in nodes)
        return f"a run asks for {asked}, and no node has that (they have {there})"

    def submit(self, task: Mapping[str, Any], place: int) -> Any:
        """See RemoteLauncher."""
        return self._function.options(name=f"threespo-bench {task['name']}").remote(dict(task))

    def look(self, handle: Any) -> Ended | None:
        """See RemoteLauncher."""
        done, _ = ray.wait([handle], timeout=0)
        if not done:
            return None
        try:
            return Ended(ray.get(handle))
        except exceptions.RayTaskError as error:
            cause = error.cause or error
            return Ended(error=f"the run's process could not begin: {explain(cause)}", fix=getattr(cause, "fix", "install the same program on every node"))
        except exceptions.OutOfMemoryError as error:
            return Ended(error=f"the node ran out of memory, and Ray ended the run's process: {explain(error)}", fix="ask for more cpus for each run")
        except exceptions.WorkerCrashedError:
            return Ended(error="the run's process was killed", fix="most often the node ran out of memory; the same command goes on from the newest checkpoint")
        except exceptions.NodeDiedError:
            return Ended(error="the node of the run died", fix="the same command goes on from the newest checkpoint")
        except exceptions.RayError as error:
            return Ended(error=f"Ray lost the run: {explain(error)}", fix="the same command goes on from the newest checkpoint")

    def cancel(self, handle: Any) -> None:
        """See RemoteLauncher."""
        ray.cancel(handle, force=True)

    def close(self) -> None:
        """Disconnect, and end the cluster if it is our own."""
        ray.shutdown()


def _carry_out(task: Mapping[str, Any]) -> dict[str, Any]:
    """The task. Ray has set CUDA_VISIBLE_DEVICES to the GPUs of this run; on MIG slices NCCL needs to know more."""
    return carry_out(task, environment_for(visible(detect())) if os.environ.get("CUDA_VISIBLE_DEVICES") else None)
