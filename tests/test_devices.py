"""What is made of the real outputs of nvidia-smi."""

from __future__ import annotations

import subprocess
import sys

import pytest

from threespo_bench.devices import check_layout, detect, environment_for, layout, main, one_each, parse, visible
from threespo_bench.errors import EngineError

FULL = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-e91edf3b-b297-37c1-a2a7-7601c3238fa2)
"""
MIG = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f)
  MIG 1g.5gb      Device  0: (UUID: MIG-c7384736-a75d-5afc-978f-d2f1294409fd)
  MIG 1g.5gb      Device  1: (UUID: MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-e91edf3b-b297-37c1-a2a7-7601c3238fa2)
  MIG 1g.5gb      Device  0: (UUID: MIG-41b3359c-e721-56e5-8009-12e5797ed514)
"""
OLD_MIG = """\
GPU 0: A100-SXM4-40GB (UUID: GPU-e91edf3b-b297-37c1-a2a7-7601c3238fa2)
  MIG 3g.20gb Device 0: (UUID: MIG-GPU-e91edf3b-b297-37c1-a2a7-7601c3238fa2/1/0)
"""
MIXED = FULL + "  MIG 3g.20gb     Device  0: (UUID: MIG-41b3359c-e721-56e5-8009-12e5797ed514)\n"
UNEQUAL = MIG + "  MIG 3g.20gb     Device  1: (UUID: MIG-65b79fff-6d3c-5490-a288-b31ec705f310)\n"
NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.\n"
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.104\n"


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """An nvidia-smi on the PATH that prints a text and ends with a code."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def make(text: str, code: int = 0):
        (tmp_path / "output").write_text(text)
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f'#!/bin/sh\n[ "$1" = -L ] || exit 2\ncat {tmp_path}/output\nexit {code}\n')
        tool.chmod(0o755)

    return make


def test_without_the_tool_there_is_no_gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert detect() == []
    assert layout([]) == "no GPU"
    assert environment_for([]) == {} == one_each([], 3)


def test_no_device(smi):
    smi("No devices were found\n", 6)
    assert detect() == []


def test_whole_gpus(smi):
    smi(FULL)
    devices = detect()
    assert [device.gpu for device in devices] == [0, 1]
    assert layout(devices) == "2 x NVIDIA A100-SXM4-40GB"
    assert [one_each(devices, place) for place in range(3)] == [
        {"CUDA_VISIBLE_DEVICES": "GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f"},
        {"CUDA_VISIBLE_DEVICES": "GPU-e91edf3b-b297-37c1-a2a7-7601c3238fa2"},
        {"CUDA_VISIBLE_DEVICES": "GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f"},
    ]


def test_slices(smi):
    smi(MIG)
    devices = detect()
    assert layout(devices) == "3 x MIG 1g.5gb"
    assert one_each(devices, 2) == {"CUDA_VISIBLE_DEVICES": "MIG-41b3359c-e721-56e5-8009-12e5797ed514", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
    check_layout(devices, "1g.5gb")


def test_slices_of_older_drivers():
    (device,) = parse(OLD_MIG)
    assert (device.uuid, device.name, device.mig) == ("MIG-GPU-e91edf3b-b297-37c1-a2a7-7601c3238fa2/1/0", "3g.20gb", True)


@pytest.mark.parametrize(
    ("variable", "indices"),
    [
        (None, [0, 1, 2]),
        ("MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d", [1]),
        ("MIG-41b3,MIG-c738", [2, 0]),
        ("1", [2]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("MIG-c738,7,MIG-a28a", [0]),
    ],
)
def test_what_is_visible(variable, indices):
    devices = parse(MIG)
    environment = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    assert visible(devices, environment) == [devices[index] for index in indices]


@pytest.mark.parametrize(
    ("listing", "expect", "words"),
    [
        (MIXED, "", "mixed GPUs: this machine has 1 x NVIDIA A100-SXM4-40GB, 1 x MIG 3g.20gb"),
        (UNEQUAL, "", "mixed GPUs: this machine has 3 x MIG 1g.5gb, 1 x MIG 3g.20gb"),
        (FULL, "1g.5gb", "MIG slices of 1g.5gb are expected, but this machine has 2 x NVIDIA A100-SXM4-40GB"),
        (MIG, "full", "whole GPUs are expected, but this machine has 3 x MIG 1g.5gb"),
        ("", "full", "whole GPUs are expected, but this machine has no GPU"),
    ],
)
def test_a_wrong_layout_is_one_line(listing, expect, words):
    with pytest.raises(EngineError) as refused:
        check_layout(parse(listing), expect)
    assert str(refused.value) == words


@pytest.mark.parametrize(("said", "code", "words"), [(NO_DRIVER, 9, "couldn't communicate"), (MISMATCH, 18, "version mismatch"), ("", 255, "nothing")])
def test_a_broken_driver_is_one_line(smi, said, code, words):
    smi(said, code)
    with pytest.raises(EngineError, match=f"nvidia-smi failed with code {code}") as refused:
        detect()
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_what_scripts_get(smi, capsys):
    smi(MIG)
    assert main(["exports", "--expect", "1g.5gb"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("export CUDA_VISIBLE_DEVICES=MIG-c7384736-a75d-5afc-978f-d2f1294409fd,MIG-a28ad590")
    assert lines[1:] == ["export NCCL_P2P_DISABLE=1", "export NCCL_SHM_DISABLE=1"]
    assert main(["count"]) == 0 and capsys.readouterr().out == "3\n"
    assert main(["layout", "--expect", "full"]) == 5
    assert "error: " in capsys.readouterr().err


def test_it_is_a_command(smi):
    smi(FULL)
    done = subprocess.run([sys.executable, "-m", "threespo_bench.devices", "layout"], capture_output=True, text=True)
    assert done.stdout == "2 x NVIDIA A100-SXM4-40GB\n", done.stderr
