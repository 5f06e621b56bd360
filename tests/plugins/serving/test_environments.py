"""What is found in other environments, and in a model's folder, without importing anything."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from threespo_bench.errors import DataError, UsageError
from threespo_plugins.serving import environments
from threespo_plugins.serving.environments import interpreter, versions
from threespo_plugins.serving.models import check_adapter, check_weights, read_config, vocabulary_size


def test_versions() -> None:
    assert versions(None, ["pytest", "no-such-distribution"]) == {"pytest": pytest.__version__, "no-such-distribution": None}
    assert interpreter(None) == sys.executable


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no program") as caught:
        versions(str(tmp_path / "nothing"), ["pytest"], fix="make one")
    assert caught.value.fix == "make one"


def test_a_folder_instead_of_its_interpreter(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no program"):
        interpreter(str(tmp_path))
    (tmp_path / "bin").mkdir()
    inside = write(tmp_path / "bin" / "python", "")
    with pytest.raises(UsageError, match="is a folder, not the interpreter in it") as caught:
        interpreter(str(tmp_path))
    assert caught.value.fix == f"rollout.python={inside}"


def write(program: Path, script: str, shell: str = "/bin/sh") -> str:
    program.write_text(f"#!{shell}\n{script}\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("", "it said nothing and ended with 0"),
        ("echo '[]'", "it said '[]' and ended with 0"),
        ("echo '{}'", "it said '{}' and ended with 0"),
        ("echo '\"pytest\"'", "and ended with 0"),
        ("printf 'line 1\\nModuleNotFoundError: json\\n' >&2; exit 3", "it said 'ModuleNotFoundError: json' and ended with 3"),
    ],
)
def test_a_program_that_answers_otherwise(tmp_path: Path, script: str, reason: str) -> None:
    with pytest.raises(UsageError, match="is no Python interpreter that works") as caught:
        versions(write(tmp_path / "python", script), ["pytest"], fix="make one")
    assert str(caught.value).endswith(reason) and "\n" not in str(caught.value) and caught.value.fix == "make one"


def test_a_program_that_cannot_be_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file or directory") as caught:
        versions(write(tmp_path / "python", "", str(tmp_path / "nothing")), ["pytest"], fix="make one")
    assert caught.value.fix == "make one"


def test_a_program_that_hangs_is_ended_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "_SECONDS", 0.5)
    program = write(tmp_path / "python", f"sleep 300 &\necho $! > {tmp_path}/child; wait")
    with pytest.raises(UsageError, match=r"it did not answer within 0\.5 s$"):
        versions(program, ["pytest"])
    child = (tmp_path / "child").read_text().strip()
    state = subprocess.run(["ps", "-o", "stat=", "-p", child], capture_output=True, text=True, check=False).stdout.strip()
    assert state in ("", "Z"), "it goes on"


def test_another_environment_is_asked_without_pythonpath(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server is started without it too."""
    metadata = tmp_path / "somewhere-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: somewhere\nVersion: 1.0\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    other = write(tmp_path / "python", f'exec {sys.executable} "$@"')
    assert versions(None, ["somewhere"]) == {"somewhere": "1.0"}
    assert versions(other, ["somewhere"]) == {"somewhere": None}


@pytest.mark.parametrize("config", ['{"vocab_size": 7}', '{"vocab_size": 8, "text_config": {"vocab_size": 7}}'])
def test_size_of_a_vocabulary(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    assert vocabulary_size(tmp_path) == 7


@pytest.mark.parametrize(("config", "message"), [("{}", "has no vocab_size"), ("{", "cannot be read"), ("[]", "is no JSON object")])
def test_a_folder_that_does_not_say_it(tmp_path: Path, config: str, message: str) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(DataError, match=message):
        vocabulary_size(tmp_path)


def test_folders_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        read_config(tmp_path / "nothing")
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(DataError, match="holds an adapter, not a model") as caught:
        read_config(tmp_path)
    assert f"threespo-bench merge {tmp_path}" in caught.value.fix


def tensors(folder: Path, name: str = "model.safetensors") -> Path:
    """A file of 16 bytes of tensors."""
    header = json.dumps({"__metadata__": {"format": "pt"}, "w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    (folder / name).write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    return folder / name


def test_whole_weights(tmp_path: Path) -> None:
    tensors(tmp_path)
    check_weights(tmp_path)
    tensors(tmp_path, "model-00002-of-00002.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "model-00002-of-00002.safetensors"}}))
    check_weights(tmp_path)


def test_the_check_of_weights_reads_what_the_library_writes(tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    save_file({"a": np.zeros((3, 5), np.float32), "b": np.zeros(0, np.float32)}, tmp_path / "model.safetensors")
    check_weights(tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.unlink(), "has no weights"),
        (lambda file: file.write_bytes(b""), "is damaged: it is no safetensors file, or only its beginning"),
        (lambda file: file.write_bytes(b"this is no such file"), "is damaged: it is no safetensors file, or only its beginning"),
        (lambda file: file.write_bytes(bytes([2, *[0] * 7]) + b"[]"), "is damaged: its header cannot be read"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), r"is damaged: it has (\d+) bytes, and its header says"),
        (
            lambda file: (file.parent / "model.safetensors.index.json").write_text('{"weight_map": {"w": "other.safetensors"}}'),
            "names other.safetensors, which is not",
        ),
        (lambda file: (file.parent / "model.safetensors.index.json").write_text("[]"), "index.json cannot be read"),
    ],
    ids=["none", "empty", "other", "header", "cut", "shard", "index"],
)
def test_damaged_weights(tmp_path: Path, damage: object, message: str) -> None:
    damage(tensors(tmp_path))
    with pytest.raises(DataError, match=message) as caught:
        check_weights(tmp_path)
    assert caught.value.fix and "\n" not in str(caught.value)


def test_weights_of_an_adapter(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no weights"):
        check_adapter(tmp_path)
    file = tensors(tmp_path, "adapter_model.safetensors")
    check_adapter(tmp_path)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match="is damaged: it has"):
        check_adapter(tmp_path)
