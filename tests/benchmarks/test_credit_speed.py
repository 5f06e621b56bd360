"""The benchmark of credit on a few turns: its loops agree with the implementation, and it would notice if they did not."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    return importlib.import_module("credit_speed")


def test_batches(benchmark):
    turns = benchmark.synthetic_batch(200)
    assert len(turns) == 200
    lengths = np.unique(turns.traj_id.astype(str), return_counts=True)[1]
    assert lengths.min() >= 1 and lengths.max() <= 50
    own = benchmark.synthetic_batch(200, own_texts=True)
    assert own.anchor_obs.tolist() == turns.anchor_obs.tolist()
    assert len(set(turns.anchor_obs)) == len({id(text) for text in turns.anchor_obs}) <= 64
    assert len({id(text) for text in own.anchor_obs}) == len({id(text) for text in own.traj_id}) == 200
    assert 0 < turns.action_valid.mean() < 1
    assert benchmark.synthetic_batch(200).anchor_obs.tolist() == turns.anchor_obs.tolist()


def test_all_loops_agree_on_200_turns(benchmark, capsys):
    benchmark.measure(benchmark.PARTS, [200], loop_turns=200, repeat=1)
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("credit of gigpo ") for line in lines) == 3  # the ratio, the growth of time, that of memory
    ratios = {part.name: next(line for line in lines if line.startswith(part.name)).split() for part in benchmark.PARTS}
    assert "-" not in ratios["credit of gigpo"] and ratios["credit of hgpo"].count("-") == 2


def test_loops_are_left_out_above_their_limit(benchmark, capsys):
    benchmark.measure(benchmark.PARTS[:1], [200], loop_turns=100, repeat=1)
    assert capsys.readouterr().out.splitlines()[3].split()[-4:] == ["-"] * 4


@pytest.mark.parametrize("name", ["credit of gigpo", "state groups", "history keys, 3 depths"])
def test_another_result_is_noticed(benchmark, name):
    part = next(part for part in benchmark.PARTS if part.name == name)

    def wrong(turns):
        result = np.array(part.ours(turns), copy=True)
        result[..., 0] += 1 if result.dtype == np.int64 else 1e-6
        return result

    with pytest.raises(SystemExit, match=name):
        benchmark.compare(replace(part, ours=wrong), benchmark.synthetic_batch(200), 200, 1)
