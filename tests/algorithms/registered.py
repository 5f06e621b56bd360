"""Every registered algorithm as its YAML configures it, and for each a random batch with all that it reads.

A new algorithm is covered as soon as it is registered. If it reads columns that samplers do not always write, it needs a line in :data:`COLUMNS`.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from threespo_bench.config.algorithm import Choice, make_algorithms
from threespo_bench.config.defaults import load_defaults
from threespo_bench.contracts.algorithm import Algorithm
from threespo_bench.host import PluginHost
from threespo_bench.turns import TurnBatch, codes, object_column

WIDTH, STATES, DIMENSIONS = 5, 4, 6
Extend = Callable[[TurnBatch, np.random.Generator], None]


@lru_cache
def host() -> PluginHost:
    return PluginHost.discover()


NAMES = tuple(sorted(contribution.name for contribution in host().algorithms.values() if contribution.owner == "threespo-bench"))
PRESETS = tuple(
    f"{name}@{preset}" for name in NAMES for preset in sorted(load_defaults(host().find("algorithms", name), "algorithm").presets) if preset != name
)
"""All presets that are not the defaults of an algorithm, as ``NAME@PRESET``."""


class MeanOfLabels:
    """A stand-in for TabPFN's regressor."""

    def __init__(self, **options: Any) -> None:
        pass

    def fit(self, features: np.ndarray, labels: np.ndarray) -> MeanOfLabels:
        self.mean = labels.mean()
        return self

    def predict(self, features: np.ndarray) -> np.ndarray:
        return self.mean + features[:, 0]


@lru_cache
def configured(label: str) -> Algorithm:
    """A fresh algorithm with the defaults of its YAML, or with a preset (``grpo@reference``). Shared: whoever changes it copies it."""
    name, _, preset = label.partition("@")
    with pytest.MonkeyPatch.context() as patch:
        tabpfn = ModuleType("tabpfn")
        tabpfn.TabPFNRegressor = MeanOfLabels  # type: ignore[attr-defined]
        patch.setitem(sys.modules, "tabpfn", tabpfn)
        overrides = [f"tabpfn_weights={__file__}"] if name == "t2spo" else []
        return make_algorithms([Choice(label, name, preset or None)], overrides, host())[label]


@lru_cache
def experienced(label: str) -> Algorithm:
    """The algorithm with some memory, where it has one that credit depends on. Shared: its credit changes nothing."""
    algorithm = copy.deepcopy(configured(label))
    if hasattr(algorithm, "memory") and hasattr(algorithm, "regressor"):
        for seed in range(4):
            algorithm.observe(batch(label, seed, [[4] * 8] * 4), lambda turns: np.zeros(turns.response_mask.shape))
        assert len(algorithm.memory) >= algorithm.config.minimum_support
    return algorithm


def batch(label: str, seed: int, shape: Sequence[Sequence[int]]) -> TurnBatch:
    """A random batch for the algorithm. shape: for each group the numbers of turns of its trajectories."""
    rng = np.random.default_rng(seed)
    turns = played(rng, shape)
    COLUMNS.get(label, COLUMNS.get(label.partition("@")[0], nothing))(turns, rng)
    return turns


def played(rng: np.random.Generator, shape: Sequence[Sequence[int]]) -> TurnBatch:
    """Random episodes of a few states, with the columns that every sampler writes, and the log-probabilities of a reference."""
    rows = [(g, t, step, step == turns - 1) for g, trajectories in enumerate(shape) for t, turns in enumerate(trajectories) for step in range(turns)]
    group, trajectory, step, last = (np.array(column) for column in zip(*rows, strict=True))
    number = len(rows)
    outcome = rng.choice(["won", "failed", "cut"], sum(map(len, shape)))[codes(object_column(list(zip(group, trajectory, strict=True))))]
    state = rng.integers(0, STATES, (2, number))
    mask = np.arange(WIDTH) < rng.choice([0, 1, 2, 3, 4, 5], number, p=[0.05, 0.25, 0.2, 0.2, 0.15, 0.15])[:, None]
    log_probs = np.where(mask, -rng.exponential(1.0, mask.shape), 0.0)
    names = [object_column([f"s{value}" for value in states]) for states in state]
    return TurnBatch(
        group_id=object_column([f"0/{g}" for g in group]), traj_id=object_column([f"0/{g}/{t}" for g, t in zip(group, trajectory, strict=True)]),
        step_id=step, step_reward=np.where(last & (outcome == "won"), 10.0, rng.choice([0.0, 0.0, 1.0], number)), response_mask=mask,
        task_key=object_column([f"task-{g}" for g in group]), anchor_obs=names[0], next_anchor_obs=names[1], action_valid=rng.random(number) < 0.8,
        terminated=last & (outcome != "cut"), truncated=last & (outcome == "cut"), success=last & (outcome == "won"),
        policy_version=np.zeros(number), response_ids=np.where(mask, rng.integers(0, 9, mask.shape), 0), old_log_probs=log_probs,
        rollout_log_probs=log_probs.copy(), ref_log_probs=log_probs - np.where(mask, rng.normal(0, 0.2, mask.shape), 0.0),
        prompt_ids=object_column([np.arange(2 + value, dtype=np.int32) for value in state[0]]), padding=np.zeros(number, bool),
        extras={
            "observation": names[0].copy(), "next_observation": names[1].copy(),
            "command": object_column([f"go {value}" for value in rng.integers(0, 3, number)]),
        },
    )  # fmt: skip


