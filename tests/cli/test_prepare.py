"""``prepare``: the placeholder files load with pandas, and with verl's own data set where verl is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from threespo_bench.cli.app import run_cli

_WITH_VERL = """\
import sys
from omegaconf import OmegaConf
from transformers import AutoTokenizer
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn
files, model, cache = sys.argv[1:3], sys.argv[3], sys.argv[4]
tokenizer = AutoTokenizer.from_pretrained(model)
options = {"cache_dir": cache, "max_prompt_length": 64, "filter_overlong_prompts": True, "filter_overlong_prompts_workers": 1}
config = OmegaConf.create(options)
sets = [RLHFDataset(file, tokenizer, config) for file in files]
batch = collate_fn([sets[0][0], sets[0][1]])
assert batch["data_source"].tolist() == ["alfworld", "household"], batch
assert batch["raw_prompt"][0] == [{"role": "user", "content": ""}], batch
assert [info["index"] for info in batch["extra_info"]] == [0, 1]
print("ROWS", *map(len, sets))
"""


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    out = tmp_path / "data"
    assert run_cli(["prepare", "--out", str(out), "--env", "alfworld", "--env", "household", "--train-size", "5", "--val-size", "3"]) == 0
    return [out / "train.parquet", out / "test.parquet"]


def test_with_pandas(files: list[Path]) -> None:
    assert sorted(path.name for path in files[0].parent.iterdir()) == ["test.parquet", "train.parquet"]
    for file, size in zip(files, (5, 3), strict=True):
        data = pd.read_parquet(file)
        assert list(data.columns) == ["data_source", "prompt", "ability", "extra_info"] and len(data) == size
        assert data.data_source.tolist() == (["alfworld", "household"] * 3)[:size]
        assert set(data.ability) == {"agent"}
        assert [list(prompt) for prompt in data.prompt] == [[{"role": "user", "content": ""}]] * size
        assert list(data.extra_info) == [{"split": file.stem, "index": i} for i in range(size)]


def test_again_with_other_sizes(files: list[Path]) -> None:
    assert run_cli(["prepare", "--out", str(files[0].parent)]) == 0
    assert [len(pd.read_parquet(file)) for file in files] == [256, 128]


def test_an_unknown_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["prepare", "--out", str(tmp_path / "data"), "--env", "alfwrld"]) == 2
    assert "alfworld" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_with_verl(files: list[Path], tmp_path: Path) -> None:
    python = os.environ.get("THREESPO_BENCH_VERL_PYTHON")
    if not python:
        pytest.skip("THREESPO_BENCH_VERL_PYTHON does not name the python of an environment with verl")
    from threespo_plugins.models import household_tiny

    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf"), "CUDA_VISIBLE_DEVICES": ""}
    command = [python, "-c", _WITH_VERL, *map(str, files), str(household_tiny.path()), str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "ROWS 5 3"
