"""Checkpoints of runs of the engine verl where verl is not: ``merge`` compares with the starting weights, ``eval`` and ``play`` use the merged policy.

verl's merger is a stand-in here: it copies a folder that was made before.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from threespo_bench.checkpointing import Checkpoints, write_state
from threespo_bench.config.compose import compose
from threespo_bench.config.plain import to_plain
from threespo_bench.host import PluginHost

Run = Callable[..., tuple[int, str, str]]
PLAYED = ("--seeds", "0", "--episodes", "2", "--format", "json")
LIMITS = ("rollout.max_turns=3", "rollout.max_new_tokens=6")


@pytest.fixture
def started(base: Path, tmp_path: Path) -> Path:
    """The run's own copy of them, which a test may remove."""
    return Path(shutil.copytree(base, tmp_path / "started"))


@pytest.fixture
def run(started: Path, tmp_path: Path) -> Path:
    """A run of verl after one iteration, with shards in its checkpoint."""
    host = PluginHost.discover()
    folder = tmp_path / "run"
    folder.mkdir()
    options = [f"model.path={started}", "engine=verl", "engine.max_context=512", "engine.ranks=2", "tracker=none", *LIMITS]
    config = compose("3spo", "household", options, host)
    (folder / "config.yaml").write_text(yaml.safe_dump(to_plain(config)))
    algorithm = host.find("algorithms", "threespo").load()(config.algorithm.options)

    def fill(checkpoint: Path) -> None:
        actor = checkpoint / "learner" / "actor"
        (actor / "huggingface").mkdir(parents=True)
        (actor / "model_world_size_2_rank_0.pt").write_bytes(b"shard")
        (actor.parent / "actor.json").write_text(json.dumps({"version": 7, "ranks": 2}))
        write_state(checkpoint, "loop", {"policy_version": 7}, "test")
        write_state(checkpoint, "algorithm", algorithm.state_dict(), "test")

    Checkpoints(folder / "checkpoints").write(1, fill, {})
    return folder


@pytest.fixture
def merges_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Let the environment that has verl merge any shards to a given folder."""

    def choose(folder: Path) -> None:
        python = tmp_path / "python"
        python.write_text(f"#!{sys.executable}\nimport shutil, sys\nshutil.copytree({str(folder)!r}, sys.argv[9], dirs_exist_ok=True)\n")
        python.chmod(0o755)
        monkeypatch.setenv("THREESPO_BENCH_VERL_PYTHON", str(python))

    return choose


def write_model(base: Path, folder: Path, change: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> Path:
    """What verl's merger makes of a policy that differs from ``base`` in the scale of one weight."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with torch.no_grad():
        model.model.layers[0].self_attn.v_proj.weight.mul_(change)
    model.to(dtype).save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return folder


def place(run: Path, name: str) -> Path:
    """A way to name the policy of the run."""
    checkpoint = run / "checkpoints" / "iteration-000001"
    return {"run": run, "checkpoint": checkpoint, "shards": checkpoint / "learner" / "actor"}[name]


@pytest.mark.parametrize("named", ["run", "checkpoint", "shards"])
def test_weights_that_are_those_of_the_start_are_refused(bench: Run, base: Path, run: Path, tmp_path: Path, merges_to, named: str) -> None:
    merges_to(write_model(base, tmp_path / "same"))
    code, _, err = bench("merge", place(run, named), tmp_path / "merged")
    assert code == 4 and "those that the run started from" in err and "bfloat16" in err
    assert not (tmp_path / "merged").exists()
    merges_to(write_model(base, tmp_path / "other", 1.05))
    code, _, err = bench("merge", place(run, named), tmp_path / "merged")
    assert code == 0 and "not compared" not in err, err


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the weights of a folder; the tensors of its one file by name."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})


EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"


@pytest.mark.parametrize("where", ["merged", "base"])
def test_weights_that_only_one_has_and_that_say_nothing(bench: Run, base: Path, started: Path, run: Path, tmp_path: Path, merges_to, where: str) -> None:
    """A tied output layer that is written or not, and weights that no model of the architecture loads."""
    merges_to(write_model(base, tmp_path / "same"))
    folder = tmp_path / "same" if where == "merged" else started
    edit(folder, lambda tensors: tensors.update({OUTPUT: tensors[EMBEDDING], "mtp.weight": torch.ones(2)}))
    code, _, err = bench("merge", run, tmp_path / "merged")
    assert code == 4 and "those that the run started from" in err


def untie(folder: Path) -> None:
    """An output layer of its own, with other weights than the embedding."""
    edit(folder, lambda tensors: tensors.update({OUTPUT: tensors[EMBEDDING] + 1}))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))


