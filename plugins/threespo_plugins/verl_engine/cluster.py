"""Ray: a cluster of this process's own, which ends with it, or one to join. Several engines of one process share it."""

from __future__ import annotations

import contextlib
import io
import os
import time
import warnings
from collections.abc import Iterator
from typing import Any

import ray

from threespo_bench.errors import EngineError
from threespo_plugins.messages import first_line
from threespo_plugins.ray_address import LOGS
from threespo_plugins.verl_engine.config import VerlConfig
from threespo_plugins.verl_engine.requirements import START_CLUSTER

_OBJECT_STORE_BYTES = 300_000_000
COLOCATED = 2
"""Groups of workers, policy and critic, that share a rank's place; each place takes as many CPUs, which Ray only counts."""
_ENGINES = 4
"""Engines of one process that fit on a cluster that was started here."""
_engines = 0
_ours = False  # the connection; a process that Ray itself started has one already


def environment(config: VerlConfig) -> dict[str, str]:
    """Environment variables of every process of the cluster that works for us."""
    variables = {
        "HF_HUB_OFFLINE": "1",  # a folder is all that is ever read
        "OMP_NUM_THREADS": str(config.threads),
        "RAY_USAGE_STATS_ENABLED": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "VERL_LOGGING_LEVEL": os.environ.get("VERL_LOGGING_LEVEL", "ERROR"),
        "VERL_USE_EXTERNAL_MODULES": "threespo_plugins.verl_engine.addon",
        "WANDB_MODE": "disabled",
    }
    return variables | {"VERL_PLATFORM": "cpu"} if config.device == "cpu" else variables


def prepare_process(config: VerlConfig) -> None:
    """Set this process up so that it may import verl."""
    variables = environment(config)
    del variables["OMP_NUM_THREADS"]
    os.environ.update(variables)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # the workers of a cluster of our own are what the machine is for
    if config.device == "cpu":
        with quiet():
            from verl.plugin.platform import get_platform, set_platform

        from threespo_plugins.verl_engine.platform_cpu import PlatformCPU

        if get_platform().device_name != "cpu":
            set_platform(PlatformCPU())


def connect(config: VerlConfig) -> None:
    """Start or join the cluster. Raises EngineError if it does not come up or is too small."""
    global _engines, _ours
    if not ray.is_initialized():
        _init(config)
        _ours = True
    _engines += 1
    try:
        _check_size(config)
    except BaseException:
        disconnect()
        raise


def disconnect() -> None:
    """Leave the cluster with the last engine; one that was started here ends."""
    global _engines, _ours
    _engines -= 1
    if _engines == 0 and _ours:
        _ours = False
        with contextlib.suppress(Exception):
            ray.shutdown()


def _init(config: VerlConfig) -> None:
    common: dict[str, Any] = {"runtime_env": {"env_vars": environment(config)}, "log_to_driver": False, "logging_level": "error"}
    try:
        with quiet():
            if config.ray_address is not None:
                ray.init(address=config.ray_address, **common)
                return
            places = config.ranks + config.rollout_ranks
            gpus = places if config.device == "cuda" else 0
            cpus = _ENGINES * COLOCATED * places
            ray.init(num_cpus=cpus, num_gpus=gpus, include_dashboard=False, object_store_memory=_OBJECT_STORE_BYTES, **common)
    except Exception as error:  # Ray raises whatever its parts raise
        if config.ray_address is not None:
            raise EngineError(f"cannot join the Ray cluster {config.ray_address}: {first_line(error)}", fix=START_CLUSTER) from error
        raise EngineError(f"cannot start Ray: {first_line(error)}", fix=LOGS) from error


def _needed(config: VerlConfig) -> dict[str, int]:
    needed = {"CPU": COLOCATED * config.all_ranks}
    return needed | {"GPU": config.all_ranks} if config.device == "cuda" else needed


def _check_size(config: VerlConfig) -> None:
    """Raises EngineError if the cluster could never hold the workers."""
    for kind, amount in _needed(config).items():
        have = int(ray.cluster_resources().get(kind, 0))
        if have < amount:
            asked = f"engine.ranks={config.ranks} on engine.nodes={config.nodes}"
            asked += f" and engine.rollout_ranks={config.rollout_ranks} need" if config.rollout_ranks else " needs"
            raise EngineError(
                f"{asked} {amount} {kind}s, but the Ray cluster has {have}",
                fix="lower engine.ranks, engine.nodes or engine.rollout_ranks, or join a larger cluster with engine.ray_address",
            )


def wait_for_room(config: VerlConfig) -> None:
    """Wait until the workers fit beside what else runs: verl would wait for ever. Raises EngineError if that takes too long."""
    deadline = time.monotonic() + config.start_seconds
    while busy := [kind for kind, amount in _needed(config).items() if ray.available_resources().get(kind, 0) < amount]:
        if time.monotonic() > deadline:
            raise EngineError(
                f"the Ray cluster had no room for the workers within {config.start_seconds:g} s: its {busy[0]}s are in use", fix="try again later"
            )
        time.sleep(0.2)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What verl and Ray print and warn of while they start is for their developers; a failure is an exception."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
        yield
