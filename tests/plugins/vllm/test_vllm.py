"""The real vLLM: a server that is started, one that runs already, and in process. Where it is, THREESPO_VLLM_PYTHON says."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.plugins.embedded.conftest import write_model
from tests.plugins.serving.real import check_weights_of_another_program, kill
from threespo_bench.contracts.rollout import Rollout, ServedModel, ServerGone
from threespo_bench.errors import EngineError
from threespo_bench.testing import check_rollout_server
from threespo_plugins.embedded.config import EmbeddedConfig
from threespo_plugins.embedded.engine import EmbeddedEngine
from threespo_plugins.serving.weights import StoredWeights
from threespo_plugins.vllm_rollout.config import VllmConfig
from threespo_plugins.vllm_rollout.remote import OwnServer, RunningServer
from threespo_plugins.vllm_rollout.rollout import VllmRollout

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
TEXTS = ("w1", "w2 w3 w4 w5 w6", "w7 w8 w9 w10 w11 w12 w13 w14", "w1", "w20 w21 w22 w23 w24 w25 w26 w27 w28 w29 w30")


def engine(model: Path, rollout: Rollout) -> EmbeddedEngine:
    rollout.target.check(rollout.options, model)
    return EmbeddedEngine(EmbeddedConfig(), str(model), 0, rollout)


@pytest.fixture(scope="module")
def served(vllm_python: str, model: Path) -> ServedModel:
    return ServedModel(model, "float32", "cpu", 1024, (1,), 0)


@pytest.fixture(scope="module")
def running(vllm_python: str, served: ServedModel) -> Iterator[OwnServer]:
    """One server for the tests that need no crash."""
    server = OwnServer(VllmConfig(python=vllm_python, startup_seconds=1800), served)
    server.start()
    yield server
    server.close()


def test_a_server_that_is_started_keeps_the_contract(vllm_python: str, model: Path) -> None:
    rollout = Rollout("vllm", VllmConfig(python=vllm_python, startup_seconds=1800), VllmRollout)
    check_rollout_server(lambda rollout: engine(model, rollout), rollout, TEXTS, crash=kill)


def test_a_server_that_runs_already_keeps_the_contract(running: OwnServer, model: Path) -> None:
    rollout = Rollout("vllm", VllmConfig(url=running._client.url), VllmRollout)
    check_rollout_server(lambda rollout: engine(model, rollout), rollout, TEXTS)


def test_an_engine_with_vllm_keeps_the_contract(running: OwnServer, model: Path) -> None:
    """Engines take turns at the server, whose weights are those of the newest: so this one shows what a run does, checkpoints apart."""
    from threespo_bench.testing.engines import _check_answers, _check_declarations, _check_scores, _check_seeds, _check_update, generate

    one = engine(model, Rollout("vllm", VllmConfig(url=running._client.url), VllmRollout))
    answers = generate(one, TEXTS)
    _check_declarations(one)
    _check_answers(one, answers, TEXTS)
    _check_scores(one, answers, 1e-4)
    _check_seeds(one, TEXTS, 1e-4)
    _check_update(one, answers, TEXTS, 1e-4)
    one.close()


def test_a_prompt_as_long_as_the_context(running: OwnServer) -> None:
    """Read in pieces, it would end the server."""
    running.publish(StoredWeights(running.model.folder), 0)

    async def ask() -> list[int]:
        prompts = [np.full(1023, 6 + i, np.int32) for i in range(24)]  # more together than one step of the server takes
        return [len(answer.token_ids) for answer in await asyncio.gather(*(running.complete(prompt, i, 1.0, 1) for i, prompt in enumerate(prompts)))]

    assert asyncio.run(ask()) == [1] * 24


def test_a_cancelled_request_is_freed(running: OwnServer) -> None:
    running.publish(StoredWeights(running.model.folder), 0)
    endless = RunningServer(VllmConfig(url=running._client.url), ServedModel(running.model.folder, "float32", "cpu", 1024, (), 0))
    endless._name, endless._labels = running._name, running._labels

    async def cancel() -> None:
        tasks = [asyncio.ensure_future(endless.complete(np.array([6, 7], np.int32), seed, 1.0, 1000)) for seed in range(32)]
        await until(lambda: held(running) == 32)  # given up, and asked again
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() for task in tasks), "the responses were too short for this test"
        await asyncio.sleep(1)
        assert held(running) == 0

    asyncio.run(cancel())
    endless.close()


async def until(true) -> None:
    deadline = time.monotonic() + 60
    while not await asyncio.to_thread(true):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def held(server: OwnServer) -> int:
    """Requests that the server works on; it gives them up."""
    return server._client.request_now("POST", "/abort_requests", {}).body["aborted"]


def test_a_server_with_weights_of_another_program_is_refused(running: OwnServer) -> None:
    check_weights_of_another_program(running, RunningServer(VllmConfig(url=running._client.url), running.model))


def test_another_model_is_refused(running: OwnServer, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "other", "qwen2", vocabulary=380)
    with pytest.raises(EngineError, match="whose vocabulary is not of 380 tokens"):
        VllmRollout.check(VllmConfig(url=running._client.url), folder)


def test_an_engine_that_dies_behind_its_web_server(vllm_python: str, served: ServedModel) -> None:
    """The web server then waits for its connections to close and answers nothing: neither requests nor a publication may wait for it."""
    endless = ServedModel(served.folder, "float32", "cpu", 1024, (), 0)
    server = OwnServer(VllmConfig(python=vllm_python, startup_seconds=1800), endless)
    server.start()

    async def ask() -> list[BaseException]:
        requests = [asyncio.ensure_future(server.complete(np.array([6, 7], np.int32), seed, 1.0, 1000)) for seed in range(8)]
        await asyncio.sleep(1)
        kill_engine(server)
        return await asyncio.gather(*requests, return_exceptions=True)

    try:
        assert {type(error) for error in asyncio.run(asyncio.wait_for(ask(), 300))} == {ServerGone}
        server.restart(StoredWeights(served.folder), 1)
        kill_engine(server)
        with pytest.raises(ServerGone):
            server.publish(StoredWeights(served.folder), 2)
    finally:
        server.close()


def kill_engine(server: OwnServer) -> None:
    engines = [process for process in server.processes if b"EngineCore" in Path(f"/proc/{process}/cmdline").read_bytes()]
    assert engines
    for process in engines:
        os.kill(process, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_a_run(vllm_python: str, tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "threespo_bench", "run", "--algo", "grpo", "--out", str(tmp_path / "runs"), "rollout=vllm", "tracker=none"]
    options = [f"rollout.python={vllm_python}", f"rollout.log={tmp_path / 'log'}", f"rollout.weights_folder={tmp_path / 'weights'}"]
    run = subprocess.Popen([*command, *options, "rollout.startup_seconds=1800"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 1800
        while "Application startup complete" not in ((tmp_path / "log").read_text() if (tmp_path / "log").exists() else ""):
            assert run.poll() is None and time.monotonic() < deadline
            time.sleep(0.5)
        from threespo_plugins.serving.guard import descendants

        family = descendants(run.pid)
        assert len(family) >= 3  # the guard, the server, and its engine
        run.send_signal(number)
        if number == signal.SIGINT:
            time.sleep(1)  # two at once may arrive as one
            run.send_signal(number)  # the second stops at once
        run.wait(600)
        while any(os.path.exists(f"/proc/{process}") for process in family):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert not any((tmp_path / "weights").glob("*")), "weights were left behind"
    finally:
        run.kill()
        run.wait()


def test_in_process(vllm_python: str, model: Path) -> None:
    """In the other environment, which needs this project for it."""
    if subprocess.run([vllm_python, "-c", "import threespo_bench, hydra"], capture_output=True, check=False).returncode:
        pytest.skip("the environment of THREESPO_VLLM_PYTHON has no threespo-bench: scripts/vllm_env.sh DIR inprocess")
    code = (
        "import sys; from pathlib import Path; import tests.plugins.vllm.test_vllm as t; model = Path(sys.argv[1]);"
        "rollout = t.Rollout('vllm', t.VllmConfig(), t.VllmRollout);"
        "t.check_rollout_server(lambda rollout: t.engine(model, rollout), rollout, t.TEXTS)"
    )
    done = subprocess.run([vllm_python, "-c", code, str(model)], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr[-2000:]
