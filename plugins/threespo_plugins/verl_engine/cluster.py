"""Ray: a cluster of this process's own, which ends with it, or one to join. Several engines of one process share it."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Iterator
from typing import Any

import ray

from threespo_bench.errors import EngineError
from threespo_plugins.verl_engine.config import VerlConfig

_OBJECT_STORE_BYTES = 300_000_000
_SPARE_CPUS = 4
"""CPUs of the local cluster beyond the ranks; Ray counts them only, and starts as many idle processes."""
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
            gpus = config.ranks if config.device == "cuda" else 0
            cpus = config.ranks + _SPARE_CPUS
            ray.init(num_cpus=cpus, num_gpus=gpus, include_dashboard=False, object_store_memory=_OBJECT_STORE_BYTES, **common)
    except Exception as error:  # Ray raises whatever its parts raise
        where = f"join the Ray cluster {config.ray_address}" if config.ray_address else "start Ray"
        raise EngineError(f"cannot {where}: {first_line(error)}", fix="look at the logs in /tmp/ray/session_latest/logs") from error


def _check_size(config: VerlConfig) -> None:
    """A placement group that does not fit would wait for ever."""
    kind = "GPU" if config.device == "cuda" else "CPU"
    have = int(ray.cluster_resources().get(kind, 0))
    if have < config.world_size:
        raise EngineError(
            f"engine.ranks={config.ranks} on engine.nodes={config.nodes} needs {config.world_size} {kind}s, but the Ray cluster has {have}",
            fix="lower engine.ranks or engine.nodes, or join a larger cluster with engine.ray_address",
        )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What verl and Ray print and warn of while they start is for their developers; a failure is an exception."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
        yield


def first_line(error: BaseException) -> str:
    """The message of an error in one line, or its type."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
