"""GPUs of this machine are handed round among the processes; the rest of the launcher is shown by tests/experiment."""

from __future__ import annotations

import time

import pytest

from tests.experiment.test_experiment import planned
from tests.test_devices import FULL, MIG, MISMATCH
from threespo_bench.experiment import execute
from threespo_bench.outcome import Outcome
from threespo_plugins.launchers import local


@pytest.fixture
def environments(monkeypatch):
    """What each process would have got."""
    given = []

    class FakeWorker:
        def __init__(self, job, host, environment=None):
            given.append(environment)

        def wait(self, progress):
            time.sleep(0.3)  # so that both places are taken
            return Outcome(None, "finished")

        def close(self):
            pass

    monkeypatch.setattr(local, "Worker", FakeWorker)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return given


def carry_out(tmp_path, host, say=lambda text: None):
    return execute(planned(tmp_path, host, "counting", seeds=[0, 1, 2]), host, jobs=2, say=say)


def test_whole_gpus(tmp_path, host, fake_tool, environments):
    (tmp_path / "listing").write_text(FULL)
    fake_tool("nvidia-smi", f"cat {tmp_path / 'listing'}")
    carry_out(tmp_path, host)
    first, second = "GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f", "GPU-e91edf3b-b297-37c1-a2a7-7601c3238fa2"
    used = [environment["CUDA_VISIBLE_DEVICES"] for environment in environments]
    assert set(used[:2]) == {first, second} and used[2] in (first, second)
    assert all(set(environment) == {"CUDA_VISIBLE_DEVICES"} for environment in environments)


def test_slices(tmp_path, host, fake_tool, environments, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-41b3359c-e721-56e5-8009-12e5797ed514")
    (tmp_path / "listing").write_text(MIG)
    fake_tool("nvidia-smi", f"cat {tmp_path / 'listing'}")
    carry_out(tmp_path, host)
    assert environments == [{"CUDA_VISIBLE_DEVICES": "MIG-41b3359c-e721-56e5-8009-12e5797ed514", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}] * 3


@pytest.mark.parametrize(("listing", "code"), [("", 0), (FULL.splitlines()[0], 0)])
def test_nothing_to_hand_round(tmp_path, host, fake_tool, environments, listing, code):
    fake_tool("nvidia-smi", f"echo '{listing}'; exit {code}")
    carry_out(tmp_path, host)
    assert environments == [{}] * 3


def test_a_broken_driver_does_not_stop_runs_on_the_cpu(tmp_path, host, fake_tool, environments):
    lines = []
    fake_tool("nvidia-smi", f"echo '{MISMATCH.splitlines()[0]}'; exit 18")
    carry_out(tmp_path, host, say=lines.append)
    assert environments == [{}] * 3
    assert any("GPUs are not handed round: nvidia-smi failed with code 18: Failed to initialize NVML" in line for line in lines)
