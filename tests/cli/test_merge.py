"""``merge``: what comes out computes what went in, loads anywhere, and appears whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from threespo_bench.cli.app import run_cli

Run = Callable[..., tuple[int, str, str]]
IDS = torch.tensor([[5, 17, 300, 4, 9, 2, 40, 7]])
FILE = "model.safetensors"


@pytest.fixture(scope="module")
def run(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One small iteration of 3SPO from it."""
    out = tmp_path_factory.mktemp("runs")
    settings = [
        f"model.path={base}", "evaluation.episodes=2", "budget.iterations=1", "rollout.max_turns=3", "rollout.max_new_tokens=6", "tracker=none",
        "algorithm.tasks_per_iteration=2", "algorithm.env_steps_per_tree=8", "algorithm.max_samples=4",
    ]  # fmt: skip
    assert run_cli(["run", "--algo", "3spo", "--out", str(out), "--no-progress", *settings]) == 0
    return out / "default" / "3spo-household-seed0"


def logits(folder: Path, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    with torch.no_grad():
        return model(input_ids=IDS).logits.float()


def write_adapter(base: Path, folder: Path, scale: float = 0.5, **options: object) -> torch.Tensor:
    """A LoRA adapter with random weights on ``base``; returns the logits of both together."""
    peft = pytest.importorskip("peft")
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM", **options)
    adapted = peft.get_peft_model(model, config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
        adapted.save_pretrained(folder)
        return adapted(input_ids=IDS).logits


# ---- runs


def test_a_run(bench: Run, base: Path, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "merged"
    code, said, err = bench("merge", run, out)
    assert code == 0, err
    assert f"model.path={out}" in said
    assert [path.name for path in out.parent.iterdir()] == ["merged"]
    assert stat.S_IMODE(out.stat().st_mode) == 0o755
    tokenizer, original = (AutoTokenizer.from_pretrained(folder) for folder in (out, base))
    assert tokenizer("go to desk 1")["input_ids"] == original("go to desk 1")["input_ids"]
    assert tokenizer.chat_template == original.chat_template
    assert not torch.equal(logits(out), logits(base))
    reports = []
    for checkpoint in (run, out):  # the merged policy plays the run's episodes
        code, said, err = bench("eval", checkpoint, "--seeds", "0,1", "--episodes", "2", "--format", "json", "rollout.max_turns=3", "rollout.max_new_tokens=6")
        assert code == 0, err
        reports.append(json.loads(said)["results"])
    assert reports[0] == reports[1]


def test_a_run_that_learned_nothing(bench: Run, base: Path, tmp_path: Path) -> None:
    settings = [f"model.path={base}", "evaluation.episodes=1", "budget.iterations=1", "rollout.max_turns=1", "rollout.max_new_tokens=2", "tracker=none"]
    still = ["algorithm.tasks_per_iteration=1", "algorithm.group_size=2", "algorithm.optimization.learning_rate=1e-300"]
    code, _, err = bench("run", "--algo", "grpo", "--out", tmp_path, "--no-progress", *settings, *still)
    assert code == 0, err
    code, _, err = bench("merge", tmp_path / "default" / "grpo-household-seed0", tmp_path / "merged")
    assert code == 4 and "those that the run started from" in err
    assert not (tmp_path / "merged").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".merged")]


def test_states_of_a_3spo_run_have_scores(bench: Run, run: Path) -> None:
    code, out, err = bench("play", run, "--task", "0", "--env", "household")
    assert code == 0, err
    states = [line for line in out.splitlines() if line.startswith("state")]
    assert states and all("S(s) = " in line and "n(s) = " in line for line in states)


# ---- where it is written


def test_nothing_is_overwritten(bench: Run, run: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    code, _, err = bench("merge", run, tmp_path)
    assert code == 2 and "nothing is overwritten" in err
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    code, _, err = bench("merge", run, tmp_path / "kept")
    assert code == 2
    (tmp_path / "empty").mkdir()
    assert bench("merge", run, tmp_path / "empty")[0] == 0
    assert (tmp_path / "empty" / "config.json").is_file()


def test_what_is_a_model_already(bench: Run, base: Path, tmp_path: Path) -> None:
    for name in (base, "household-tiny"):
        code, _, err = bench("merge", name, tmp_path / "out")
        assert code == 2 and "nothing to merge" in err


# ---- adapters


def test_an_adapter(bench: Run, base: Path, tmp_path: Path) -> None:
    expected = write_adapter(base, tmp_path / "adapter")
    code, _, err = bench("merge", tmp_path / "adapter", tmp_path / "merged")
    assert code == 0, err
    assert (logits(tmp_path / "merged") - expected).abs().max() < 1e-5
    assert (logits(base) - expected).abs().max() > 1e-2
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").chat_template == AutoTokenizer.from_pretrained(base).chat_template
    reports = []
    for checkpoint in ("adapter", "merged"):
        code, said, err = bench("eval", tmp_path / checkpoint, "--seeds", "0", "--episodes", "2", "--format", "json", "rollout.max_turns=2")
        assert code == 0, err
        reports.append(json.loads(said))
    assert reports[0]["kind"] == "adapter" and reports[0]["results"] == reports[1]["results"]


def test_an_adapter_of_zeros(bench: Run, base: Path, tmp_path: Path) -> None:
    write_adapter(base, tmp_path / "adapter", scale=0.0)
    code, _, err = bench("merge", tmp_path / "adapter", tmp_path / "merged")
    assert code == 4 and "changes no weight" in err
    assert not (tmp_path / "merged").exists()


def test_an_adapter_that_the_precision_swallows(bench: Run, base: Path, tmp_path: Path) -> None:
    half = tmp_path / "half"
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(half)
    AutoTokenizer.from_pretrained(base).save_pretrained(half)
    write_adapter(half, tmp_path / "small", scale=1e-9)
    code, _, err = bench("merge", tmp_path / "small", tmp_path / "merged")
    assert code == 4 and "too small for the base's precision" in err
    expected = write_adapter(half, tmp_path / "large", scale=0.1)
    assert bench("merge", tmp_path / "large", tmp_path / "merged")[0] == 0
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["dtype"] == "bfloat16"
    assert (logits(tmp_path / "merged").log_softmax(-1) - expected.log_softmax(-1)).abs().max() < 5e-2


def test_rounding_that_moves_log_probabilities_is_no_failure(bench: Run, base: Path, tmp_path: Path) -> None:
    """In a model with wide logits, bfloat16 alone moves them by more than 0.05; the written weights are the rounded sum all the same."""
    half = tmp_path / "half"
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    with torch.no_grad():
        model.model.norm.weight.mul_(80)
    model.save_pretrained(half)
    AutoTokenizer.from_pretrained(base).save_pretrained(half)
    expected = write_adapter(half, tmp_path / "adapter")
    code, _, err = bench("merge", tmp_path / "adapter", tmp_path / "merged")
    assert code == 0, err
    assert (logits(tmp_path / "merged").log_softmax(-1) - expected.log_softmax(-1)).abs().max() > 5e-2
    from safetensors.torch import load_file

    name = "model.layers.1.self_attn.v_proj"
    adapter, before, after = (load_file(file) for file in (tmp_path / "adapter" / "adapter_model.safetensors", half / FILE, tmp_path / "merged" / FILE))
    a, b = (adapter[f"base_model.model.{name}.lora_{side}.weight"] for side in "AB")
    torch.testing.assert_close(after[f"{name}.weight"], (before[f"{name}.weight"].float() + 2 * b @ a).bfloat16(), rtol=1e-2, atol=1e-6)
    assert not torch.equal(after[f"{name}.weight"], before[f"{name}.weight"])


def test_a_sum_that_is_wrong_is_refused(bench: Run, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peft = pytest.importorskip("peft")
    write_adapter(base, tmp_path / "adapter")
    add = peft.LoraModel.merge_and_unload

    def with_half_the_scale(model, *arguments, **options):
        for module in model.modules():
            if isinstance(getattr(module, "scaling", None), dict):
                module.scaling["default"] /= 2
        return add(model, *arguments, **options)

    monkeypatch.setattr(peft.LoraModel, "merge_and_unload", with_half_the_scale)
    code, _, err = bench("merge", tmp_path / "adapter", tmp_path / "merged")
    assert code == 5 and "is not base and adapter" in err
    assert not (tmp_path / "merged").exists()


def test_a_file_that_is_not_the_sum_is_refused(bench: Run, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_adapter(base, tmp_path / "adapter")
    monkeypatch.setattr("transformers.PreTrainedModel.save_pretrained", lambda model, out, **options: shutil.copytree(base, out, dirs_exist_ok=True))
    code, _, err = bench("merge", tmp_path / "adapter", tmp_path / "merged")
    assert code == 5 and "is not the merged one" in err and "proj.weight differs" in err
    assert not (tmp_path / "merged").exists()


def test_a_sum_that_the_precision_cannot_hold_is_refused(bench: Run, base: Path, tmp_path: Path) -> None:
    half = tmp_path / "half"
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.float16).save_pretrained(half)
    AutoTokenizer.from_pretrained(base).save_pretrained(half)
    write_adapter(half, tmp_path / "adapter", scale=3e5)
    code, _, err = bench("merge", tmp_path / "adapter", tmp_path / "merged")
    assert code == 5 and "not finite in the base's precision" in err
    assert not (tmp_path / "merged").exists()


def test_an_adapter_without_its_scale(bench: Run, base: Path, tmp_path: Path) -> None:
    write_adapter(base, tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"lora_alpha": 0}))
    for command in (["merge", tmp_path / "adapter", tmp_path / "merged"], ["eval", tmp_path / "adapter", "--seeds", "0", "--episodes", "1"]):
        code, _, err = bench(*command)
        assert code == 4 and "lora_alpha 0" in err and "adapter_config.json" in err
    file.write_text("[1]")
    code, _, err = bench("merge", tmp_path / "adapter", tmp_path / "merged")
    assert code == 4 and "cannot be read" in err


def test_the_base_of_an_adapter(bench: Run, base: Path, run: Path, tmp_path: Path) -> None:
    write_adapter(base, tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_config.json"
    config = json.loads(file.read_text()) | {"base_model_name_or_path": "somebody/gone"}
    file.write_text(json.dumps(config))
    code, _, err = bench("merge", tmp_path / "adapter", tmp_path / "merged")
    assert code == 4 and "somebody/gone" in err and "--base MODEL" in err
    assert bench("merge", tmp_path / "adapter", tmp_path / "merged", "--base", base)[0] == 0
    code, _, err = bench("merge", tmp_path / "adapter", tmp_path / "other", "--base", "household-tiny")
    assert code == 4 and "does not fit" in err


# ---- shards of verl


def write_shards(base: Path, folder: Path, change: float) -> torch.Tensor:
    """What verl's FSDP engine writes on one rank; returns the logits of the changed model in bfloat16, in which its merger writes."""
    actor = folder / "actor"
    (actor / "huggingface").mkdir(parents=True)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with torch.no_grad():
        model.model.norm.weight.mul_(change)
    torch.save(model.state_dict(), actor / "model_world_size_1_rank_0.pt")
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 1}))
    model.config.save_pretrained(actor / "huggingface")
    AutoTokenizer.from_pretrained(base).save_pretrained(actor / "huggingface")
    with torch.no_grad():
        return model(input_ids=IDS).logits


