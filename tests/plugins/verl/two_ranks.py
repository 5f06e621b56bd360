"""One rank of several: the same program on each. Arguments: rank, ranks, port, model folder, output folder."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np


def load(name):
    """A module of this folder: ``tests`` may be the name of an installed package."""
    specification = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def exercise(local_workers, recorded, folder, out, write=True):
    """Some updates of policy and critic; writes metrics and weights."""
    from threespo_algorithms.grpo import GRPO, GRPOConfig
    from threespo_bench.contracts.algorithm import Credit, Item, Preferences
    from threespo_bench.contracts.objective import Critic, Optimization, PolicyGradient, Preference
    from threespo_plugins.verl_engine.model_state import merged_tensors

    learner = local_workers.make_learner(folder, critic=True)
    turns = recorded.recorded_turns(lambda turns: np.full(turns.response_mask.shape, -4.0))
    turns.old_log_probs = np.where(turns.response_mask, learner.score(turns) + 0.1, 0.0)
    credit, step = GRPO(GRPOConfig()).credit(turns), Optimization(learning_rate=3e-4, mini_batch_turns=25)
    metrics = [learner.update(turns, credit, PolicyGradient(kl_coef=0.1, unit="trajectory"), step)]
    rows = [np.flatnonzero((turns.traj_id == number) & turns.real) for number in range(4)]
    items = [Item(part, np.ones(len(part))) for part in rows]
    preferences = Credit(np.zeros(turns.response_mask.shape), preferences=Preferences(items[:2], items[2:]))
    metrics.append(learner.update(turns, preferences, Preference(), step))
    one = Credit(credit.advantages, selected=np.arange(len(turns)) == 1)
    one.advantages[1] = np.where(turns.response_mask[1], 1.0, 0.0)
    metrics.append(learner.update(turns, one, PolicyGradient(), step))  # fewer rows than ranks
    turns.values = learner.values(turns)
    metrics.append(learner.update_critic(turns, Credit(credit.advantages, returns=turns.step_reward), Critic(learning_rate=1e-3)))
    learner.refresh_reference()
    learner.save(out / "state")
    reference = learner.score(turns, "reference")
    before = learner._workers.all("digest")[0]
    learner.update(turns, credit, PolicyGradient(), step)
    learner.load(out / "state")
    assert learner._workers.all("digest")[0] == before
    np.testing.assert_array_equal(learner.score(turns, "reference"), reference)
    weights = {name: tensor.numpy().copy() for name, tensor in merged_tensors(learner._workers.worker.actor.engine)}
    values = learner.values(turns)
    learner.export(out / "model")
    if write:
        (out / "metrics.json").write_text(json.dumps(metrics))
        np.savez(out / "arrays.npz", reference=reference, values=values, **weights)


if __name__ == "__main__":
    rank, ranks, port = (int(argument) for argument in sys.argv[1:4])
    helpers = load("local_workers")
    helpers.prepare(rank, ranks, port)
    exercise(helpers, load("recorded"), Path(sys.argv[4]), Path(sys.argv[5]), write=rank == 0)
