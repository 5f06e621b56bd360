"""Two ranks compute what one rank computes, and their checkpoint is one that verl's merger takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.plugins.verl import local_workers, recorded, two_ranks

pytestmark = pytest.mark.slow


def test_two_ranks_are_one(rank, model, tmp_path):
    alone, together = tmp_path / "1", tmp_path / "2"
    alone.mkdir()
    together.mkdir()
    port = local_workers.free_port()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    program = Path(two_ranks.__file__)
    processes = [
        subprocess.Popen([sys.executable, program, str(number), "2", str(port), model, together], env=environment, stderr=subprocess.PIPE, text=True)
        for number in range(2)
    ]
    try:
        two_ranks.exercise(local_workers, recorded, model, alone)
        errors = [process.communicate(timeout=500)[1] for process in processes]
        for process, text in zip(processes, errors, strict=True):
            assert process.returncode == 0, text[-3000:]
    finally:
        for process in processes:
            process.kill()
    one, two = (json.loads((folder / "metrics.json").read_text()) for folder in (alone, together))
    for mine, theirs in zip(one, two, strict=True):
        assert theirs == pytest.approx(mine, rel=1e-5, abs=1e-5)
    one, two = (np.load(folder / "arrays.npz") for folder in (alone, together))
    for name in one.files:
        np.testing.assert_allclose(two[name], one[name], atol=1e-5, err_msg=name)
    shards = sorted(path.name for path in (together / "state" / "actor").glob("model_*"))
    assert shards == ["model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"]
    merge(together / "state" / "actor", together / "merged", model)
    compare_folders(together / "merged", together / "model")


def merge(shards, out, model):
    """By verl's own command."""
    command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "fsdp", "--local_dir", shards, "--target_dir", out]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert answer.returncode == 0, answer.stderr[-3000:]


def compare_folders(one, other):
    """Two Hugging Face folders hold the same weights."""
    from transformers import AutoModelForCausalLM

    one, other = (AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in (one, other))
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        np.testing.assert_allclose(tensor.float().numpy(), other[name].numpy(), atol=1e-2, err_msg=name)
