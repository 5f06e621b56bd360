"""The CPU as a platform of verl, which knows accelerators only; registered under the name ``cpu`` (environment variable ``VERL_PLATFORM=cpu``)."""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

NAME = "cpu"


def _device_module() -> types.ModuleType:
    """What verl calls of ``torch.cuda``, for a device that has neither memory of its own nor streams that matter."""
    module = types.ModuleType("threespo_cpu_device")
    memory = psutil.virtual_memory
    zero = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")
    nothing = (
        "empty_cache", "synchronize", "set_device", "ipc_collect", "reset_peak_memory_stats", "reset_accumulated_memory_stats",
        "set_per_process_memory_fraction", "manual_seed", "manual_seed_all",
    )  # fmt: skip
    functions: dict[str, Any] = {name: lambda *_, **__: 0 for name in zero}
    functions |= {name: lambda *_, **__: None for name in nothing}
    functions |= {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: torch.device("cpu"),
        "get_device_name": lambda *_: "CPU",
        "mem_get_info": lambda *_: (memory().available, memory().total),
        "get_device_properties": lambda *_: types.SimpleNamespace(total_memory=memory().total),
        "get_rng_state": torch.get_rng_state,
        "set_rng_state": torch.set_rng_state,
        "current_stream": torch.cpu.current_stream,
        "stream": torch.cpu.stream,
        "Stream": torch.cpu.Stream,
    }
    for name, function in functions.items():
        setattr(module, name, function)
    return module


_MODULE = _device_module()


@PlatformRegistry.register(platform=NAME)
class PlatformCPU(PlatformBase):
    """torch on the CPU with gloo; Ray needs no resource for it but CPUs."""

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> types.ModuleType:
        return _MODULE

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return True

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "CPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> Any:
        return None
