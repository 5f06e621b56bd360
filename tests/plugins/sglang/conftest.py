"""A tiny model, and servers that play SGLang with it: in a thread, or in a process that is started as SGLang would be."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.plugins.embedded.conftest import write_model
from tests.plugins.sglang.contract_server import ContractServer, serve
from tests.plugins.sglang.engine import Setup
from threespo_bench.contracts.rollout import Rollout, RolloutServer
from threespo_plugins.embedded.config import EmbeddedConfig
from threespo_plugins.embedded.engine import EmbeddedEngine

ROOT = Path(__file__).parents[3]
TEXTS = ("w1", "w2 w3 w4 w5 w6", "w7 w8 w9 w10 w11 w12 w13 w14", "w1", "w20 w21 w22 w23 w24 w25 w26 w27 w28 w29 w30")


def engine(model: Path, rollout: Rollout) -> EmbeddedEngine:
    """One that generates by ``rollout``, checked as a run checks it."""
    rollout.target.check(rollout.options, model)
    return EmbeddedEngine(EmbeddedConfig(), str(model), 0, rollout)


async def check_mixed_temperatures(server: RolloutServer) -> None:
    """A response depends neither on the temperatures of the others of its batch nor, at temperature 0, on its seed."""

    async def ask(requests: list[tuple[int, float]]) -> list[list[int]]:
        answers = await asyncio.gather(*(server.complete(np.array([6, 7, 8], np.int32), seed, temperature, 24) for seed, temperature in requests))
        return [answer.token_ids.tolist() for answer in answers]

    alone = [*await ask([(0, 1.0)]), *await ask([(1, 0.5)]), *await ask([(2, 0.0)])]
    mixed = await ask([(0, 1.0), (1, 0.5), (2, 0.0), *((seed, 0.0) for seed in range(8))])
    assert mixed[:3] == alone and mixed[3:] == [alone[2]] * 8


def write_interpreter(folder: Path, code: str = "", **versions: str) -> str:
    """A program that answers like the interpreter of an environment with these distributions, and starts the contract server for SGLang's module."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "python"
    found = json.dumps({"sglang": None, "threespo-sglang-placeholder": None} | {name.replace("_", "-"): version for name, version in versions.items()})
    start = f'cd {ROOT} && exec {sys.executable} -m tests.plugins.sglang.contract_server "$@"'
    program.write_text(f"#!/bin/sh\nif [ \"$1\" = -c ]; then echo '{found}'; exit; fi\nshift 2\n{code}\n{start}\n")
    program.chmod(0o755)
    return str(program)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen2 with tied embeddings."""
    return write_model(tmp_path_factory.mktemp("sglang") / "model", "qwen2")


@pytest.fixture
def play(model: Path) -> Iterator[Callable[..., ContractServer]]:
    """Starts a contract server in a thread; keyword arguments are those of :class:`Setup`."""
    running = []

    def start(**options: object) -> ContractServer:
        running.append(serve(Setup(**{"folder": model, "context": 1032} | options)))
        return running[-1][0]

    yield start
    for server, thread in running:
        server.engine.broken.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def python(tmp_path: Path) -> str:
    """What ``rollout.python`` is given: an environment in which SGLang seems to be installed."""
    return write_interpreter(tmp_path / "environment", sglang="0.5.23", threespo_sglang_placeholder="1")
