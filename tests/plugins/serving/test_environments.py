"""What is found in other environments, and in a model's folder, without importing anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from threespo_bench.errors import DataError, UsageError
from threespo_plugins.serving.environments import interpreter, versions
from threespo_plugins.serving.models import vocabulary_size


def test_versions() -> None:
    assert versions(None, ["pytest", "no-such-distribution"]) == {"pytest": pytest.__version__, "no-such-distribution": None}
    assert interpreter(None) == sys.executable


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no program") as caught:
        versions(str(tmp_path / "nothing"), ["pytest"], fix="make one")
    assert caught.value.fix == "make one"


@pytest.mark.parametrize("answer", ["", "[]", "{}", '"pytest"'])
def test_a_program_that_answers_otherwise(tmp_path: Path, answer: str) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\necho '{answer}'\n")
    program.chmod(0o755)
    with pytest.raises(UsageError, match="is no Python interpreter that works"):
        versions(str(program), ["pytest"])


@pytest.mark.parametrize("config", ['{"vocab_size": 7}', '{"vocab_size": 8, "text_config": {"vocab_size": 7}}'])
def test_size_of_a_vocabulary(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    assert vocabulary_size(tmp_path) == 7


@pytest.mark.parametrize(("config", "message"), [("{}", "has no vocab_size"), ("{", "cannot be read")])
def test_a_folder_that_does_not_say_it(tmp_path: Path, config: str, message: str) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(DataError, match=message):
        vocabulary_size(tmp_path)
