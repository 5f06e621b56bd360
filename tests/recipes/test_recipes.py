"""The recipes for GPUs: every run of them composes, with the settings that they claim."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, table
from threespo_bench.experiment_file import read_experiment_file
from threespo_bench.experiment_plan import PlannedRun, plan
from threespo_bench.host import PluginHost

RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


@cache
def planned(recipe: Path) -> list[PlannedRun]:
    """The runs of the first seed; those of the others differ in the seed alone."""
    file = read_experiment_file(recipe)
    overrides = [*file.overrides, *file.budget]
    return plan(file.algorithms, file.environments, file.seeds[:1], PluginHost.discover(), overrides=overrides, experiment=file.name)


def test_there_are_recipes() -> None:
    assert RECIPES


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_run_composes(recipe: Path) -> None:
    runs = planned(recipe)
    assert len({run.name for run in runs}) == len(runs)
    for run in runs:
        config = run.config
        assert (config.engine.name, config.engine.options.device, config.engine.options.dtype) == ("verl", "cuda", "bfloat16")
        assert config.rollout.name in ("vllm", "sglang")
        assert (config.env.name, config.env.options.template, config.rollout.options.max_turns) == ("alfworld", "verl_agent", 50)
        assert config.algorithm.options.optimization.learning_rate == (1e-5 if config.engine.options.lora_rank else 1e-6), run.name
        assert (config.evaluation.split, config.evaluation.episodes, config.evaluation.temperature) == ("valid_seen", 128, 0.4)
        room = config.engine.options.max_context - config.rollout.options.max_new_tokens
        assert room >= 2048, "no room for the published prompt length"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_an_iteration_plays_as_many_episodes_as_published(recipe: Path) -> None:
    for run in planned(recipe):
        options = run.config.algorithm.options
        if run.config.algorithm.name not in ("threespo", "spo_stream"):  # a search has no such number; SPO's is published with another benchmark
            assert options.tasks_per_iteration * getattr(options, "group_size", 1) == 128, run.name


def test_the_page_lists_every_recipe() -> None:
    rows = table((ROOT / "recipes" / "README.md").read_text(encoding="utf-8"), "recipe", "algorithms", "GPUs")
    files = {recipe.name: read_experiment_file(recipe) for recipe in RECIPES}
    assert [row[0].strip("`") for row in rows] == list(files)
    for name, _, gpus in rows:
        assert f"engine.ranks={gpus}" in files[name.strip("`")].overrides
