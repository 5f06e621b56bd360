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
PUBLISHED = {
    # environment: turns of an episode, tokens of a prompt, turns of a mini-batch, split of the evaluation
    "alfworld": (50, 2048, 256, "valid_seen"),
    "webshop": (15, 4096, 64, "test"),
}


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
        turns, prompt, mini_batch, split = PUBLISHED[config.env.name]
        assert (config.env.options.template, config.rollout.options.max_turns) == ("verl_agent", turns)
        optimization = config.algorithm.options.optimization
        assert optimization.learning_rate == (1e-5 if config.engine.options.lora_rank else 1e-6), run.name
        assert (config.evaluation.split, config.evaluation.episodes, config.evaluation.temperature) == (split, 128, 0.4)
        room = config.engine.options.max_context - config.rollout.options.max_new_tokens
        assert room >= prompt, "no room for the published prompt length"
        if "spo" not in recipe.stem:
            assert optimization.mini_batch_turns == mini_batch, run.name


def test_both_environments_have_the_same_six_algorithms_at_both_sizes() -> None:
    of = {recipe.stem: {run.config.algorithm.name for run in planned(recipe)} for recipe in RECIPES if "spo" not in recipe.stem}
    assert set(of) == {f"{env}_qwen2.5_{size}" for env in PUBLISHED for size in ("1.5b", "7b", "7b_lora")}
    assert all(names == {"threespo", "grpo", "gigpo", "hgpo", "ppo_row", "rloo"} for names in of.values())


def test_spo_has_two_gpus_for_training_and_six_for_rollouts_as_published() -> None:
    for size in ("0.8b", "2b"):
        for run in planned(ROOT / "recipes" / f"alfworld_qwen3.5_{size}_spo.yaml"):
            assert (run.config.engine.options.ranks, run.config.engine.options.rollout_ranks) == (2, 6)


def test_on_webshop_differences_are_not_divided_by_the_deviation() -> None:
    for run in planned(ROOT / "recipes" / "webshop_qwen2.5_1.5b.yaml"):
        by_std = getattr(run.config.algorithm.options, "normalise_by_std", None)
        assert by_std is {"threespo": False, "gigpo": False, "hgpo": False, "grpo": True}.get(run.config.algorithm.name, by_std), run.name


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
        trains, _, generates = gpus.partition(" + ")
        overrides = files[name.strip("`")].overrides
        assert f"engine.ranks={trains}" in overrides
        assert [text for text in overrides if text.startswith("engine.rollout_ranks")] == [f"engine.rollout_ranks={generates}"] * bool(generates)
