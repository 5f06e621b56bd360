"""Where verl is in an environment of its own: its tests run there, and what was trained there is played here.

THREESPO_BENCH_VERL_PYTHON names the interpreter.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from threespo_bench.assembly import model_path
from threespo_bench.config.plain import from_plain
from threespo_bench.host import PluginHost
from threespo_bench.store import read_config
from threespo_plugins.verl_engine.merging import PYTHON_VARIABLE

ROOT = Path(__file__).resolve().parents[3]
TINY = [
    "engine=verl", "engine.device=cpu", "env.receptacles_min=6", "env.receptacles_max=6", "budget.env_steps=null", "budget.iterations=1",
    "checkpoint.every_iterations=1", "tracker=none",
]  # fmt: skip
ANSWER = """
import asyncio, json, sys
from threespo_bench.contracts.engine import Sampling
from threespo_bench.host import PluginHost
from threespo_bench.policies import opened, settings, source
host = PluginHost.discover()
found = source.find(sys.argv[1], host)
config = settings.configure(found, host)
with opened.open_policy(found, config, host, opened.open_environment(config, host)) as policy:
    made = asyncio.run(policy.engine.rollout.generate([{"role": "user", "content": "go to desk 1"}], 0, Sampling(1.0, 12)))
print(json.dumps([config.engine.name, made.prompt_ids.tolist(), made.token_ids.tolist(), made.log_probs.tolist()]))
"""
"""Opens a policy as ``eval`` and ``play`` do, and prints what it answers."""

pytestmark = [
    pytest.mark.without_verl,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(find_spec("verl") is not None, reason="verl is installed here"),
    pytest.mark.skipif(not os.environ.get(PYTHON_VARIABLE), reason=f"{PYTHON_VARIABLE} is not set: scripts/verl_env.sh DIR makes such an environment"),
]


def test_the_tests_without_ray_pass_there():
    command = [os.environ[PYTHON_VARIABLE], "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", "tests/plugins/verl"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1700, check=False)
    assert answer.returncode == 0, answer.stdout[-4000:]
    passed = re.search(r"(\d+) passed", answer.stdout)
    assert passed is not None and int(passed[1]) > 100, f"most tests were skipped: {answer.stdout[-300:]}"


def call(python, *arguments, code=0):
    """Run Python to its end; its standard output and standard error."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    answer = subprocess.run([python, *arguments], capture_output=True, text=True, timeout=900, env=environment, cwd="/", check=False)
    assert answer.returncode == code, answer.stderr[-3000:]
    return answer.stdout, answer.stderr


def bench(python, *arguments):
    """Run the program to its end; its standard output."""
    return call(python, "-m", "threespo_bench", *arguments)[0]


def test_a_run_with_adapters_and_servers_of_its_own(tmp_path):
    """Trained, resumed and evaluated there; evaluated, played and merged here."""
    there, here = os.environ[PYTHON_VARIABLE], sys.executable
    small = ["env.receptacles_min=6", "env.receptacles_max=6", "rollout.max_turns=20", "algorithm.tasks_per_iteration=2", "algorithm.env_steps_per_tree=60"]
    engine = ["engine=verl", "engine.device=cpu", "engine.rollout_ranks=1", "engine.lora_rank=4", "algorithm.optimization.learning_rate=0.002"]
    limits = ["budget.env_steps=null", "budget.iterations=1", "evaluation.episodes=2", "checkpoint.every_iterations=1", "tracker=none"]
    bench(there, "run", "--algo", "3spo", "--out", str(tmp_path), "--no-progress", *engine, *small, *limits)
    run = str(tmp_path / "default" / "3spo-household-seed0")
    bench(there, "run", "--resume", run, "--no-progress", "budget.iterations=2")
    rows = [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row["kind"] == "train"]
    assert [row["iteration"] for row in trained] == [1, 2]
    assert all(row["update/logprob_gap_max"] < 1e-4 and row["update/optimizer_steps"] > 0 for row in trained)
    played = ["eval", run, "--seeds", "0", "--episodes", "4", "--format", "json"]
    mine, theirs = (json.loads(bench(python, *played)) for python in (here, there))
    assert [(row["name"], row["episodes"]) for row in mine["results"]] == [(row["name"], row["episodes"]) for row in theirs["results"]]
    assert {**mine, "results": None} == {**theirs, "results": None}
    assert "S(s) = " in bench(here, "play", run, "--task", "0")
    bench(here, "merge", run, str(tmp_path / "merged"))
    assert (tmp_path / "merged" / "config.json").is_file()


