"""The real SGLang: server, routes, scheduler, prefix cache and sampler, on the CPU in a configuration for tests (scripts/sglang_env.sh).

Where it is, THREESPO_SGLANG_PYTHON says.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.plugins.embedded.conftest import write_model
from tests.plugins.serving.real import check_weights_of_another_program, kill
from tests.plugins.sglang.conftest import TEXTS, check_mixed_temperatures, engine
from threespo_bench.contracts.rollout import Rollout, ServedModel
from threespo_bench.errors import EngineError
from threespo_bench.testing import check_rollout_server
from threespo_plugins.serving.weights import StoredWeights
from threespo_plugins.sglang_rollout.config import SglangConfig
from threespo_plugins.sglang_rollout.remote import OwnServer, RunningServer
from threespo_plugins.sglang_rollout.rollout import SglangRollout

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def real() -> str:
    """The interpreter of an environment that has SGLang."""
    python = os.environ.get("THREESPO_SGLANG_PYTHON")
    if not python:
        pytest.skip("THREESPO_SGLANG_PYTHON is not set: scripts/sglang_env.sh DIR makes an environment for tests, then it is DIR/bin/python")
    return python


@pytest.fixture(scope="module")
def running(real: str, model: Path) -> Iterator[OwnServer]:
    """One server for the tests that need no crash."""
    server = OwnServer(SglangConfig(python=real, startup_seconds=1800), ServedModel(model, "float32", "cpu", 1024, (1,), 0))
    server.start()
    yield server
    server.close()


def test_a_server_that_is_started_keeps_the_contract(real: str, model: Path) -> None:
    rollout = Rollout("sglang", SglangConfig(python=real, startup_seconds=1800), SglangRollout)
    check_rollout_server(lambda rollout: engine(model, rollout), rollout, TEXTS, crash=kill)


def test_a_server_that_runs_already_keeps_the_contract(running: OwnServer, model: Path) -> None:
    rollout = Rollout("sglang", SglangConfig(url=running._client.url), SglangRollout)
    check_rollout_server(lambda rollout: engine(model, rollout), rollout, TEXTS)


def test_a_prompt_as_long_as_the_context(running: OwnServer) -> None:
    running.publish(StoredWeights(running.model.folder), 0)
    answer = asyncio.run(running.complete(np.full(1023, 6, np.int32), 0, 1.0, 1))
    assert len(answer.token_ids) == 1


def test_a_seed_among_requests_of_temperature_0(running: OwnServer) -> None:
    running.publish(StoredWeights(running.model.folder), 0)
    asyncio.run(check_mixed_temperatures(running))


def test_a_server_with_weights_of_another_program_is_refused(running: OwnServer) -> None:
    check_weights_of_another_program(running, RunningServer(SglangConfig(url=running._client.url), running.model))


def test_another_model_is_refused(running: OwnServer, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "other", "qwen2", vocabulary=380)
    with pytest.raises(EngineError, match="whose vocabulary is not of 380 tokens"):
        SglangRollout.check(SglangConfig(url=running._client.url), folder)


def test_a_folder_without_weights_is_refused_by_the_server(running: OwnServer, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"Failed to get weights iterator|Failed to update weights"):
        running._load(tmp_path, 9)
    running.publish(StoredWeights(running.model.folder), 10)
    assert asyncio.run(running.complete(np.array([6, 7], np.int32), 0, 1.0, 4)).version == 10
