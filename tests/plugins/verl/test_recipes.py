"""What the recipes ask of verl is in verl's own schema."""

import pytest

from tests.recipes.test_recipes import RECIPES, planned
from threespo_bench.contracts.rollout import Rollout
from threespo_bench.host import PluginHost
from threespo_plugins.verl_engine.settings import verl_config


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_verl_takes_the_settings(recipe, rank, model):
    host = PluginHost.discover()
    for run in planned(recipe):
        options, chosen = run.config.engine.options, run.config.rollout
        rollout = Rollout(chosen.name, chosen.options, host.find("rollouts", chosen.name).load())
        whole = verl_config(options, model, options.max_context, rollout)
        assert whole.actor_rollout_ref.rollout.name == chosen.name
        assert whole.actor_rollout_ref.rollout.max_model_len == options.max_context
        assert whole.actor_rollout_ref.model.lora_rank == options.lora_rank
        assert whole.trainer.n_gpus_per_node == options.ranks
        servers = whole.actor_rollout_ref.rollout
        assert servers.nnodes * servers.n_gpus_per_node == options.rollout_ranks
        assert servers.checkpoint_engine.backend == ("nccl" if options.rollout_ranks else "naive")