def test_the_evaluated_policy_is_base_and_adapter(tmp_path):
    """Their log-probabilities, with the adapter added by hand: in the engine that trained it, by the embedded one here, and in what ``merge`` writes."""
    there, here = os.environ[PYTHON_VARIABLE], sys.executable
    small = ["rollout.max_turns=20", "algorithm.tasks_per_iteration=2", "algorithm.env_steps_per_tree=60", "evaluation.episodes=4"]
    lora = ["engine.lora_rank=8", "algorithm.optimization.learning_rate=0.002"]
    bench(there, "run", "--algo", "3spo", "--out", str(tmp_path), "--no-progress", *TINY, *small, *lora)
    run = tmp_path / "default" / "3spo-household-seed0"
    base = model_of(starting_folder(run))
    before, by_hand = base.state_dict(), {}
    shard = weights_of_one_rank(run)
    for name in [name for name in shard if ".lora_A." in name]:
        plain = name.removeprefix("base_model.model.").replace(".lora_A.default.", ".")
        delta = 32 / 8 * shard[name.replace("lora_A", "lora_B")] @ shard[name]  # the default of engine.lora_alpha, over the rank
        by_hand[plain] = before[plain] + delta
    assert len(by_hand) == 7 * base.config.num_hidden_layers
    answers = {python: json.loads(call(python, "-c", ANSWER, str(run))[0].splitlines()[-1]) for python in (there, here)}
    assert [answers[python][0] for python in (there, here)] == ["verl", "embedded"]
    alone = {python: gap(base, answers[python]) for python in answers}
    base.load_state_dict(before | by_hand)
    together = {python: gap(base, answers[python]) for python in answers}
    assert together[there] < 1e-4
    assert together[here] < alone[here] / 5, "rounding to bfloat16 is a small part of what the adapter does"
    assert all(alone[python] > 0.02 for python in answers), "the adapter is too small to tell it from none"
    for python in (there, here):
        played = json.loads(bench(python, "eval", str(run), "--seeds", "0,1", "--episodes", "4", "--format", "json"))
        assert (played["iteration"], played["episodes"]) == (1, 4)
        assert "S(s) = " in bench(python, "play", str(run), "--task", "0")
    bench(here, "merge", str(run), str(tmp_path / "merged"))
    merged = model_of(tmp_path / "merged").state_dict()
    for name, expected in by_hand.items():
        assert (merged[name] - expected).abs().max() <= 2**-7 * expected.abs().max(), f"{name} is not base and adapter in bfloat16"


def test_shards_that_are_the_starting_weights_are_refused(tmp_path):
    """By verl's own merger. A weight of the shard is changed afterwards, and it is merged."""
    there, here = os.environ[PYTHON_VARIABLE], sys.executable
    still = ["algorithm.tasks_per_iteration=1", "algorithm.group_size=2", "algorithm.optimization.learning_rate=1e-300", "evaluation.episodes=1"]
    bench(there, "run", "--algo", "grpo", "--out", str(tmp_path), "--no-progress", *TINY, *still, "rollout.max_turns=2")
    run, merged = tmp_path / "default" / "grpo-household-seed0", tmp_path / "merged"
    for python in (here, there):
        _, error = call(python, "-m", "threespo_bench", "merge", str(run), str(merged), code=4)
        assert "those that the run started from" in error and not merged.exists()
    file = shard_of_one_rank(run)
    shard = weights_of_one_rank(run)
    shard["model.norm.weight"].mul_(1.5)
    torch.save(shard, file)
    _, error = call(here, "-m", "threespo_bench", "merge", str(file.parent), str(merged))
    assert "not compared" not in error
    expected = model_of(starting_folder(run)).state_dict()["model.norm.weight"] * 1.5
    torch.testing.assert_close(model_of(merged).state_dict()["model.norm.weight"], expected, rtol=2**-8, atol=0)


def starting_folder(run):
    """The model that the run's configuration names."""
    host = PluginHost.discover()
    return model_path(from_plain(read_config(run), host), host)


def model_of(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def shard_of_one_rank(run):
    (file,) = (run / "checkpoints").rglob("model_world_size_1_rank_0.pt")
    return file


def weights_of_one_rank(run):
    """Plain tensors by the names in the trained module."""
    weights = torch.load(shard_of_one_rank(run), map_location="cpu", weights_only=False)
    return {name: tensor.to_local() if hasattr(tensor, "to_local") else tensor for name, tensor in weights.items()}


def gap(model, answer):
    """The largest difference of the answer's log-probabilities from the model's."""
    _, prompt, tokens, reported = answer
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    own = logits.log_softmax(-1)[torch.arange(len(tokens)), torch.tensor(tokens)]
    return float(np.abs(own.numpy() - np.array(reported)).max())
