"""Where the real vLLM is, if it is anywhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.plugins.embedded.conftest import write_model


@pytest.fixture(scope="session")
def vllm_python() -> str:
    """The interpreter of an environment that has vLLM."""
    python = os.environ.get("THREESPO_VLLM_PYTHON")
    if not python:
        pytest.skip("THREESPO_VLLM_PYTHON is not set: scripts/vllm_env.sh DIR makes an environment, then it is DIR/bin/python")
    return python


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen2 with tied embeddings and heads of 32."""
    return write_model(tmp_path_factory.mktemp("vllm") / "model", "qwen2")
