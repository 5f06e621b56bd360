"""Every registered algorithm trains on households and can be stopped and resumed: two iterations are one, a resume and one, bit for bit."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.algorithms.registered import NAMES, configured, host
from tests.runner.conftest import Watcher, fingerprint
from threespo_bench.checkpointing import read_state
from threespo_bench.config.compose import compose
from threespo_bench.config.schema import RunConfig
from threespo_bench.errors import UsageError
from threespo_bench.outcome import Outcome
from threespo_bench.runner import resume, run

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(900)  # whole runs, on cores that may be busy
SMOKE = ("threespo", "grpo", "ppo_turn", "dpo", "spo_stream", "vineppo")
"""One of each kind: a search, groups, a critic, preferences, a stream, Monte-Carlo values."""
SETTINGS = [
    "tracker=none", "budget.env_steps=null", "budget.iterations=2", "rollout.max_turns=8", "evaluation.episodes=2", "evaluation.every_env_steps=1000000",
    "checkpoint.every_iterations=1", "env.receptacles_min=6", "env.receptacles_max=6", "env.task_types=[look_at_obj_in_light]",
]  # fmt: skip
SMALL = {
    "group_size": 3, "env_steps_per_tree": 40, "batch_episodes": 4, "in_flight": 4, "offline_rollouts": 1, "episodes_per_task": 1, "continuations": 2,
    "max_boundaries": 4, "branch_factors": "[2,2]", "minimum_support": 4, "pairs_per_iteration": 6,
}  # fmt: skip
"""Options that make an iteration cheap, where an algorithm has them."""


def configuration(out: Path, name: str, *overrides: str) -> RunConfig:
    options = configured(name).config
    shared = any(hasattr(options, option) for option in ("group_size", "env_steps_per_tree", "continuations", "branch_factors"))
    small = [f"algorithm.{option}={value}" for option, value in SMALL.items() if hasattr(options, option)]
    settings = [*SETTINGS, f"algorithm.tasks_per_iteration={4 if shared else 6}", *small, *overrides]
    return compose(name, "household", settings, host(), out=str(out), experiment="test")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The turns of a run, for the algorithm that learns from a file."""
    outcome = run(configuration(tmp_path_factory.mktemp("recorded"), "grpo", "save_turns=true"), host())
    return outcome.run / "turns"


@pytest.fixture
def inputs(request: pytest.FixtureRequest, name: str) -> list[str]:
    """Overrides that name what the algorithm cannot do without."""
    return [f"algorithm.pairs={request.getfixturevalue('recorded')}"] if name == "dpo_offline" else []


def trained(outcome: Outcome) -> Path:
    assert outcome.state == "finished", outcome.error
    return outcome.run


def checkpoints(path: Path) -> list[Path]:
    return sorted((path / "checkpoints").iterdir())


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.smoke if name in SMOKE else ()) for name in NAMES if name != "t2spo"])
def test_it_trains_and_goes_on_exactly_where_it_was_stopped(name: str, inputs: list[str], tmp_path: Path) -> None:
    config = configuration(tmp_path / "whole", name, *inputs)
    whole = trained(run(config, host()))
    last = json.loads((whole / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["iteration"], last["kind"]) == (2, "eval")
    assert last["env_steps"] > 0 and last["updates"] > 0

    stopped = run(replace(config, out=str(tmp_path / "stopped")), host(), progress=Watcher(stop_at=1))
    assert (stopped.state, len(checkpoints(stopped.run))) == ("interrupted", 1)
    state = read_state(checkpoints(stopped.run)[0], "algorithm")
    again = copy.deepcopy(configured(name))
    again.load_state_dict(copy.deepcopy(state))
    assert same(again.state_dict(), state)

    resumed = trained(resume(stopped.run, host()))
    assert fingerprint(resumed) == fingerprint(whole)


@pytest.mark.slow
def test_t2spo_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="t2spo predicts distances with TabPFN") as caught:
        run(configuration(tmp_path, "t2spo"), host())
    assert "t2spo_knn" in caught.value.fix


@pytest.mark.slow
def test_something_is_learned(tmp_path: Path) -> None:
    """The tiny runs above are no idle ones: their weights move."""
    path = trained(run(configuration(tmp_path, "grpo"), host()))
    first, second = (json.loads((folder / "complete.json").read_text())["files"] for folder in checkpoints(path))
    assert first != second
