"""A server of our own that ends while weights are published, for each plugin."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from threespo_bench.contracts.rollout import ServedModel, ServerGone, Weights
from threespo_bench.errors import EngineError, StorageError
from threespo_plugins.serving.http import JsonClient
from threespo_plugins.serving.process import free_port
from threespo_plugins.serving.remote import OwnServer, ServerProcess
from threespo_plugins.serving.weights import WeightsFolder
from threespo_plugins.sglang_rollout.config import SglangConfig
from threespo_plugins.sglang_rollout.remote import OwnServer as SglangServer
from threespo_plugins.vllm_rollout.config import VllmConfig
from threespo_plugins.vllm_rollout.remote import OwnServer as VllmServer


class OneTensor(Weights):
    """A publication in the middle of which the guard may remove the folder."""

    def __init__(self, removed: Path | None = None) -> None:
        self._removed = removed

    def tensors(self) -> Iterator[tuple[str, Any]]:
        yield "model.embed_tokens.weight", torch.zeros(2, 2)
        if self._removed is not None:
            shutil.rmtree(self._removed)

    def write(self, folder: Path) -> None:
        raise NotImplementedError


@pytest.fixture(params=["vllm", "sglang"])
def ended(request: pytest.FixtureRequest, tmp_path: Path) -> OwnServer:
    """A server that has ended since it was started."""
    (tmp_path / "config.json").write_text('{"model_type": "qwen2", "vocab_size": 2}')
    served = ServedModel(tmp_path, "float32", "cpu", 64, (1,), 0)
    server = VllmServer(VllmConfig(python="python"), served) if request.param == "vllm" else SglangServer(SglangConfig(python="python"), served)
    server._client = JsonClient(f"http://127.0.0.1:{free_port()}")
    server._folder = WeightsFolder(tmp_path / "weights")
    return server


def test_a_folder_that_the_guard_has_removed(ended: OwnServer) -> None:
    ended._folder.close()
    with pytest.raises(ServerGone, match="has ended, and its folder for weights with it"):
        ended.publish(OneTensor(), 1)


def test_a_folder_that_the_guard_removes_in_the_middle(ended: OwnServer) -> None:
    with pytest.raises(ServerGone, match="has ended, and its folder for weights with it"):
        ended.publish(OneTensor(ended._folder.path), 1)


def test_a_server_that_ends_before_it_is_told(ended: OwnServer) -> None:
    with pytest.raises(ServerGone, match="does not answer"):
        ended.publish(OneTensor(), 1)
    assert not any(ended._folder.path.iterdir()), "weights were left behind"


def test_weights_that_cannot_be_written_while_the_server_is_well(ended: OwnServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JsonClient, "answers", lambda *_: True)
    ended._folder.close()
    with pytest.raises(StorageError, match="weights cannot be written to") as caught:
        ended.publish(OneTensor(), 1)
    assert "rollout.weights_folder" in caught.value.fix


@pytest.mark.parametrize(("ending", "kept"), [(KeyboardInterrupt, 0), (EngineError("it took too long"), 1)], ids=["Ctrl-C", "failure"])
def test_what_a_server_said_while_it_started_is_kept_if_it_failed(
    ended: OwnServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: BaseException, kept: int
) -> None:
    def wait(*_: object) -> None:
        raise ending

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "logs"))
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(ServerProcess, "wait", wait)
    monkeypatch.setattr(type(ended), "_command", lambda *_: ["sleep", "60"])
    ended.config.weights_folder = str(tmp_path / "weights")
    ended._folder.close()
    with pytest.raises(type(ending) if kept else ending):
        ended.start()
    ended.close()
    assert len(list((tmp_path / "logs").iterdir())) == kept
    assert not any((tmp_path / "weights").iterdir())