# What algorithms read beyond the columns above.


def nothing(turns: TurnBatch, rng: np.random.Generator) -> None:
    pass


def with_values(turns: TurnBatch, rng: np.random.Generator) -> None:
    """A critic's values of every token and of the states after the turns."""
    turns.values = np.where(turns.response_mask, rng.normal(2, 3, turns.response_mask.shape), 0.0)
    turns.extras["next_value"] = rng.normal(2, 3, len(turns))


def with_turn_values(turns: TurnBatch, rng: np.random.Generator) -> None:
    """Values of the states before and after the turns."""
    turns.values, turns.extras["next_value"] = rng.uniform(0, 10, (2, len(turns)))


def with_segment_values(turns: TurnBatch, rng: np.random.Generator) -> None:
    """Values before some of the tokens, NaN before all others."""
    asked = turns.response_mask & (rng.random(turns.response_mask.shape) < 0.4)
    turns.values = np.where(asked, rng.uniform(0, 10, asked.shape), np.nan)


def with_value_logits(turns: TurnBatch, rng: np.random.Generator) -> None:
    for name in ("value_logit", "action_value_logit", "next_value_logit"):
        turns.extras[name] = rng.normal(0, 4, len(turns))


def with_dispatch_value(turns: TurnBatch, rng: np.random.Generator) -> None:
    """A success rate for each trajectory."""
    turns.extras["dispatch_value"] = _for_each(turns.traj_id, rng.uniform(0, 1, len(turns)))


def with_baseline_return(turns: TurnBatch, rng: np.random.Generator) -> None:
    """The return of a greedy episode of each task."""
    turns.extras["baseline_return"] = _for_each(turns.group_id, rng.choice([0.0, 10.0], len(turns)))


def with_history(turns: TurnBatch, rng: np.random.Generator) -> None:
    """Each turn an edge of a search, and what 3SPO's history knows of the state that a group is the expansion of, and of each child."""
    number = len(turns)
    turns.traj_id = object_column([f"{name}/{step}" for name, step in zip(turns.traj_id, turns.step_id, strict=True)])
    here, there = _for_each(turns.group_id, rng.integers(0, 9, number)), rng.integers(0, 9, number)
    turns.extras |= {"known_total": here, "known_won": here // 2, "next_known_total": there, "next_known_won": there // 3}
    turns.extras |= {"clock": np.full(number, 20), "first_on_path": rng.random(number) < 0.5}
    turns.extras["path"] = object_column([("s0", state) if ended else () for state, ended in zip(turns.next_anchor_obs, turns.terminated, strict=True)])


def with_history_and_values(turns: TurnBatch, rng: np.random.Generator) -> None:
    with_history(turns, rng)
    with_values(turns, rng)


def with_embeddings(turns: TurnBatch, rng: np.random.Generator) -> None:
    """A vector of each observation, the same in all batches."""
    vectors = np.random.default_rng(9).normal(size=(STATES, DIMENSIONS))
    turns.extras["embedding"] = turns.extras["prompt_embedding"] = object_column([vectors[int(text[1:])] for text in turns.extras["observation"]])


def with_edges(turns: TurnBatch, rng: np.random.Generator) -> None:
    """Values and success rates at the end of each trajectory's edge, and their means at its beginning."""
    for name, most in (("value", 10.0), ("success", 1.0)):
        of_edges = _for_each(turns.traj_id, rng.choice([0.0, most / 3, most], len(turns)))
        group, first = codes(turns.group_id), np.unique(codes(turns.traj_id), return_index=True)[1]
        means = np.bincount(group[first], weights=of_edges[first]) / np.bincount(group[first])
        turns.extras[f"edge_{name}"], turns.extras[f"parent_{name}"] = of_edges, means[group]


def with_pairs(turns: TurnBatch, rng: np.random.Generator) -> None:
    """The trajectories of a group, two by two: the first is preferred to the second."""
    branch = np.array([int(name.rpartition("/")[2]) for name in turns.traj_id])
    turns.extras["pair"], turns.extras["preferred"] = codes(turns.group_id) * 10 + branch // 2, branch % 2 == 0


COLUMNS: dict[str, Extend] = {
    "dpo_offline": with_pairs, "ppo": with_values, "ppo_row": with_values, "ppo_turn": with_values,
    "progpo@semantic": with_embeddings, "remax": with_baseline_return,
    "sapo_autoreg": with_value_logits, "spo_segment_chain": with_segment_values, "spo_segment_tree": with_edges, "spo_stream": with_dispatch_value,
    "spopp": with_dispatch_value, "t2spo": with_embeddings, "t2spo_knn": with_embeddings, "threespo": with_history, "threespo_dpo": with_history,
    "threespo_ppo": with_history_and_values, "vineppo": with_turn_values,
}  # fmt: skip
"""How the batch of an algorithm, or of one of its presets, differs from :func:`played`; one without an entry gets that."""


def _for_each(ids: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The same one of the values for all rows of equal id."""
    return values[codes(ids)]
