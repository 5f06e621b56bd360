"""A server that fails in the middle: what the plugin says, and what the learner finds."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.plugins.sglang.conftest import TEXTS, check_mixed_temperatures, engine, write_interpreter
from tests.plugins.sglang.contract_server import ContractServer
from threespo_bench.contracts.engine import Sampling
from threespo_bench.contracts.objective import Optimization, PolicyGradient
from threespo_bench.contracts.rollout import Rollout, ServedModel, ServerGone
from threespo_bench.errors import EngineError
from threespo_bench.testing.engines import credit_of, generate, turns_of
from threespo_plugins.serving.weights import StoredWeights
from threespo_plugins.sglang_rollout.config import SglangConfig
from threespo_plugins.sglang_rollout.remote import OwnServer, RunningServer
from threespo_plugins.sglang_rollout.rollout import SglangRollout

Play = Callable[..., ContractServer]


@pytest.fixture
def server(play: Play) -> ContractServer:
    return play()


@pytest.fixture
def rollout(server: ContractServer, model: Path, tmp_path: Path) -> Iterator[RunningServer]:
    rollout = RunningServer(SglangConfig(url=server.url, weights_folder=str(tmp_path / "weights")), ServedModel(model, "float32", "cpu", 1024, (1,), 0))
    rollout.start()
    yield rollout
    rollout.close()
    assert not any((tmp_path / "weights").glob("*")), "weights were left behind"


def ask(rollout: RunningServer | OwnServer, length: int = 6) -> Any:
    return asyncio.run(rollout.complete(np.array([3, 4], np.int32), 2**63 - 1, 0.5, length))


def test_a_request(rollout: RunningServer, server: ContractServer) -> None:
    answer = ask(rollout)
    assert answer.version == 0 and answer.token_ids.dtype == np.int32 and answer.log_probs.dtype == np.float32
    path, payload = server.calls[-1]
    assert path == "/generate" and payload["input_ids"] == [3, 4] and payload["return_logprob"] is True and len(payload["rid"]) == 32
    expected = {"sampling_seed": 2**63 - 1, "temperature": 0.5, "max_new_tokens": 6, "stop_token_ids": [1], "top_p": 1.0, "top_k": -1, "ignore_eos": False}
    assert expected.items() <= payload["sampling_params"].items()


def test_a_seed_among_requests_of_temperature_0(rollout: RunningServer) -> None:
    asyncio.run(check_mixed_temperatures(rollout))


def test_a_publication_in_order(rollout: RunningServer, server: ContractServer, model: Path) -> None:
    server.calls.clear()
    rollout.publish(StoredWeights(model), 4)
    paths = [path for path, _ in server.calls]
    assert paths == ["/pause_generation", "/update_weight_version", "/update_weights_from_disk", "/flush_cache?timeout=60", "/continue_generation"]
    assert server.calls[1][1]["new_version"].endswith(":none") and server.engine.label.endswith(":4")
    assert server.calls[2][1]["flush_cache"] is False
    assert ask(rollout).version == 4


@pytest.mark.parametrize("fault", ["refuses", "refuses_with_200", "fails:/update_weights_from_disk", "does_not_flush", "fails:/flush_cache"])
def test_a_publication_that_fails_leaves_no_version_and_a_server_that_answers(rollout: RunningServer, server: ContractServer, model: Path, fault: str) -> None:
    server.setup.faults.add(fault)
    with pytest.raises(EngineError, match=r"does not like them\. Rolling back|it broke|did not drop") as caught:
        rollout.publish(StoredWeights(model), 1)
    assert not isinstance(caught.value, ServerGone) and "\n" not in str(caught.value)
    assert server.calls[-1][0] == "/continue_generation" and not server.engine.paused
    with pytest.raises(EngineError, match="stale weights"):
        ask(rollout)


def test_weights_of_another_model_are_refused(rollout: RunningServer, model: Path, tmp_path: Path) -> None:
    from tests.plugins.embedded.conftest import write_model

    other = write_model(tmp_path / "other", "qwen2", vocabulary=380)
    with pytest.raises(EngineError, match="the tensors are of another model"):
        rollout.publish(StoredWeights(other), 1)
    rollout.publish(StoredWeights(model), 2)
    assert ask(rollout).version == 2


def test_weights_that_another_program_put_there(rollout: RunningServer, server: ContractServer) -> None:
    server.engine.label = "default"
    with pytest.raises(EngineError, match="weights labelled default, not from published ones"):
        ask(rollout)


def test_a_stop_token_of_the_servers_own(play: Play, model: Path) -> None:
    rollout = RunningServer(SglangConfig(url=play().url), ServedModel(model, "float32", "cpu", 1024, (7,), 0))
    rollout.start()

    async def until_one_ends() -> None:
        await asyncio.gather(*(rollout.complete(np.array([3], np.int32), seed, 100.0, 100) for seed in range(32)))

    with pytest.raises(EngineError, match=r"at token 1, which is none of the run's stop tokens \(7,\)"):
        asyncio.run(until_one_ends())
    rollout.close()


def test_a_response_that_is_cut(rollout: RunningServer, server: ContractServer, model: Path) -> None:
    server.setup.context = 12
    endless = RunningServer(rollout.config, ServedModel(model, "float32", "cpu", 1024, (), 0))
    endless._labels = rollout._labels
    server.engine.model.config["eos_token_id"] = -1
    with pytest.raises(EngineError, match="cut a response after 8 of 9 tokens"):
        ask(endless, 9)
    assert len(ask(endless, 8).token_ids) == 8
    endless.close()


def test_a_cancelled_request_is_freed_at_once(rollout: RunningServer, server: ContractServer, model: Path) -> None:
    server.engine.model.config["eos_token_id"] = -1
    endless = RunningServer(rollout.config, ServedModel(model, "float32", "cpu", 1024, (), 0))
    endless._labels = rollout._labels

    async def cancel() -> None:
        tasks = [asyncio.ensure_future(endless.complete(np.array([6, 7], np.int32), seed, 1.0, 900)) for seed in range(8)]
        while len(server.engine.running) < 8:
            await asyncio.sleep(0.01)
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks[1:], return_exceptions=True)
        while len(server.engine.running) > 1:
            await asyncio.sleep(0.01)
        assert not tasks[0].done(), "the responses were too short for this test"
        tasks[0].cancel()
        await asyncio.gather(tasks[0], return_exceptions=True)

    asyncio.run(asyncio.wait_for(cancel(), 60))
    assert sorted({path for path, _ in server.calls[-8:]}) == ["/abort_request"]
    endless.close()


def test_a_server_that_closes_a_connection_in_the_middle(rollout: RunningServer, server: ContractServer) -> None:
    server.setup.faults.add("die")
    with pytest.raises(ServerGone, match="does not answer"):
        ask(rollout)


def test_a_server_that_hangs(server: ContractServer, model: Path) -> None:
    rollout = RunningServer(SglangConfig(url=server.url, request_seconds=1.0), ServedModel(model, "float32", "cpu", 1024, (1,), 0))
    rollout.start()
    server.setup.faults.add("hang")
    with pytest.raises(ServerGone, match="did not answer /generate within 1 s"):
        ask(rollout)
    rollout.close()


def test_an_engine_that_died_is_told_from_a_request_that_failed(rollout: RunningServer, server: ContractServer) -> None:
    server.setup.faults.add("fails:/generate")
    with pytest.raises(EngineError, match="it broke") as caught:
        ask(rollout)
    assert not isinstance(caught.value, ServerGone)
    server.setup.faults.add("unhealthy")
    with pytest.raises(ServerGone, match="engine died"):
        ask(rollout)


def test_a_server_that_came_back_gets_the_published_weights(rollout: RunningServer, server: ContractServer, model: Path) -> None:
    server.engine.label = "default"
    rollout.restart(StoredWeights(model), 5)
    assert ask(rollout).version == 5


@pytest.mark.parametrize("fault", ["forgets", "tempered"])
def test_the_learner_finds_a_server_that_says_what_is_not_so(play: Play, model: Path, fault: str) -> None:
    """``forgets``: the new version is reported, the old weights sample."""
    server = play()
    one = engine(model, Rollout("sglang", SglangConfig(url=server.url), SglangRollout))
    step = (PolicyGradient(), Optimization(learning_rate=3e-3, weight_decay=0.0))
    sampling = Sampling(temperature=0.5, max_new_tokens=8)
    try:
        turns = turns_of(generate(one, TEXTS, sampling=sampling))
        if fault == "tempered":
            server.setup.faults.add(fault)
            turns = turns_of(generate(one, TEXTS, sampling=sampling))
            with pytest.raises(EngineError, match="log-probabilities are not the learner's"):
                one.learner.update(turns, credit_of(turns), *step)
            return
        one.learner.update(turns, credit_of(turns), *step)
        server.setup.faults.add(fault)
        version = one.publish()
        answers = generate(one, TEXTS, sampling=sampling)
        assert {answer.policy_version for answer in answers} == {version}
        turns = turns_of(answers)
        with pytest.raises(EngineError, match="stale weights: the sampler names the newest policy version"):
            one.learner.verify(turns)
        with pytest.raises(EngineError, match="stale weights: the sampler names the newest policy version"):
            one.learner.update(turns, credit_of(turns), *step)
    finally:
        one.close()


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks for processes in /proc")
def test_processes_of_a_server_of_our_own(python: str, model: Path, tmp_path: Path) -> None:
    config = SglangConfig(python=python, startup_seconds=120, log=str(tmp_path / "log"), weights_folder=str(tmp_path / "weights"))
    rollout = OwnServer(config, ServedModel(model, "float32", "cpu", 1024, (1,), 0))
    rollout.start()
    processes = rollout.processes
    assert processes and ask(rollout).version == 0 and "listening" in (tmp_path / "log").read_text()
    rollout.close()
    rollout.close()
    assert not any(os.path.exists(f"/proc/{process}") for process in processes)
    assert not any((tmp_path / "weights").glob("*")), "weights were left behind"


def test_a_server_that_dies_in_the_middle_again_and_again_fails_the_run(model: Path, tmp_path: Path) -> None:
    python = write_interpreter(tmp_path / "dies", "export CONTRACT_SERVER_FAULTS=die", sglang="0.5.23", threespo_sglang_placeholder="1")
    one = engine(model, Rollout("sglang", SglangConfig(python=python, startup_seconds=120, log=str(tmp_path / "log")), SglangRollout))
    started = time.monotonic()
    try:
        with pytest.raises(EngineError, match="was started 3 times and is gone again"):
            generate(one, TEXTS[:1], sampling=Sampling(temperature=1.0, max_new_tokens=30))
    finally:
        one.close()
    assert time.monotonic() - started < 120


def test_a_server_that_does_not_come_up(model: Path, tmp_path: Path) -> None:
    code = "export CONTRACT_SERVER_START='no kernel for this device'"
    python = write_interpreter(tmp_path / "down", code, sglang="0.5.23", threespo_sglang_placeholder="1")
    rollout = SglangRollout(SglangConfig(python=python, log=str(tmp_path / "log")), ServedModel(model, "float32", "cpu", 1024, (1,), 0))
    with pytest.raises(EngineError, match="SGLang ended while it started: RuntimeError: no kernel for this device"):
        rollout.start()
    rollout.close()
