"""What must be there before anything heavy starts. Nothing here imports torch, Ray or verl."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from threespo_bench import devices
from threespo_bench.contracts.rollout import OwnSampling, Rollout
from threespo_bench.errors import DataError, EngineError, UsageError
from threespo_plugins.model_folder import check_model_folder, read_config
from threespo_plugins.ray_cluster import check_ray_cluster
from threespo_plugins.verl_engine.config import VERSION, VerlConfig

SERVERS = ("vllm", "sglang")
"""Rollouts whose servers verl runs itself."""
_RANKS_A_CORE = 4
"""On the CPU nothing else bounds how many processes are started."""
START_CLUSTER = "start it: ray start --head (on Slurm: threespo-bench slurm); or leave engine.ray_address out to have one of the run's own"
_INSTALL = "make an environment for it: scripts/verl_env.sh DIR (docs/verl.md)"


def works_with(rollout: Rollout) -> bool:
    """verl can generate by it."""
    return issubclass(rollout.target, OwnSampling) or rollout.name in SERVERS


def check(config: VerlConfig, model: Path, rollout: Rollout) -> None:
    """Raises EngineError, DataError or UsageError in one line if a run cannot work."""
    config.validate()
    _check_server(config, rollout)
    _check_packages(config, rollout)
    _check_device(config)
    _check_model(config, model, rollout)
    check_model_folder(model)
    if config.ray_address is not None and not _in_ray():
        check_ray_cluster(config.ray_address, START_CLUSTER)


def _check_packages(config: VerlConfig, rollout: Rollout) -> None:
    try:
        found = version("verl")
    except PackageNotFoundError:
        raise EngineError("engine=verl needs verl, which is not installed", fix=_INSTALL) from None
    if found != VERSION:
        raise EngineError(f"engine=verl is written for verl {VERSION}, and {found or 'one without a version'} is installed", fix=_INSTALL)
    for package in ("verl", "ray", "cachetools", "peft"):
        if find_spec(package) is None:
            raise EngineError(f"engine=verl needs {package}, which is not installed", fix=_INSTALL)
    _check_source()
    if config.rollout_ranks and config.transfer == "nccl" and find_spec("cupy") is None:
        fix = "pip install 'verl[cupy-cu130]', or engine.weight_transfer=gloo"
        raise EngineError("engine.weight_transfer=nccl needs cupy, which is not installed", fix=fix)
    if rollout.name in SERVERS and find_spec(rollout.name) is None:
        raise EngineError(
            f"rollout={rollout.name} needs {rollout.name}, which is not installed", fix="rollout=hf, or an environment with verl's extra of that name"
        )


def _check_source() -> None:
    """A clone of verl that PYTHONPATH names is imported instead of the one that is installed, and says in a file which version it is."""
    spec = find_spec("verl")
    for folder in getattr(spec, "submodule_search_locations", None) or ():
        try:
            found = Path(folder, "version", "version").read_text().strip()
        except OSError:
            found = "an unknown one"
        if found != VERSION:
            raise EngineError(f"engine=verl is written for verl {VERSION}, and {found} is imported, from {folder}", fix="remove that folder from PYTHONPATH")


def _check_server(config: VerlConfig, rollout: Rollout) -> None:
    for name in ("url", "python"):
        if getattr(rollout.options, name, None) is not None:
            raise UsageError(f"rollout.{name} is given, but engine=verl starts the servers of rollout={rollout.name} itself", fix=f"rollout.{name}=null")
    if rollout.name in SERVERS and config.device != "cuda":
        raise UsageError(f"verl runs rollout={rollout.name} on GPUs only", fix="rollout=hf with engine.device=cpu")


def _check_device(config: VerlConfig) -> None:
    _check_address(config.ray_address)
    address = os.environ.get("RAY_ADDRESS")
    if config.ray_address is None and address and not _in_ray():
        fix = "engine.ray_address=auto joins it; unset RAY_ADDRESS otherwise"
        raise EngineError(f"RAY_ADDRESS={address} names a Ray cluster, but engine.ray_address=null starts one here", fix=fix)
    if config.device == "cuda" and config.ray_address is None and config.nodes > 1 and not _in_ray():
        fix = "engine.ray_address=auto, or HOST:PORT of the cluster (docs/clusters.md)"
        raise EngineError(f"engine.nodes={config.nodes} needs a Ray cluster of so many machines to join", fix=fix)
    if config.device == "cpu" and config.ray_address is None:
        cores = os.cpu_count() or 1
        if config.all_ranks > _RANKS_A_CORE * cores:
            asked = f"engine.ranks={config.ranks}"
            asked += f" and engine.rollout_ranks={config.rollout_ranks} ask" if config.rollout_ranks else " asks"
            fix = f"at most {_RANKS_A_CORE * cores} in all; one is best on the CPU"
            raise EngineError(f"{asked} for {config.all_ranks} processes with a model each, and this machine has {cores} cores", fix=fix)
    if config.device == "cuda" and config.ray_address is None:
        have = _gpus()
        if not have:
            raise EngineError("engine.device=cuda, but this machine has no CUDA device", fix="engine.device=cpu, or join a cluster with engine.ray_address")
        if have < config.all_ranks:
            asked = f"engine.ranks={config.ranks}"
            asked += f" and engine.rollout_ranks={config.rollout_ranks} need" if config.rollout_ranks else " needs"
            fix = "lower one of them" if config.rollout_ranks else f"engine.ranks={have}"
            raise EngineError(f"{asked} {config.all_ranks} GPUs, and this machine has {have}", fix=fix)


def _check_address(address: str | None) -> None:
    if address is None or address == "auto" or ("/" not in address and address.rpartition(":")[2].isdecimal()):
        return
    fix = "engine.ray_address=auto joins the cluster of this machine"
    if address.startswith("ray://"):
        fix = "start the run on a machine of the cluster: verl's workers cannot be started through a Ray client"
    raise UsageError(f"engine.ray_address={address} is out of range: must be HOST:PORT of the cluster, auto, or null", fix=fix)


def _in_ray() -> bool:
    """This process belongs to a cluster already: Ray started it, or an engine before this one did."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def _gpus() -> int:
    """GPUs, or slices of them, that processes started here may use: as ``nvidia-smi`` lists them, or where there is none, the driver."""
    found = len(devices.visible(devices.detect()))
    if found:
        return found
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    driver = Path("/proc/driver/nvidia/gpus")
    present = len(list(driver.iterdir())) if driver.is_dir() else 0
    return min(present, len([name for name in visible.split(",") if name.strip()])) if visible is not None else present


def _check_model(config: VerlConfig, model: Path, rollout: Rollout) -> None:
    fields = read_config(model)
    if len(fields.get("architectures") or ()) != 1:
        raise DataError(f"model folder {model}: config.json must name one architecture for verl, not {fields.get('architectures')}", fix="name the class there")
    fields = fields.get("text_config") or fields
    heads = fields.get("num_attention_heads") or fields.get("n_head")
    hidden = fields.get("hidden_size") or fields.get("n_embd")
    if rollout.name not in SERVERS or not heads or not hidden:
        return
    size = fields.get("head_dim") or hidden // heads
    if size % 16 or size > 256:  # flash attention and its relatives
        raise UsageError(
            f"the heads of the model in {model} have {size} dimensions; rollout={rollout.name} needs a multiple of 16, at most 256", fix="rollout=hf"
        )
    for name, count in (("attention heads", heads), ("key-value heads", fields.get("num_key_value_heads") or heads)):
        if count % config.tensor_parallel and config.tensor_parallel % count:
            raise UsageError(f"engine.tensor_parallel={config.tensor_parallel} does not divide the model's {count} {name}", fix=f"a divisor of {count}")
