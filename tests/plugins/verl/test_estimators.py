"""verl's own trainer with our estimators, as its function ``compute_advantage`` calls them."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from threespo_bench.turns import TurnBatch

NAMES = ("grpo", "opo", "reinforce_pp", "reinforce_pp_baseline", "rloo")


def rewards_and_masks():
    import torch

    rng = np.random.default_rng(0)
    mask = torch.from_numpy(np.arange(6) < rng.integers(1, 7, size=(12, 1)))
    rewards = torch.zeros(12, 6)
    rewards[torch.arange(12), mask.sum(dim=1) - 1] = torch.from_numpy(rng.normal(size=12)).float()
    return rewards, mask.long(), np.array([f"prompt {i % 4}" for i in range(12)], dtype=object)


@pytest.mark.parametrize("name", NAMES)
def test_an_estimator_is_our_credit(rank, name):
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.trainer.ppo.ray_trainer import compute_advantage

    from threespo_bench.host import PluginHost

    rewards, mask, index = rewards_and_masks()
    data = DataProto.from_dict(tensors={"token_level_rewards": rewards, "response_mask": mask}, non_tensors={"uid": index})
    answer = compute_advantage(data, adv_estimator=f"threespo/{name}", config=OmegaConf.create({"gamma": 1.0}))
    made = PluginHost.discover().find("algorithms", name).load()
    turns = TurnBatch(
        group_id=index, traj_id=np.arange(12), step_id=np.zeros(12, int), step_reward=rewards.double().sum(dim=1).numpy(), response_mask=mask.bool().numpy()
    )
    expected = made(made.Config()).credit(turns).advantages
    np.testing.assert_allclose(answer.batch["advantages"].numpy(), expected, atol=1e-6)
    assert np.abs(expected).max() > 0.1


def test_options_and_what_is_no_option(rank):
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    from threespo_bench.errors import UsageError

    rewards, mask, index = rewards_and_masks()
    estimator = get_adv_estimator_fn("threespo/grpo")
    plain, _ = estimator(token_level_rewards=rewards, response_mask=mask, index=index, config={"threespo": {"normalise_by_std": False}})
    scaled, _ = estimator(token_level_rewards=rewards, response_mask=mask, index=index, config={})
    assert not np.allclose(plain.numpy(), scaled.numpy())
    with pytest.raises(UsageError, match=r"algorithm\.threespo\.normalize_by_std is no option of grpo"):
        estimator(token_level_rewards=rewards, response_mask=mask, index=index, config={"threespo": {"normalize_by_std": False}})
    with pytest.raises(UsageError, match="the prompt of each row"):
        estimator(token_level_rewards=rewards, response_mask=mask)


def test_verl_loads_the_add_on_by_itself_and_pays_nothing_for_it():
    """In a fresh process: after ``import verl`` none of ours is imported but the add-on; with verl's estimators come ours."""
    program = """
import sys, verl
assert "threespo_plugins.verl_engine.addon" in sys.modules
for heavy in ("threespo_bench.host", "threespo_bench.turns", "threespo_algorithms", "threespo_plugins.verl_engine.estimators", "verl.trainer.ppo.core_algos"):
    assert heavy not in sys.modules, heavy
from verl.trainer.ppo import core_algos
print([name for name in core_algos.ADV_ESTIMATOR_REGISTRY if str(name).startswith("threespo/")])
"""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("VERL_")}  # the entry point alone
    answer = subprocess.run([sys.executable, "-c", program], env=plain, capture_output=True, text=True, timeout=240, check=False)
    assert answer.returncode == 0, answer.stderr[-2000:]
    for name in NAMES:
        assert f"threespo/{name}" in answer.stdout


@pytest.mark.without_verl
def test_the_add_on_loads_where_verl_is_absent():
    program = "import sys; sys.modules['verl'] = None; import threespo_plugins.verl_engine.addon; print('fine')"
    plain = {name: value for name, value in os.environ.items() if not name.startswith("VERL_")}
    answer = subprocess.run([sys.executable, "-c", program], env=plain, capture_output=True, text=True, timeout=240, check=False)
    assert answer.stdout == "fine\n", answer.stderr[-2000:]
