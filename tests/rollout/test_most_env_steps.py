"""The most environment steps of an iteration, as samplers claim them: no iteration takes more, and some take as many."""

from __future__ import annotations

import asyncio
import copy
import json
from dataclasses import replace
from math import ceil
from pathlib import Path

import pytest

from tests.algorithms.registered import NAMES, configured
from tests.rollout.players import Drawing, Knowing, context, household
from tests.runner import toy_bench
from threespo_algorithms.dpo_offline import DPOOffline
from threespo_bench.assembly import dry_run
from threespo_bench.contracts.algorithm import Algorithm
from threespo_bench.contracts.sampler import Sampler
from threespo_bench.rollout.adaptive_tree import AdaptiveTreeSampler, TreeAlgorithm
from threespo_bench.rollout.greedy_baseline import GreedyBaselineSampler
from threespo_bench.rollout.grouped import GroupedSampler
from threespo_bench.rollout.monte_carlo import MonteCarloSampler
from threespo_bench.rollout.segment_tree import SegmentTreeSampler
from threespo_bench.rollout.single_stream import SingleStreamSampler
from threespo_bench.runner import run
from threespo_bench.store import RunStore

TASKS, MAX_TURNS = 2, 5
UNKNOWN = {"spo_segment_chain"}
"""Algorithms that have no bound: a turn may be valued at any number of its tokens."""


def algorithm_on_two_tasks(name: str, folder: Path) -> Algorithm:
    """As its YAML configures it, but for the number of tasks; the pairs of one that learns from a file are made up."""
    algorithm = copy.deepcopy(configured(name))
    algorithm.config.tasks_per_iteration = TASKS
    if isinstance(algorithm, DPOOffline):
        path = folder / "pairs.jsonl"
        path.write_text(json.dumps({"prompt": "which way?", "chosen": "left", "rejected": "right"}) + "\n")
        algorithm = DPOOffline(replace(algorithm.config, pairs=str(path)))
    return algorithm


def spent(algorithm: Algorithm, engine_of=lambda environment, tasks: Drawing()) -> int:
    """Environment steps of an iteration."""
    environment = household()
    tasks = list(environment.tasks("train"))
    iteration = context(environment, engine_of(environment, tasks), tasks[:TASKS], max_turns=MAX_TURNS, pool=tasks)

    async def collect() -> None:
        async for turns in algorithm.collect(iteration):
            if isinstance(algorithm, TreeAlgorithm):
                algorithm.observe(turns, lambda turns: turns.old_log_probs)

    asyncio.run(collect())
    return iteration.budget.spent.env_steps


@pytest.mark.parametrize("name", NAMES)
def test_no_iteration_takes_more_than_its_algorithm_says(name: str, tmp_path: Path) -> None:
    algorithm = algorithm_on_two_tasks(name, tmp_path)
    most = algorithm.most_env_steps(MAX_TURNS)
    assert (most is None) is (name in UNKNOWN)
    assert 0 < spent(algorithm) <= (most or 10**6)


@pytest.mark.parametrize("name", ["grpo", "remax", "ppo_turn", "spo_segment_tree", "spopp"])
def test_it_is_reached_where_nobody_gets_anywhere(name: str, tmp_path: Path) -> None:
    algorithm = algorithm_on_two_tasks(name, tmp_path)
    steps = spent(algorithm, lambda environment, tasks: Knowing(environment, []))  # looks around until the step limit
    most = algorithm.most_env_steps(MAX_TURNS)
    assert steps == most if name != "spopp" else most / 2 < steps <= most


@pytest.mark.parametrize(
    ("sampler", "most"),
    [
        (GroupedSampler(4), 2 * 4 * 5),
        (GreedyBaselineSampler(3), 2 * (3 + 1) * 5),
        (MonteCarloSampler(2, 3), 2 * 2 * (5 + 3 * (5 + 4 + 3 + 2 + 1))),
        (MonteCarloSampler(2, 3, token_values=True), None),
        (SegmentTreeSampler((3, 2), 2), 2 * (3 * 2 + 6 * 3)),
        (SegmentTreeSampler((3, 2, 2), 4), 2 * (3 * 4 + 6 * 1)),  # nothing is left for the last level
        (AdaptiveTreeSampler(40, 9, True, "state", 8), 2 * (39 + 8)),
        (AdaptiveTreeSampler(40, 9, True, "state"), None),
        (SingleStreamSampler(6, "batch", 4, 3, "drop", 0), 6 * 5),
        (SingleStreamSampler(6, "batch", 4, 3, "drop", 2), 6 * (1 + 2) * 5),
        (SingleStreamSampler(6, "first_completed", 4, 3, "drop", 0), 2 * (4 - 1 + 3) * 5),
    ],
)
def test_by_hand(sampler: Sampler, most: int | None) -> None:
    assert sampler.most_env_steps(2, 5) == most


def test_an_algorithm_with_a_collect_of_its_own_has_no_bound() -> None:
    class Own(toy_bench.Counting):
        def collect(self, context):
            return super().collect(context)

    config = toy_bench.Counting.Config()
    assert toy_bench.Counting(config).most_env_steps(5) == config.tasks_per_iteration * config.group_size * 5
    assert Own(config).most_env_steps(5) is None


# ---- what the dry run makes of it


@pytest.mark.parametrize(
    ("budget", "fewest"),
    [
        (["budget.env_steps=1000", "budget.iterations=null"], "bound"),
        (["budget.env_steps=1000", "budget.iterations=2"], 2),
        (["budget.iterations=7"], 7),
        (["budget.env_steps=1000", "budget.tokens=10"], None),
        (["budget.iterations=7", "budget.updates=3"], None),
    ],
)
def test_iterations_that_a_run_takes_at_least(budget: list[str], fewest: int | str | None, tmp_path: Path) -> None:
    config = toy_bench.configuration(tmp_path, *budget)
    found = dry_run(config, toy_bench.host())["iterations_at_least"]
    if fewest != "bound":
        assert found == fewest
        return
    options = config.algorithm.options
    assert found == ceil(1000 / (options.tasks_per_iteration * options.group_size * 8)) > 1
    outcome = run(config, toy_bench.host())
    rows = [json.loads(line) for line in (outcome.run / "metrics.jsonl").read_text().splitlines()]
    assert sum(row["kind"] == "train" for row in rows) >= found


def test_where_a_run_would_be(tmp_path: Path) -> None:
    config = toy_bench.configuration(tmp_path)
    for expected in ("1count-corridor-seed0", "1count-corridor-seed0-2"):
        shown = dry_run(config, toy_bench.host())["run"]
        with RunStore.create(tmp_path, config.experiment, "1count-corridor-seed0") as store:
            assert Path(shown).resolve() == store.path
        assert store.path.name == expected