def test_shards_by_verl_itself(bench: Run, base: Path, tmp_path: Path) -> None:
    if not os.environ.get("THREESPO_BENCH_VERL_PYTHON"):
        pytest.skip("THREESPO_BENCH_VERL_PYTHON does not name the python of an environment with verl")
    expected = write_shards(base, tmp_path / "global_step_3", 1.5)
    code, _, err = bench("merge", tmp_path / "global_step_3", tmp_path / "merged")
    assert code == 0, err
    assert (logits(tmp_path / "merged").log_softmax(-1) - expected.log_softmax(-1)).abs().max() < 5e-2
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").chat_template


def merger_copies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, base: Path, more: str = "") -> None:
    """An environment whose verl, asked as verl is, writes the base, and does something more."""
    python = tmp_path / "python"
    python.write_text(
        f"#!{sys.executable}\nimport shutil, sys\nassert sys.argv[1:7] == ['-m', 'verl.model_merger', 'merge', '--backend', 'fsdp', '--local_dir'], sys.argv\n"
        f"shutil.copytree({str(base)!r}, sys.argv[9], dirs_exist_ok=True)\n{more}\n"
    )
    python.chmod(0o755)
    monkeypatch.setenv("THREESPO_BENCH_VERL_PYTHON", str(python))


@pytest.mark.parametrize("place", ["", "actor"])
def test_shards_are_handed_to_the_environment_that_has_verl(bench: Run, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    write_shards(base, tmp_path / "shards", 1.5)
    merger_copies(monkeypatch, tmp_path, base)
    code, _, err = bench("merge", tmp_path / "shards" / place, tmp_path / "merged")
    assert code == 0, err
    assert torch.equal(logits(tmp_path / "merged"), logits(base))


def test_shards_of_a_policy_with_adapters(bench: Run, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """verl's merger writes base and adapter apart."""
    write_shards(base, tmp_path / "shards", 1.5)
    expected = write_adapter(base, tmp_path / "adapter")
    merger_copies(monkeypatch, tmp_path, base, f"shutil.copytree({str(tmp_path / 'adapter')!r}, sys.argv[9] + '/lora_adapter')")
    code, _, err = bench("merge", tmp_path / "shards", tmp_path / "merged")
    assert code == 0, err
    assert (logits(tmp_path / "merged") - expected).abs().max() < 1e-5
    assert not (tmp_path / "merged" / "lora_adapter").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_shards_of_adapters_without_their_scale(bench: Run, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without lora_train_meta.json verl's merger writes lora_alpha 0, by which the base would be played."""
    write_shards(base, tmp_path / "shards", 1.5)
    write_adapter(base, tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"lora_alpha": 0}))
    merger_copies(monkeypatch, tmp_path, base, f"shutil.copytree({str(tmp_path / 'adapter')!r}, sys.argv[9] + '/lora_adapter')")
    for command in (["merge", tmp_path / "shards", tmp_path / "merged"], ["eval", tmp_path / "shards", "--seeds", "0", "--episodes", "1"]):
        code, _, err = bench(*command)
        assert code == 4 and "scale of the LoRA adapter is unknown" in err and "lora_train_meta.json" in err
    assert not (tmp_path / "merged").exists()


def test_what_becomes_of_a_failure_of_verl(bench: Run, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shards(base, tmp_path / "shards", 1.5)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'ValueError: torn shard' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setenv("THREESPO_BENCH_VERL_PYTHON", str(python))
    code, _, err = bench("merge", tmp_path / "shards", tmp_path / "merged")
    assert code == 5 and "torn shard" in err
    monkeypatch.setenv("THREESPO_BENCH_VERL_PYTHON", str(tmp_path / "gone"))
    code, _, err = bench("merge", tmp_path / "shards", tmp_path / "merged")
    assert code == 4 and "there is no such file" in err
    assert not (tmp_path / "merged").exists()


def test_help_needs_nothing_heavy() -> None:
    heavy = "sorted({'torch', 'peft', 'pandas', 'pyarrow'} & set(sys.modules))"
    code = f"import sys\nfrom threespo_bench.cli.app import run_cli\nrun_cli(sys.argv[1:])\nprint({heavy})"
    for command in ("eval", "merge", "play", "prepare"):
        done = subprocess.run([sys.executable, "-c", code, command, "--help"], capture_output=True, text=True, timeout=120)
        assert done.stdout.splitlines()[-1] == "[]", done.stderr
        assert f"threespo-bench {command} " in done.stdout
