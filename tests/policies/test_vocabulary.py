"""Whether a model with one token a word knows the words of an environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from threespo_bench.config.compose import compose
from threespo_bench.contracts.environment import Environment
from threespo_bench.host import PluginHost
from threespo_bench.policies.source import registered_model
from threespo_bench.vocabulary import unknown_words


@pytest.fixture(scope="module")
def host() -> PluginHost:
    return PluginHost.discover()


def warning(host: PluginHost, model: Path, env: str, *overrides: str) -> str:
    config = compose("grpo", env, overrides, host)
    environment: Environment = host.find("environments", env).load()(config.env.options)
    return unknown_words(model, environment, environment.tasks(config.evaluation.split)[0], 30)


@pytest.mark.parametrize(("model", "env", "other"), [("household_tiny", "household", "webshop"), ("webshop_tiny", "webshop", "household")])
def test_the_packaged_models(host: PluginHost, model: str, env: str, other: str) -> None:
    folder = Path(registered_model(model, host))
    assert warning(host, folder, env) == ""
    assert "words of a prompt are unknown to it" in warning(host, folder, other)
    assert "env.template" in warning(host, folder, env, "env.template=verl_agent")


def write(folder: Path, **tokenizer: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def test_tokenizers(host: PluginHost, tmp_path: Path) -> None:
    words = {"model": {"type": "WordLevel", "vocab": {"hello": 0}}}
    assert "(new, cabinet, 3 ...)" in warning(host, write(tmp_path / "words", **words), "household")
    pieces = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}, "added_tokens": [{"id": 3, "content": "hello"}]}
    assert warning(host, write(tmp_path / "pieces", **pieces), "household") == ""
    assert warning(host, write(tmp_path / "strange", model=[]), "household") == ""
    (tmp_path / "strange" / "tokenizer.json").write_text("{")
    assert warning(host, tmp_path / "strange", "household") == ""
    assert warning(host, tmp_path / "gone", "household") == ""
