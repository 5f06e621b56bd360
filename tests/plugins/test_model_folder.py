"""What is wrong with a model's folder is found without loading anything."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from threespo_bench.cli.app import run_cli
from threespo_bench.errors import DataError
from threespo_plugins.model_folder import check_adapter, check_model_folder, check_tokenizer, check_weights, read_config, vocabulary_size
from threespo_plugins.models import household_tiny, webshop_tiny


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


def index(file: Path, text: str) -> None:
    file.unlink()
    (file.parent / "model.safetensors.index.json").write_text(text)


def test_whole_weights(tmp_path: Path) -> None:
    tensors(tmp_path)
    check_weights(tmp_path)
    (tmp_path / "consolidated.safetensors").write_bytes(b"half")  # nobody loads it
    check_weights(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00002-of-00002.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "model-00002-of-00002.safetensors"}}))
    check_weights(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    (tmp_path / "pytorch_model.bin").touch()
    check_weights(tmp_path)  # nothing is known of it before it is read
    (tmp_path / "pytorch_model.bin").rename(tmp_path / "pytorch_model-00001-of-00002.bin")
    names = {"weight_map": {"v": "pytorch_model-00001-of-00002.bin", "w": "pytorch_model-00002-of-00002.bin"}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(names))
    with pytest.raises(DataError, match=r"pytorch_model.bin.index.json names pytorch_model-00002-of-00002.bin, which is not there"):
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
        (lambda file: index(file, '{"weight_map": {"w": "other.safetensors"}}'), "names other.safetensors, which is not"),
        (lambda file: index(file, "[]"), "index.json cannot be read"),
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


@pytest.mark.parametrize("vocabulary", [{"a": 0, "b": 7}, [["a", 0.0]] * 8], ids=["by name", "in order"])
def test_every_token_has_a_row_in_the_embedding(tmp_path: Path, vocabulary: object) -> None:
    def write(rows: int, added: tuple[int, ...] = ()) -> None:
        (tmp_path / "config.json").write_text(json.dumps({"vocab_size": rows}))
        tokens = [{"id": number, "content": f"<{number}>"} for number in added]
        (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": tokens}))

    write(8)
    check_tokenizer(tmp_path)
    write(7)
    with pytest.raises(DataError, match="has the token 7, but the model embeds 7 tokens"):
        check_tokenizer(tmp_path)
    write(9, added=(8, 9))
    with pytest.raises(DataError, match="has the token 9"):
        check_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0, "b": None}}}))
    check_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match=r"tokenizer.json cannot be read"):
        check_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(DataError, match="has no tokenizer"):
        check_tokenizer(tmp_path)


@pytest.mark.parametrize("folder", [household_tiny.path(), webshop_tiny.path()], ids=["household-tiny", "webshop-tiny"])
def test_the_packaged_models_are_whole(folder: Path) -> None:
    check_model_folder(folder)


def test_nothing_heavy_is_imported() -> None:
    program = "import sys, threespo_plugins.model_folder; print(sorted({'torch', 'transformers', 'safetensors'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: edit(folder / "config.json", vocab_size=400), "has the token 496, but the model embeds 400 tokens"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"half"), "model.safetensors is damaged"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"this is a text and no tensors"), "model.safetensors is damaged"),
        (lambda folder: cut(folder / "model.safetensors"), "model.safetensors is damaged"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer"),
        (lambda folder: shutil.rmtree(folder), "does not exist"),
    ],
    ids=["tokenizer", "weights", "text", "cut", "no tokenizer", "nothing"],
)
def test_a_run_is_refused_in_one_line_before_it_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: object, message: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(household_tiny.path(), folder)
    damage(folder)
    command = ["run", "--algo", "grpo", "--out", str(tmp_path / "runs"), f"model.path={folder}"]
    assert run_cli(command) == DataError.exit_code
    error, fix = capsys.readouterr().err.strip().splitlines()
    assert message in error and fix.strip().startswith("fix: ")
    assert run_cli([*command, "--dry-run"]) == DataError.exit_code
    printed = capsys.readouterr()
    assert "name: grpo" in printed.out, "the plan is shown all the same"
    assert error.removeprefix("error: ") in printed.err.splitlines()[-2] and printed.err.splitlines()[-2].startswith("error: cannot run here: ")
    assert not (tmp_path / "runs").exists()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def edit(file: Path, **fields: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
