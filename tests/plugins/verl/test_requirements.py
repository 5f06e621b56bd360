"""What is refused before anything heavy starts. None of it needs verl."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from threespo_bench.contracts.rollout import OwnSampling, Rollout, RolloutOptions, RolloutServer
from threespo_bench.errors import BenchError, DataError, EngineError, UsageError
from threespo_plugins.ray_cluster import check_ray_cluster
from threespo_plugins.verl_engine import requirements
from threespo_plugins.verl_engine.config import VERSION, VerlConfig
from threespo_plugins.verl_engine.engine import VerlEngine

pytestmark = pytest.mark.without_verl
HF = Rollout("hf", RolloutOptions(), OwnSampling)
VLLM = Rollout("vllm", RolloutOptions(), RolloutServer)
GPU = VerlConfig(device="cuda")


@pytest.fixture
def there(monkeypatch):
    """Everything is installed, on a machine with four GPUs."""
    monkeypatch.setattr(requirements, "version", lambda _: VERSION)
    monkeypatch.setattr(requirements, "find_spec", lambda _: object())
    monkeypatch.setattr(requirements, "_gpus", lambda: 4)
    monkeypatch.setattr(requirements, "check_ray_cluster", lambda *_: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.fixture
def folder(tmp_path):
    fields = {"architectures": ["Qwen2ForCausalLM"], "num_attention_heads": 14, "num_key_value_heads": 2, "hidden_size": 896}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    (tmp_path / "model.safetensors").write_bytes(bytes([2, *[0] * 7]) + b"{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def refused(config, folder, rollout=HF, kind=BenchError):
    with pytest.raises(kind) as found:
        VerlEngine.check(config, folder, rollout)
    assert "\n" not in str(found.value) and found.value.fix
    return str(found.value)


def test_a_fitting_choice_passes(there, folder):
    VerlEngine.check(VerlConfig(), folder, HF)
    VerlEngine.check(replace(GPU, ranks=4, tensor_parallel=2), folder, VLLM)
    assert VerlEngine.works_with(HF) and VerlEngine.works_with(VLLM)
    assert not VerlEngine.works_with(Rollout("carrier_pigeon", RolloutOptions(), RolloutServer))


def test_packages(there, folder, monkeypatch):
    def absent(name):
        raise requirements.PackageNotFoundError(name)

    monkeypatch.setattr(requirements, "find_spec", lambda name: None if name == "ray" else object())
    assert "needs ray" in refused(VerlConfig(), folder, kind=EngineError)
    monkeypatch.setattr(requirements, "find_spec", lambda name: None if name == "verl" else object())
    assert "needs verl, which is not installed" in refused(VerlConfig(), folder, kind=EngineError)
    monkeypatch.setattr(requirements, "find_spec", lambda name: None if name == "vllm" else object())
    assert "needs vllm" in refused(GPU, folder, VLLM, EngineError)
    monkeypatch.setattr(requirements, "find_spec", lambda name: None if name == "cupy" else object())
    apart = replace(GPU, ranks=2, rollout_ranks=2)
    assert "engine.weight_transfer=nccl needs cupy" in refused(apart, folder, kind=EngineError)
    VerlEngine.check(replace(apart, weight_transfer="gloo"), folder, HF)
    monkeypatch.setattr(requirements, "version", lambda _: "0.8.0")
    assert f"written for verl {VERSION}, and 0.8.0 is installed" in refused(VerlConfig(), folder, kind=EngineError)
    monkeypatch.setattr(requirements, "version", lambda _: None)
    assert "and one without a version is installed" in refused(VerlConfig(), folder, kind=EngineError)
    monkeypatch.setattr(requirements, "version", absent)
    assert "verl, which is not installed" in refused(VerlConfig(), folder, kind=EngineError)


def test_a_clone_of_verl_beside_the_one_that_is_installed(there, folder, tmp_path, monkeypatch):
    clone = tmp_path / "clone" / "verl"
    monkeypatch.setattr(requirements, "find_spec", lambda name: SimpleNamespace(submodule_search_locations=[str(clone)] if name == "verl" else None))
    assert f"an unknown one is imported, from {clone}" in refused(VerlConfig(), folder, kind=EngineError)
    (clone / "version").mkdir(parents=True)
    (clone / "version" / "version").write_text("0.10.0.dev\n")
    assert f"0.10.0.dev is imported, from {clone}" in refused(VerlConfig(), folder, kind=EngineError)
    (clone / "version" / "version").write_text(f"{VERSION}\n")
    VerlEngine.check(VerlConfig(), folder, HF)


def test_a_cluster_that_the_environment_names(there, folder, monkeypatch):
    """Ray would join it, although the options say that one is started."""
    monkeypatch.setenv("RAY_ADDRESS", "host:6379")
    assert "RAY_ADDRESS=host:6379 names a Ray cluster" in refused(VerlConfig(), folder, kind=EngineError)
    with monkeypatch.context() as real:
        real.setenv("RAY_ADDRESS", "127.0.0.1:1")
        real.setattr(requirements, "check_ray_cluster", check_ray_cluster)
        assert "cannot join the Ray cluster auto, which is RAY_ADDRESS=127.0.0.1:1" in refused(VerlConfig(ray_address="auto"), folder, kind=EngineError)
    VerlEngine.check(VerlConfig(ray_address="auto"), folder, HF)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    VerlEngine.check(VerlConfig(), folder, HF)  # a task of that cluster


def test_several_nodes_need_a_cluster(there, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    assert "engine.nodes=2 needs a Ray cluster" in refused(replace(GPU, nodes=2), folder, kind=EngineError)
    VerlEngine.check(replace(GPU, nodes=2, ray_address="auto"), folder, HF)


@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "local", "head", "head:", "http://head:8265"])
def test_what_is_no_address_of_a_cluster(there, folder, address):
    assert "must be HOST:PORT of the cluster, auto, or null" in refused(VerlConfig(ray_address=address), folder, kind=UsageError)


def test_a_cluster_is_tried_before_ray_is_imported(there, folder, monkeypatch):
    tried = []
    monkeypatch.setattr(requirements, "check_ray_cluster", lambda *told: tried.append(told))
    VerlEngine.check(VerlConfig(), folder, HF)
    assert not tried
    VerlEngine.check(VerlConfig(ray_address="head:6379"), folder, HF)
    assert tried == [("head:6379", requirements.START_CLUSTER)]


def test_gpus_are_those_that_nvidia_smi_lists(tmp_path, monkeypatch):
    listing = "GPU 0: NVIDIA A100 (UUID: GPU-1)\n" + "".join(f"  MIG 1g.10gb     Device  {i}: (UUID: MIG-{i}{i}{i})\n" for i in range(7))
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{listing}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert requirements._gpus() == 7
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-222,MIG-333")
    assert requirements._gpus() == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert requirements._gpus() == 0


def test_weights_are_looked_at_before_ray_starts(there, folder):
    (folder / "model.safetensors").write_bytes(b"half")
    assert "model.safetensors is damaged" in refused(VerlConfig(), folder, kind=DataError)
    (folder / "config.json").write_text("[]")
    assert "is no JSON object" in refused(VerlConfig(), folder, kind=DataError)


def test_devices(there, folder, monkeypatch):
    assert "on GPUs only" in refused(VerlConfig(), folder, VLLM, UsageError)
    assert "needs 8 GPUs, and this machine has 4" in refused(replace(GPU, ranks=8), folder, kind=EngineError)
    apart = replace(GPU, ranks=2, rollout_ranks=6)
    assert "engine.ranks=2 and engine.rollout_ranks=6 need 8 GPUs, and this machine has 4" in refused(apart, folder, kind=EngineError)
    VerlEngine.check(replace(apart, rollout_ranks=2), folder, HF)
    VerlEngine.check(replace(GPU, ranks=8, nodes=2, ray_address="auto"), folder, HF)  # the cluster is asked, once it was joined
    monkeypatch.setattr(requirements, "_gpus", lambda: 0)
    assert "no CUDA device" in refused(GPU, folder, kind=EngineError)


def test_models(there, folder):
    assert "does not divide the model's 14 attention heads" in refused(replace(GPU, ranks=3, tensor_parallel=3), folder, VLLM, UsageError)
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(fields | {"hidden_size": 14 * 36}))
    assert "36 dimensions" in refused(GPU, folder, VLLM, UsageError)
    VerlEngine.check(GPU, folder, HF)
    (folder / "config.json").write_text(json.dumps(fields | {"architectures": ["A", "B"]}))
    assert "must name one architecture" in refused(VerlConfig(), folder, kind=DataError)
    (folder / "config.json").write_text("{")
    assert "cannot be read" in refused(VerlConfig(), folder, kind=DataError)


def test_more_processes_than_the_cores_can_carry(there, folder, monkeypatch):
    monkeypatch.setattr(requirements.os, "cpu_count", lambda: 2)
    VerlEngine.check(VerlConfig(ranks=2, rollout_ranks=6), folder, HF)
    assert "engine.ranks=2 and engine.rollout_ranks=7 ask for 9 processes" in refused(VerlConfig(ranks=2, rollout_ranks=7), folder, kind=EngineError)
    assert "this machine has 2 cores" in refused(VerlConfig(ranks=100), folder, kind=EngineError)
    VerlEngine.check(VerlConfig(ranks=100, ray_address="auto"), folder, HF)


def test_the_tokenizer_is_looked_at_before_ray_starts(there, folder):
    (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | {"vocab_size": 7}))
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0, "b": 7}}}))
    assert "has the token 7, but the model embeds 7 tokens" in refused(VerlConfig(), folder, kind=DataError)


def test_a_server_that_verl_starts_is_not_started_elsewhere(there, folder):
    class Elsewhere(RolloutOptions):
        url = "http://localhost:8000"

    assert "rollout.url is given" in refused(GPU, folder, Rollout("vllm", Elsewhere(), RolloutServer), UsageError)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("device", "tpu"), ("ranks", 0), ("nodes", 0), ("rollout_ranks", -1), ("weight_transfer", "post"), ("weight_transfer", "nccl"),
        ("dtype", "float16"), ("dtype", "bfloat16"), ("attention", "fast"), ("attention", "flash_attention_2"),
        ("offload", "some"), ("offload", "all"), ("micro_batch_tokens", 0), ("lora_rank", -1), ("lora_targets", []), ("max_context", 1), ("threads", 0),
        ("max_batch", 0), ("tensor_parallel", 2), ("verify_log_probs", 0.0), ("max_staleness", -1), ("start_seconds", 0.0),
    ],
)  # fmt: skip
def test_options_out_of_range_are_named(key, value):
    with pytest.raises(UsageError, match=f"engine.{key}="):
        VerlConfig(**{key: value}).validate()


def test_tensor_parallel_divides_the_ranks_of_the_servers():
    VerlConfig(device="cuda", ranks=3, rollout_ranks=4, tensor_parallel=2).validate()
    with pytest.raises(UsageError, match="a divisor of rollout_ranks, 5"):
        VerlConfig(device="cuda", ranks=2, rollout_ranks=5, tensor_parallel=2).validate()
    with pytest.raises(UsageError, match="a divisor of ranks x nodes, 6"):
        VerlConfig(device="cuda", ranks=3, nodes=2, tensor_parallel=4).validate()
