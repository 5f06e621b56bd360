"""The GPUs of this machine, as ``nvidia-smi`` lists them, and the environment variables that give a process one of them.

A MIG slice is a GPU of its own to CUDA, but a process can use only one, addresses it by its UUID, and NCCL can neither copy directly between slices nor through
shared memory. Scripts ask in a shell:

    python -m threespo_bench.devices layout              7 x MIG 1g.10gb
    python -m threespo_bench.devices exports --expect 1g.10gb     export CUDA_VISIBLE_DEVICES=...
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from threespo_bench.errors import BenchError, EngineError

VISIBLE = "CUDA_VISIBLE_DEVICES"
NO_PEERS = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
_SECONDS = 30
_GPU = re.compile(r"GPU (\d+): (.+?) \(UUID: (GPU-[\w-]+)\)")
_SLICE = re.compile(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[\w/-]+)\)")


@dataclass(frozen=True)
class Device:
    """A GPU that a process can use: a whole one, or a MIG slice.

    Attributes:
        uuid: how CUDA addresses it. name: of the GPU, or the profile of the slice, e.g. ``1g.10gb``.
        gpu: number of the GPU that it is, or is a part of. mig: it is a slice.
    """

    uuid: str
    name: str
    gpu: int
    mig: bool = False

    def __str__(self) -> str:
        return f"MIG {self.name}" if self.mig else self.name


def detect() -> list[Device]:
    """The devices of this machine; none without ``nvidia-smi``.

    Raises:
        EngineError: there is an ``nvidia-smi``, but it fails, e.g. because driver and library do not fit together.
    """
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, errors="replace", timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"nvidia-smi does not answer: {error}", fix="the driver hangs; ask whoever runs the machine") from error
    said = " ".join((done.stdout + done.stderr).split())
    if "No devices were found" in said:
        return []
    if done.returncode != 0:
        raise EngineError(
            f"nvidia-smi failed with code {done.returncode}: {said[:300] or 'it said nothing'}", fix="mend the driver; nvidia-smi -L must list the GPUs"
        )
    return parse(done.stdout)


def parse(listing: str) -> list[Device]:
    """The devices in the output of ``nvidia-smi -L``: the slices of GPUs that have some, and the GPUs that have none."""
    whole: dict[int, Device] = {}
    slices: list[Device] = []
    number = 0
    for line in listing.splitlines():
        gpu, part = _GPU.match(line), _SLICE.match(line)
        if gpu:
            number = int(gpu[1])
            whole[number] = Device(gpu[3], gpu[2], number)
        elif part:
            slices.append(Device(part[2], part[1], number, mig=True))
    cut = {part.gpu for part in slices}
    return sorted([*slices, *(gpu for gpu in whole.values() if gpu.gpu not in cut)], key=lambda device: device.gpu)


def visible(devices: Sequence[Device], environment: Mapping[str, str] | None = None) -> list[Device]:
    """Those of the devices that CUDA_VISIBLE_DEVICES leaves visible, in its order; all of them if it is not set.

    Numbers count whole GPUs. Everything from the first entry that names no device on is invisible, as CUDA has it.
    """
    said = (os.environ if environment is None else environment).get(VISIBLE)
    if said is None:
        return list(devices)
    found: list[Device] = []
    for entry in (part.strip() for part in said.split(",")):
        here = [device for device in devices if _named(device, entry)]
        if not here:
            break
        found += here[:1]
    return found


def _named(device: Device, entry: str) -> bool:
    if entry.isdigit():
        return device.gpu == int(entry)
    return len(entry) > 4 and device.uuid.startswith(entry)


def layout(devices: Sequence[Device]) -> str:
    """The devices in words: ``8 x NVIDIA A100-SXM4-40GB``, ``7 x MIG 1g.10gb``, ``no GPU``."""
    return ", ".join(f"{count} x {name}" for name, count in Counter(map(str, devices)).items()) or "no GPU"


def check_layout(devices: Sequence[Device], expect: str = "") -> None:
    """Refuse devices that are not all alike, or not what is expected.

    Args:
        expect: a MIG profile (``1g.10gb``), or ``full`` for GPUs that are not cut.

    Raises:
        EngineError: one line that says what is there.
    """
    kinds = {device.name if device.mig else "full" for device in devices}
    if expect and kinds != {expect}:
        wanted = "whole GPUs" if expect == "full" else f"MIG slices of {expect}"
        raise EngineError(f"{wanted} are expected, but this machine has {layout(devices)}", fix="choose other nodes, or change the MIG layout")
    if len(kinds) > 1:
        raise EngineError(f"mixed GPUs: this machine has {layout(devices)}", fix="give all of them the same MIG layout, or choose some by CUDA_VISIBLE_DEVICES")


def environment_for(devices: Sequence[Device]) -> dict[str, str]:
    """The variables of a process that shall use these devices; none for no device."""
    if not devices:
        return {}
    return {VISIBLE: ",".join(device.uuid for device in devices)} | (NO_PEERS if any(device.mig for device in devices) else {})


def one_each(devices: Sequence[Device], place: int) -> dict[str, str]:
    """The variables of the ``place``-th of several processes, among which the devices are handed round."""
    return environment_for([devices[place % len(devices)]]) if devices else {}


def main(arguments: Sequence[str] | None = None) -> int:
    """What scripts ask; an error is one line and code 5."""
    parser = argparse.ArgumentParser(prog="python -m threespo_bench.devices", description="The GPUs of this machine.")
    parser.add_argument("question", choices=("layout", "exports", "count"))
    parser.add_argument("--expect", default="", metavar="PROFILE", help="a MIG profile, or full: anything else is an error")
    asked: Any = parser.parse_args(arguments)
    try:
        devices = visible(detect())
        check_layout(devices, asked.expect)
    except BenchError as error:
        print(f"error: {os.uname().nodename}: {error} ({error.fix})", file=sys.stderr)
        return error.exit_code
    if asked.question == "layout":
        print(layout(devices))
    elif asked.question == "count":
        print(len(devices))
    else:
        for name, value in environment_for(devices).items():
            print(f"export {name}={shlex.quote(value)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
