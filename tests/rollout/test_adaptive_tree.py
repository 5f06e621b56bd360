"""The search of 3SPO without 3SPO: order, budgets, known states, and what the algorithm is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.algorithms.scripted import Edges, ScriptedEnvironment, ScriptedPolicy
from tests.algorithms.scripted import context as scripted_context
from tests.rollout.players import Drawing, ReplayedHousehold, context, household
from threespo_bench.budget import Limits
from threespo_bench.contracts.algorithm import AlgorithmConfig, Credit
from threespo_bench.contracts.engine import Generation
from threespo_bench.contracts.environment import Task
from threespo_bench.contracts.sampler import RolloutContext
from threespo_bench.rollout.adaptive_tree import AdaptiveTreeSampler, TreeAlgorithm
from threespo_bench.turns import TurnBatch
from threespo_envs.household.environment import HouseholdEnvironment


class Told(TreeAlgorithm):
    """Asks for fixed numbers of samples, ranks by a given function, and writes down all that it is told."""

    def __init__(self, samples: dict[str, int] | int = 2, rank: Callable[[TurnBatch], Any] | None = None, **options: Any) -> None:
        super().__init__(AlgorithmConfig())
        self._samples, self._rank = samples, rank
        settings = {"env_steps_per_tree": 1000, "leaves_per_tree": 1000, "graph_search": False, "search_key": "state"} | options
        self.sampler = AdaptiveTreeSampler(**settings)
        self.asked: list[tuple[str, bool]] = []
        self.not_solved: list[tuple[str, tuple[str, ...]]] = []
        self.log: list[str] = []

    def samples(self, task_key: str, key: str, root: bool) -> int:
        self.asked.append((key, root))
        return self._samples if isinstance(self._samples, int) else self._samples.get(key, 2)

    def annotate(self, turns: TurnBatch) -> None:
        self.log.append("annotate")
        turns.extras["noted"] = np.arange(len(turns))

    def unsolved(self, task_key: str, keys: tuple[str, ...]) -> None:
        self.not_solved.append((task_key, keys))

    def rank(self, turns: TurnBatch) -> np.ndarray:
        self.log.append("rank")
        return np.zeros(len(turns)) if self._rank is None else np.asarray(self._rank(turns), float)

    def credit(self, turns: TurnBatch) -> Credit:
        raise NotImplementedError


class Turning(ScriptedPolicy):
    """Answers 0, 1, 0, 1 ... in every state."""

    async def generate(self, messages: Any, seed: int, sampling: Any, prefix: Any = ()) -> Generation:
        answer = await super().generate(messages, seed, sampling)
        return replace(answer, text=str(int(answer.text) % 2))


def waves(algorithm: Told, run: RolloutContext) -> list[TurnBatch]:
    async def gather() -> list[TurnBatch]:
        found = []
        async for turns in algorithm.collect(run):
            algorithm.log.append("learn")
            found.append(turns)
        return found

    return asyncio.run(gather())


def grow(edges: Edges, algorithm: Told, env_steps: int = 1000, policy: ScriptedPolicy | None = None) -> tuple[list[TurnBatch], ScriptedPolicy]:
    policy = policy or ScriptedPolicy()
    return waves(algorithm, scripted_context(ScriptedEnvironment(edges, "r"), policy, env_steps=env_steps)), policy


TREE: Edges = {
    "r": [("a", None), ("b", None)],
    "a": [("aa", None), ("won", True)],
    "b": [("lost", False), ("bb", None)],
    "aa": [("lost", False), ("lost", False)],
    "bb": [("won", True), ("won", True)],
}


# ---- the order of the search


def test_the_best_child_is_expanded_next_and_the_others_wait() -> None:
    prefer = {"a": 0.1, "b": 0.9, "aa": 5.0, "bb": 0.0}
    found, policy = grow(TREE, Told(rank=lambda turns: [prefer.get(state, 9) for state in turns.next_anchor_obs]))
    assert policy.order == ["r", "b", "bb", "a", "aa"]
    assert [sorted(set(turns.group_id)) for turns in found] == [["0/0"], ["0/0/1"], ["0/0/1/1"], ["0/0/0"], ["0/0/0/0"]]


def test_among_equals_the_lower_sample_comes_first() -> None:
    _, policy = grow(TREE, Told())
    assert policy.order == ["r", "a", "aa", "b", "bb"]


def test_the_learner_has_its_turn_between_two_waves() -> None:
    algorithm = Told()
    grow(TREE, algorithm)
    assert algorithm.log == ["annotate", "rank", "learn"] * 5, "ranks are taken before the outcomes of a wave are learned from"


def test_rows_name_the_state_they_were_sampled_in_and_their_own_edge() -> None:
    found, _ = grow(TREE, Told())
    second = found[1]
    assert second.group_id.tolist() == ["0/0/0"] * 2
    assert second.traj_id.tolist() == ["0/0/0/0", "0/0/0/1"]
    assert second.step_id.tolist() == [1, 1]
    assert (second.anchor_obs.tolist(), second.next_anchor_obs.tolist()) == (["a", "a"], ["aa", "won"])
    assert second.extras["path"].tolist() == [(), ("r", "a", "won")], "the path is there where a trajectory ended"
    assert second.extras["noted"].tolist() == [0, 1]


# ---- known states


LOOP: Edges = {"r": [("r", None), ("a", None)], "a": [("r", None), ("r", None)]}


def test_a_search_of_the_graph_expands_a_state_once() -> None:
    algorithm = Told(graph_search=True)
    found, policy = grow(LOOP, algorithm)
    assert policy.order == ["r", "a"]
    assert sum(map(len, found)) == 4
    assert algorithm.sampler.diagnostics()["tree/repeated_states"] == 3


def test_a_search_of_the_tree_expands_it_again_and_again_down_to_the_step_limit() -> None:
    algorithm = Told(graph_search=False, env_steps_per_tree=60)
    found, _ = grow(LOOP, algorithm, policy=Turning())
    assert sum(map(len, found)) == 60
    assert any(turns.truncated.any() for turns in found)
    assert algorithm.sampler.diagnostics()["tree/repeated_states"] == 0


def test_first_on_path_is_about_this_path_only() -> None:
    edges: Edges = {"r": [("a", None), ("b", None)], "a": [("b", None), ("r", None)], "b": [("won", True), ("b", None)]}
    found, _ = grow(edges, Told(graph_search=True))
    first = {turns.anchor_obs[0]: turns.extras["first_on_path"].tolist() for turns in found}
    assert first["r"] == [True, True]
    assert first["a"] == [True, False], "b was seen in this tree, but not on this path"
    assert first["b"] == [True, False]


# ---- how many samples


def test_a_state_given_up_is_not_sampled() -> None:
    algorithm = Told(samples={"a": 0})
    _, policy = grow(TREE, algorithm)
    assert policy.order == ["r", "b", "bb"]
    row = algorithm.sampler.diagnostics()
    assert row["tree/states_popped"] == 4
    assert row["tree/truncated_share"] == row["tree/samples_0"] == 0.25
    assert row["tree/pruned_roots"] == 0
    assert row["tree/mean_samples"] == 1.5


def test_a_root_given_up_is_counted() -> None:
    algorithm = Told(samples=0)
    found, policy = grow(TREE, algorithm)
    assert (found, policy.order) == ([], [])
    assert algorithm.sampler.diagnostics()["tree/pruned_roots"] == 1
    assert algorithm.asked == [("r", True)]


def test_one_sample_goes_on_without_comparison() -> None:
    algorithm = Told(samples=1)
    found, policy = grow(TREE, algorithm)
    assert policy.order == ["r", "a", "aa"]
    assert [len(turns) for turns in found] == [1, 1, 1]
    assert algorithm.sampler.diagnostics()["tree/single_sample_share"] == 1


def test_no_root_is_asked_for_but_the_first_state() -> None:
    algorithm = Told(env_steps_per_tree=30)
    grow(LOOP, algorithm, policy=Turning())
    assert [root for _, root in algorithm.asked] == [True] + [False] * (len(algorithm.asked) - 1)
    assert algorithm.asked[1:].count(("r", False)) > 0, "the same state further down is no root"


# ---- budgets


@pytest.mark.parametrize(("limit", "steps"), [(1, 2), (2, 2), (3, 4), (5, 6), (1000, 10)])
def test_environment_steps_of_a_tree(limit: int, steps: int) -> None:
    found, _ = grow(TREE, Told(env_steps_per_tree=limit))
    assert sum(map(len, found)) == steps


@pytest.mark.parametrize(("limit", "leaves"), [(1, 1), (2, 3), (3, 3), (4, 4), (1000, 6)])
def test_leaves_of_a_tree(limit: int, leaves: int) -> None:
    found, _ = grow(TREE, Told(leaves_per_tree=limit))
    assert sum(bool(path) for turns in found for path in turns.extras["path"]) == leaves


def test_the_run_s_budget_ends_the_search_between_two_waves() -> None:
    found, _ = grow(TREE, Told(), env_steps=3)
    assert [len(turns) for turns in found] == [2, 2]


def test_what_is_spent_is_counted() -> None:
    environment, ticks = household(), []
    run = context(environment, Drawing(), environment.tasks("train")[:3], tick=lambda: ticks.append(1))
    found = waves(Told(env_steps_per_tree=20), run)
    assert run.budget.spent.env_steps == len(ticks) == sum(map(len, found)) > 40
    assert run.budget.spent.tokens == sum(turns.response_mask.sum() for turns in found)
    assert run.budget.spent.prompt_tokens == sum(len(ids) for turns in found for ids in turns.prompt_ids)
    assert run.budget.spent.episodes == sum((turns.terminated | turns.truncated).sum() for turns in found)


# ---- a search without an ending


ENDLESS: Edges = {name: [(f"{name}0", None), (f"{name}1", None)] for name in ("r", "r0", "r1", "r00", "r01", "r10", "r11")}


def test_a_search_without_an_ending_says_so_once_with_the_path_it_followed() -> None:
    algorithm = Told(env_steps_per_tree=6)
    grow(ENDLESS, algorithm)
    assert algorithm.not_solved == [("scripted", ("r", "r0", "r00"))]


def test_giving_up_everything_is_a_search_without_an_ending_too() -> None:
    algorithm = Told(samples={"r0": 0, "r1": 0})
    grow(ENDLESS, algorithm)
    assert algorithm.not_solved == [("scripted", ("r",))]


def test_one_leaf_is_an_ending_even_if_it_failed() -> None:
    algorithm = Told(leaves_per_tree=1)
    grow({"r": [("lost", False), ("a", None)]}, algorithm)
    assert algorithm.not_solved == []
    assert algorithm.sampler.diagnostics()["tree/solved_share"] == 0


def test_solved_trees_are_counted() -> None:
    algorithm = Told()
    grow(TREE, algorithm)
    assert algorithm.sampler.diagnostics()["tree/solved_share"] == 1


def test_a_search_that_the_run_s_budget_cut_says_nothing() -> None:
    algorithm = Told()
    grow(ENDLESS, algorithm, env_steps=4)
    assert algorithm.not_solved == []


# ---- in a real household


def test_trees_grow_side_by_side_and_their_noise_is_their_own() -> None:
    environment = household()
    tasks = environment.tasks("train")[:3]
    together = waves(Told(env_steps_per_tree=12), context(environment, Drawing(), tasks))
    assert {group.split("/")[1] for group in together[0].group_id} == {"0", "1", "2"}
    alone = waves(Told(env_steps_per_tree=12), context(environment, Drawing(), tasks[:1]))
    first = [turns.take(np.array([group.split("/")[1] == "0" for group in turns.group_id])) for turns in together]
    for one, other in zip(first, alone, strict=True):
        assert (one.traj_id.tolist(), one.extras["command"].tolist()) == (other.traj_id.tolist(), other.extras["command"].tolist())


@pytest.mark.parametrize("kind", [HouseholdEnvironment, ReplayedHousehold])
def test_every_edge_is_what_playing_its_path_gives(kind: type[HouseholdEnvironment]) -> None:
    environment = household(kind)
    task = environment.tasks("train")[4]
    found = TurnBatch.concatenate(waves(Told(samples=3, env_steps_per_tree=60, graph_search=True), context(environment, Drawing(), [task])))
    commands = dict(zip(found.traj_id, found.extras["command"], strict=True))
    live = household().spawn()
    for row in range(len(found)):
        live.reset(task, 0)
        parts = found.traj_id[row].split("/")
        for length in range(3, len(parts) + 1):
            step = live.step(commands["/".join(parts[:length])])
        assert (step.observation.text, live.anchor("state")) == (found.extras["next_observation"][row], found.next_anchor_obs[row])
        assert (step.reward, step.success) == (found.step_reward[row], found.success[row])


def test_equal_searches_are_equal_and_replaying_changes_nothing() -> None:
    batches = []
    for kind in (HouseholdEnvironment, HouseholdEnvironment, ReplayedHousehold):
        environment = household(kind)
        batches.append(waves(Told(env_steps_per_tree=30, graph_search=True), context(environment, Drawing(), environment.tasks("train")[:2])))
    for other in batches[1:]:
        for one, two in zip(batches[0], other, strict=True):
            assert np.array_equal(one.response_ids, two.response_ids)
            assert one.next_anchor_obs.tolist() == two.next_anchor_obs.tolist()
            assert one.traj_id.tolist() == two.traj_id.tolist()


def test_an_empty_iteration_and_one_without_budget_yield_nothing() -> None:
    environment = household()
    assert waves(Told(), context(environment, Drawing(), [])) == []
    spent = context(environment, Drawing(), [*environment.tasks("train")[:1]], limits=Limits(env_steps=1))
    spent.budget.charge(env_steps=1)
    assert waves(Told(), spent) == []


def test_the_task_stands_in_every_row() -> None:
    environment = household()
    tasks: list[Task] = list(environment.tasks("train")[5:7])
    found = waves(Told(env_steps_per_tree=4), context(environment, Drawing(), tasks))
    for turns in found:
        assert [tasks[int(group.split("/")[1])].key for group in turns.group_id] == turns.task_key.tolist()
