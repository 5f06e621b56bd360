"""What is refused before anything starts, in one line; without SGLang."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.plugins.sglang.conftest import write_interpreter
from tests.plugins.sglang.contract_server import ContractServer
from threespo_bench.contracts.rollout import ServedModel
from threespo_bench.errors import EngineError, UsageError
from threespo_plugins.serving.process import free_port
from threespo_plugins.sglang_rollout import arguments, compatibility
from threespo_plugins.sglang_rollout.config import SglangConfig
from threespo_plugins.sglang_rollout.rollout import SglangRollout
from threespo_plugins.sglang_rollout.setup import check_server

Play = Callable[..., ContractServer]


@pytest.mark.parametrize(
    ("option", "value"),
    [("kv_cache_tokens", 0), ("gpu_memory_utilization", 1.5), ("max_num_seqs", 0), ("startup_seconds", 0.0), ("request_seconds", -1.0)],
)
def test_options_out_of_range(option: str, value: float) -> None:
    with pytest.raises(UsageError, match=rf"rollout\.{option}={value} is out of range"):
        SglangConfig(**{option: value}).validate()


def test_options_that_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="both given"):
        SglangConfig(url="http://localhost:30000", python="python").validate()
    with pytest.raises(UsageError, match=r"rollout\.url=localhost"):
        SglangConfig(url="localhost").validate()
    SglangConfig().validate()


@pytest.mark.parametrize(
    ("versions", "message"),
    [({}, "there is no SGLang in that of rollout.python"), ({"sglang": "0.5.2"}, "SGLang 0.5.2 .* is too old: 0.5.12 is needed")],
)
def test_environments_that_will_not_do(tmp_path: Path, versions: dict[str, str], message: str) -> None:
    with pytest.raises(EngineError, match=message) as caught:
        SglangRollout.check(SglangConfig(python=write_interpreter(tmp_path, **versions)), tmp_path)
    assert "threespo-bench[sglang]" in caught.value.fix and "\n" not in str(caught.value)


def test_a_good_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compatibility, "has_gpu", lambda: True)
    for version in ("0.5.12", "0.5.23"):
        SglangRollout.check(SglangConfig(python=write_interpreter(tmp_path, sglang=version)), tmp_path)


def test_programs_that_are_no_interpreters(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no program"):
        SglangRollout.check(SglangConfig(python=str(tmp_path / "nothing")), tmp_path)
    with pytest.raises(UsageError, match="is no Python interpreter that works"):
        SglangRollout.check(SglangConfig(python="/bin/false"), tmp_path)


def test_without_sglang_here(tmp_path: Path) -> None:
    if compatibility.find() is not None:
        pytest.skip("SGLang is installed here")
    with pytest.raises(EngineError, match="there is no SGLang in this environment"):
        SglangRollout.check(SglangConfig(), tmp_path)


def test_a_cpu_outside_of_tests(tmp_path: Path) -> None:
    python = write_interpreter(tmp_path, sglang="0.5.23")
    compatibility.check_device("cuda", python)
    with pytest.raises(EngineError, match="cannot repeat a response on the CPU"):
        compatibility.check_device("cpu", python)


def test_a_machine_without_a_gpu_is_known_before_torch_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compatibility, "has_gpu", lambda: False)
    with pytest.raises(EngineError, match="cannot repeat a response on the CPU") as caught:
        SglangRollout.check(SglangConfig(python=write_interpreter(tmp_path, sglang="0.5.23")), tmp_path)
    assert "rollout=hf" in caught.value.fix
    SglangRollout.check(SglangConfig(python=write_interpreter(tmp_path, sglang="0.5.23", threespo_sglang_placeholder="1")), tmp_path)


def test_signs_of_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compatibility, "_DRIVERS", (str(tmp_path / "nvidiactl"),))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not compatibility.has_gpu()
    (tmp_path / "nvidiactl").touch()
    assert compatibility.has_gpu()
    (tmp_path / "nvidiactl").rename(tmp_path / "nvidia-smi")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert compatibility.has_gpu()


def test_a_server_that_is_not_there(model: Path) -> None:
    with pytest.raises(EngineError, match="cannot be reached") as caught:
        SglangRollout.check(SglangConfig(url=f"http://127.0.0.1:{free_port()}"), model)
    assert "SGLANG_RETURN_ORIGINAL_LOGPROB=1" in caught.value.fix and "--enable-deterministic-inference" in caught.value.fix


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"version": "0.4.9", "faults": {"old"}}, "SGLang 0.4.9 .* is too old: 0.5.12 is needed"),
        ({"deterministic": False}, "ignores the seeds of requests"),
        ({"original": False}, "gives log-probabilities after temperature"),
        ({"context": 1024}, "has a context of 1024 tokens, the run needs 1032"),
        ({"faults": {"fails:/generate"}}, "does not take tokens as it should: .* it broke"),
    ],
)
def test_servers_that_will_not_do(play: Play, model: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(EngineError, match=message) as caught:
        check_server(SglangConfig(url=play(**options).url), model, 1024)
    assert "\n" not in str(caught.value)


def test_a_server_that_a_killed_run_left_paused(play: Play, model: Path) -> None:
    server = play()
    server.engine.pause("abort")
    check_server(SglangConfig(url=server.url), model)
    assert not server.engine.paused


@pytest.mark.parametrize("size", [399, 401])
def test_another_model(play: Play, model: Path, size: int) -> None:
    server = play()
    check_server(SglangConfig(url=server.url), model)
    server.engine.vocabulary = size
    with pytest.raises(EngineError, match="whose vocabulary is not of 400 tokens"):
        SglangRollout.check(SglangConfig(url=server.url), model)


def served(device: str = "cpu", **changes: object) -> ServedModel:
    return ServedModel(**{"folder": Path("/m"), "dtype": "float32", "device": device, "max_context": 512, "stop_ids": (1, 2), "seed": 2**40 + 3} | changes)


def test_options_on_the_cpu() -> None:
    text = " ".join(arguments.server_options(SglangConfig(prefix_caching=False, kv_cache_tokens=100), served()))
    for expected in ("--model-path /m", "--dtype float32", "--context-length 520", "--disable-radix-cache", "--random-seed 3", "--max-total-tokens 528"):
        assert expected in text
    assert "--enable-deterministic-inference" in text and "--attention-backend torch_native" in text and "mem-fraction" not in text
    variables = arguments.environment(served(threads=2))
    assert variables["SGLANG_RETURN_ORIGINAL_LOGPROB"] == "1" and variables["OMP_NUM_THREADS"] == "2" and variables["SGLANG_USE_CPU_ENGINE"] == "1"


def test_options_on_a_gpu() -> None:
    text = " ".join(arguments.server_options(SglangConfig(eager=False, attention_backend="fa3"), served("cuda", max_context=2**31)))
    assert "--mem-fraction-static 0.4" in text and "--attention-backend fa3" in text and "--enable-deterministic-inference" in text
    assert not any(word in text for word in ("context-length", "max-total-tokens", "disable"))
    assert "--disable-cuda-graph" in arguments.server_options(SglangConfig(), served("cuda"))
    assert not arguments.environment(served("cuda")).keys() & {"TORCHDYNAMO_DISABLE", "OMP_NUM_THREADS", "SGLANG_USE_CPU_ENGINE"}


def test_importing_the_rollout_imports_neither_sglang_nor_torch() -> None:
    code = "import sys, threespo_plugins.sglang_rollout.rollout as r; sys.exit(bool({'sglang', 'torch', 'transformers'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
