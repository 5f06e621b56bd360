"""The plugin keeps the contract of a rollout server against a server that speaks SGLang's protocol, in both of its generations."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.plugins.sglang.conftest import TEXTS, engine
from tests.plugins.sglang.contract_server import ContractServer
from threespo_bench.contracts.rollout import Rollout
from threespo_bench.errors import EngineError
from threespo_bench.testing import check_rollout_server
from threespo_plugins.sglang_rollout.config import SglangConfig
from threespo_plugins.sglang_rollout.rollout import SglangRollout

Play = Callable[..., ContractServer]


def keep_contract(model: Path, config: SglangConfig, target: type[SglangRollout] = SglangRollout, **options: object) -> None:
    check_rollout_server(lambda rollout: engine(model, rollout), Rollout("sglang", config, target), TEXTS, **options)


@pytest.mark.parametrize("version", ["0.5.12", "0.5.23"])
def test_a_server_that_runs_already(play: Play, model: Path, version: str) -> None:
    server = play(version=version)
    keep_contract(model, SglangConfig(url=server.url))
    assert not server.engine.running and not server.engine.paused


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks for processes in /proc")
def test_a_server_that_is_started_and_killed(python: str, model: Path, tmp_path: Path) -> None:
    def kill(server: SglangRollout) -> None:
        os.kill(server.processes[0], signal.SIGKILL)
        time.sleep(0.2)

    config = SglangConfig(python=python, startup_seconds=120, weights_folder=str(tmp_path / "weights"), log=str(tmp_path / "log"))
    keep_contract(model, config, crash=kill)
    assert not any((tmp_path / "weights").glob("*")), "weights were left behind"


FAULTS = {
    "forgets": "after a publication .* differ from the learner's",
    "stale": "from a cache of older weights",
    "tempered": "at temperature 0.5 the server's log-probabilities differ",
    "refuses": "it does not like them",
    "refuses_with_200": "it does not like them",
    "keeps_label": "reports weights .*:none after version 1 was published",
    "does_not_flush": "did not drop what it cached",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_shows_itself_later_is_caught(play: Play, model: Path, fault: str) -> None:
    server = play()

    class Later(SglangRollout):
        def start(self) -> None:
            super().start()
            server.setup.faults.add(fault)

    with pytest.raises((AssertionError, EngineError), match=FAULTS[fault]):
        keep_contract(model, SglangConfig(url=server.url), Later)