@pytest.mark.parametrize("where", ["merged", "base"])
def test_an_output_layer_that_only_one_has_makes_another_model(bench: Run, base: Path, started: Path, run: Path, tmp_path: Path, merges_to, where: str) -> None:
    merges_to(write_model(base, tmp_path / "same"))
    untie(tmp_path / "same" if where == "merged" else started)
    code, _, err = bench("merge", run, tmp_path / "merged")
    assert code == 0 and "not compared" not in err, err


def test_a_merged_model_that_lacks_weights_is_refused(bench: Run, base: Path, run: Path, tmp_path: Path, merges_to) -> None:
    merges_to(write_model(base, tmp_path / "other", 1.05))
    edit(tmp_path / "other", lambda tensors: tensors.pop("model.norm.weight"))
    code, _, err = bench("merge", run, tmp_path / "merged")
    assert code == 5 and "lacks 1 of its weights, first model.norm.weight" in err
    assert not (tmp_path / "merged").exists()


def test_weights_under_other_names_are_not_compared(bench: Run, base: Path, started: Path, run: Path, tmp_path: Path, merges_to) -> None:
    merges_to(write_model(base, tmp_path / "other", 1.05))
    edit(started, lambda tensors: [tensors.update({f"base.{name}": tensors.pop(name)}) for name in list(tensors)])
    code, _, err = bench("merge", run, tmp_path / "merged")
    assert code == 0 and "warning: not compared" in err and "no weights of the same names" in err


def test_starting_weights_that_are_gone(bench: Run, base: Path, started: Path, run: Path, tmp_path: Path, merges_to) -> None:
    shutil.rmtree(started)
    merges_to(write_model(base, tmp_path / "same"))
    code, _, err = bench("merge", run, tmp_path / "merged")
    assert code == 0 and (tmp_path / "merged" / "config.json").is_file()
    assert "warning: not compared with what it was trained from" in err and str(started) in err


def test_shards_of_no_run(bench: Run, base: Path, run: Path, tmp_path: Path, merges_to) -> None:
    moved = shutil.copytree(place(run, "checkpoint") / "learner", tmp_path / "global_step_1")
    merges_to(write_model(base, tmp_path / "same"))
    code, _, err = bench("merge", moved, tmp_path / "merged")
    assert code == 0 and "not compared with what it was trained from" in err and "no run folder" in err


@pytest.mark.parametrize("command", ["eval", "play"])
def test_another_number_of_ranks_is_refused_before_the_engine_starts(bench: Run, run: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr("threespo_bench.policies.settings.find_spec", lambda name: object())  # as if verl were installed
    monkeypatch.setattr("threespo_bench.policies.opened.open_environment", lambda *arguments: pytest.fail("something was started"))
    code, _, err = bench(command, run, "engine.ranks=3")
    assert code == 6 and "was written by 2 ranks, and there are 3 now" in err and "engine.ranks x engine.nodes must be 2" in err
    assert len(err.splitlines()) == 2


def test_a_run_resumed_with_another_number_of_ranks(bench: Run, run: Path) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["engine"]["options"]["ranks"] = 3
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    code, _, err = bench("run", "--resume", run)
    assert code == 6 and "was written by 2 ranks, and there are 3 now" in err and "engine.ranks x engine.nodes must be 2" in err


@pytest.mark.skipif(find_spec("verl") is not None, reason="verl is installed here, so the run's own engine plays")
def test_a_run_is_played_without_verl(bench: Run, base: Path, started: Path, run: Path, tmp_path: Path, merges_to) -> None:
    """The merged policy plays the run's episodes, with the options of the run; the starting weights are not needed."""
    shutil.rmtree(started)
    merged = write_model(base, tmp_path / "other", 3.0)
    merges_to(merged)
    code, out, err = bench("eval", run, *PLAYED)
    assert code == 0, err
    assert "verl is not installed here" in err and "engine=embedded" in err
    about = json.loads(out)
    assert (about["algorithm"], about["iteration"], about["max_turns"], about["max_new_tokens"]) == ("threespo", 1, 3, 6)
    code, expected, err = bench("eval", merged, *PLAYED, *LIMITS)
    assert code == 0, err
    assert about["results"] == json.loads(expected)["results"]
    code, out, err = bench("play", run, "--task", "0")
    assert code == 0, err
    assert any(line.startswith("state") and "S(s) = " in line for line in out.splitlines())
    code, _, err = bench("eval", run, *PLAYED, "engine.max_context=8")
    assert code == 5 and "context of 8 tokens" in err, "options are those of the engine that plays"


@pytest.mark.skipif(find_spec("verl") is not None, reason="verl is installed here")
def test_without_any_verl_there_is_one_clear_line(bench: Run, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THREESPO_BENCH_VERL_PYTHON", raising=False)
    code, _, err = bench("eval", run, *PLAYED)
    assert code == 4 and "needs verl, which is not installed here" in err and "THREESPO_BENCH_VERL_PYTHON" in err
