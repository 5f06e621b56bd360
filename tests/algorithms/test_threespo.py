"""3SPO against the worked numbers of the specification: score table, group example, and the search of the paper's figure 2."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.algorithms.scripted import Edges, ScriptedEnvironment, ScriptedPolicy, context
from threespo_algorithms.state_history import StateHistory, novelty_weight, state_score
from threespo_algorithms.threespo import ThreeSPO, ThreeSPOConfig
from threespo_bench.errors import UsageError
from threespo_bench.turns import TurnBatch

SCORES = [  # N_success, N_total, t, alpha, S, n, omega
    (0, 0, 1, 50, 1.0, 8, 0.5),
    (3, 10, 1, 50, 1.0, 8, 0.183940),
    (0, 5, 20, 50, 1.0, 8, 0.303265),
    (0, 9, 20, 50, 1.0, 8, 0.203285),
    (0, 10, 20, 50, 0.0, 0, 0.183940),
    (1, 10, 20, 50, 3.125005e-07, 1, 0.183940),
    (1, 10, 2, 50, 0.031250, 1, 0.183940),
    (1, 11, 20, 50, 0.0, 0, 0.166436),
    (2, 12, 20, 50, 1.439078e-11, 1, 0.150597),
    (10, 10, 4_000_000, 50, np.finfo(float).tiny, 1, 0.183940),  # the reference underflows to 0 and gives the state up
    (4, 10, 20, 1, 0.301709, 3, 0.183940),
    (2, 10, 20, 1, 0.549280, 5, 0.183940),
    (9, 10, 20, 1, 0.067464, 1, 0.183940),
]


@pytest.mark.parametrize(("won", "total", "clock", "alpha", "score", "samples", "omega"), SCORES)
def test_score_table(won, total, clock, alpha, score, samples, omega):
    algorithm = ThreeSPO(ThreeSPOConfig(alpha=alpha, xi=10, zeta=0.1, omega_k=0.1, max_samples=8))
    algorithm.history.clock = clock
    algorithm.history._counts["t\x1fs"] = [total, won]
    computed = state_score(np.array([total]), np.array([won]), clock, alpha, 10, 0.1, 1e-6, truncate=True)[0]
    assert computed == pytest.approx(score, rel=1e-6, abs=5e-7 if score > 1e-3 else 0)
    assert algorithm.samples("t", "s", root=False) == samples
    assert novelty_weight(np.array([total]), 0.1)[0] == pytest.approx(omega, abs=1e-6)


def group_example(**options) -> tuple[ThreeSPO, TurnBatch]:
    """Parent s1 (4 of 10) with children s2 (2 of 5), s3 (4 of 5), s1 again, and the unseen s9 that succeeds; alpha 1, t = 20."""
    algorithm = ThreeSPO(ThreeSPOConfig(**{"alpha": 1, "xi": 10, "novelty": "changed", "unseen_child": "one", "minimum_std": 0, **options}))
    algorithm.history.clock = 20
    algorithm.history._counts = {"t\x1fs1": [10, 4], "t\x1fs2": [5, 2], "t\x1fs3": [5, 4]}
    children = ["s2", "s3", "s1", "s9"]
    turns = TurnBatch(
        group_id=["g"] * 4, traj_id=list("abcd"), step_id=np.zeros(4), step_reward=np.array([0, 0, 0, 10.0]), response_mask=np.ones((4, 2), bool),
        task_key=["t"] * 4, anchor_obs=["s1"] * 4, next_anchor_obs=children, action_valid=np.ones(4, bool), success=np.array([0, 0, 0, 1]),
        extras={"observation": np.array(["s1"] * 4, object), "next_observation": np.array(children, object), "first_on_path": np.array([1, 1, 0, 1], bool)},
    )  # fmt: skip
    algorithm.annotate(turns)
    return algorithm, turns


def test_group_example():
    algorithm, turns = group_example()
    np.testing.assert_allclose(algorithm.transition_reward(turns), [0.183940, 0.250527, 0.0, 0.463238], atol=1e-6)
    np.testing.assert_allclose(algorithm.credit(turns).advantages[:, 0], [-0.211704, 0.136484, -1.173524, 1.248745], atol=1e-5)
    algorithm, turns = group_example(normalise_by_std=False)
    np.testing.assert_allclose(algorithm.credit(turns).advantages[:, 1], [-0.040486, 0.026101, -0.224426, 0.238811], atol=1e-6)


def test_group_diagnostics_tell_the_size_of_groups():
    algorithm, turns = group_example()
    turns.group_id[:] = ["g", "g", "g", "alone"]
    found = algorithm.credit(turns).diagnostics
    assert (found["group/groups"], found["group/mean_size"], found["group/singleton_share"]) == (2, 2.0, 0.25)


def test_success_is_zero_or_one_whatever_the_environment_pays():
    algorithm, turns = group_example()
    richer = TurnBatch(**{**vars(turns), "step_reward": turns.step_reward * 100})
    np.testing.assert_array_equal(algorithm.transition_reward(turns), algorithm.transition_reward(richer))


def test_neutral_unseen_child_is_not_charged():
    algorithm, turns = group_example(unseen_child="parent")
    reward = algorithm.transition_reward(turns)
    assert reward[3] == pytest.approx(0.183940 + 0.5, abs=1e-6)


def test_an_end_without_success_is_neither_novel_nor_a_discovery():
    algorithm, turns = group_example(unseen_child="parent", novelty="never_seen")
    discovered = algorithm.transition_reward(turns)[3]
    assert discovered > 0.5 * turns.success[3]  # an unseen child: novelty, and its parent's score
    turns.success[3] = False
    turns.terminated = np.array([False, False, False, True])
    known, won, clock = turns.extras["known_total"][3], turns.extras["known_won"][3], turns.extras["clock"][3]
    here = state_score(known, won, clock, 1, 10, 0.1, 1e-6, truncate=False)
    weight = novelty_weight(known, algorithm.config.omega_k, algorithm.config.omega_max)
    assert here < 1
    assert algorithm.transition_reward(turns)[3] == pytest.approx((0.5 - weight) * (here - 1))
    turns.terminated[3] = False  # the step limit is no such end
    assert algorithm.transition_reward(turns)[3] == pytest.approx(discovered - 0.5)


def test_invalid_actions_leave_the_group():
    algorithm, turns = group_example()
    turns.action_valid[2] = False
    credit = algorithm.credit(turns)
    assert not credit.selected[2] and (credit.advantages[2] == 0).all()
    rewards = algorithm.transition_reward(turns)[[0, 1, 3]]
    expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
    np.testing.assert_allclose(credit.advantages[[0, 1, 3], 0], expected, rtol=1e-12)


def test_a_lone_child_is_not_learned_from():
    algorithm, turns = group_example(invalid_actions="penalise_after")
    turns.group_id[:] = ["g", "g", "g", "alone"]
    turns.action_valid[3] = False
    credit = algorithm.credit(turns)
    assert credit.selected.tolist() == [True, True, True, False] and (credit.advantages[3] == 0).all()


def test_penalty_after_normalisation_reaches_siblings_that_fail_alike():
    algorithm, turns = group_example(invalid_actions="penalise_after", invalid_action_penalty=0.6)
    turns.next_anchor_obs[:], turns.extras["first_on_path"][:], turns.success[:], turns.action_valid[:] = "s1", False, False, False
    turns.extras["next_observation"][:] = "s1"
    algorithm.annotate(turns)
    assert algorithm.credit(turns).advantages[:, 0].tolist() == [-0.6] * 4


def test_groups_that_hardly_differ_give_a_small_update():
    algorithm, turns = group_example(minimum_std=10.0)
    rewards = algorithm.transition_reward(turns)
    np.testing.assert_allclose(algorithm.credit(turns).advantages[:, 0], (rewards - rewards.mean()) / (10 + 1e-6), rtol=1e-12)


FIGURE_2: Edges = {
    "s1": [("s2", None), ("s3", None)],
    "s2": [("s6", None), ("s5", True)],
    "s6": [("s5", True), ("s8", False)],
    "s3": [("s5", True), ("s7", None), ("s5", True)],
    "s7": [("s5", True), ("s5", True), ("s6", False)],
}


def no_score(turns: TurnBatch) -> np.ndarray:
    raise AssertionError("3SPO asks for no log-probabilities")


class ScriptedThreeSPO(ThreeSPO):
    """Samples as many actions as the figure draws."""

    def samples(self, task_key: str, key: str, root: bool) -> int:
        return len(FIGURE_2[key])


def search(**options) -> tuple[ScriptedThreeSPO, ScriptedPolicy, list[TurnBatch]]:
    algorithm = ScriptedThreeSPO(ThreeSPOConfig(novelty="changed", graph_search=False, leaf_unit="leaf", success_discount=1.0, **options))
    policy, environment, waves = ScriptedPolicy(), ScriptedEnvironment(FIGURE_2, "s1"), []

    async def run() -> None:
        async for turns in algorithm.collect(context(environment, policy)):
            waves.append(turns)
            algorithm.credit(turns)
            algorithm.observe(turns, no_score)

    asyncio.run(run())
    return algorithm, policy, waves


def test_search_of_figure_2():
    algorithm, policy, waves = search()
    assert policy.order == ["s1", "s2", "s6", "s3", "s7"]
    assert [len(wave) for wave in waves] == [2, 2, 2, 3, 3]
    assert sum(bool(path) for wave in waves for path in wave.extras["path"]) == 8
    counts = {key.split("\x1f")[1]: tuple(pair) for key, pair in algorithm.history._counts.items()}
    assert counts == {"s1": (8, 6), "s2": (3, 2), "s3": (5, 4), "s5": (6, 6), "s6": (3, 1), "s7": (3, 2), "s8": (1, 0)}
    assert algorithm.history.clock == 9


def test_search_of_figure_2_without_the_terminal_state():
    algorithm, _, _ = search(count_terminal=False)
    counts = {key.split("\x1f")[1]: tuple(pair) for key, pair in algorithm.history._counts.items()}
    assert counts == {"s1": (8, 6), "s2": (3, 2), "s3": (5, 4), "s6": (2, 1), "s7": (3, 2)}


def test_statistics_are_visible_to_the_next_wave():
    _, _, waves = search()
    at_s7 = waves[4]  # s7's own wave: five trajectories have ended, two of them in s3's wave through s5
    assert at_s7.extras["known_total"].tolist() == [0, 0, 0] and at_s7.extras["next_known_total"].tolist() == [4, 4, 2]


def test_keys_are_scoped_by_task_unless_told_otherwise():
    for scope, expected in (("task", 0), ("global", 1)):
        algorithm = ThreeSPO(ThreeSPOConfig(key_scope=scope))
        algorithm.history.record([algorithm._scoped("task a", "Nothing happens.")], success=False)
        assert algorithm.history.lookup([algorithm._scoped("task b", "Nothing happens.")])[0][0] == expected


def test_root_is_never_given_up():
    algorithm = ThreeSPO(ThreeSPOConfig(xi=10))
    algorithm.history._counts["t\x1fs"] = [50, 0]
    assert algorithm.samples("t", "s", root=False) == 0
    assert algorithm.samples("t", "s", root=True) == 2


def test_state_survives_the_checkpoint():
    algorithm, _, _ = search()
    copy = ThreeSPO(algorithm.config)
    copy.load_state_dict(algorithm.state_dict())
    assert copy.history._counts == algorithm.history._counts and copy.history.clock == algorithm.history.clock
    assert copy.diagnostics()["state/unique_ratio"] == algorithm.diagnostics()["state/unique_ratio"]


def test_reading_does_not_grow_the_table():
    history = StateHistory()
    history.lookup(["a", "b"])
    assert len(history) == 0 and history.total("a") == 0


@pytest.mark.parametrize(
    "option",
    [{"max_samples": 1}, {"alpha": -1}, {"novelty": "new"}, {"key_scope": "all"}, {"env_steps_per_tree": 0}, {"omega_max": 0.6}, {"success_discount": 1.1}],
)
def test_bad_options(option):
    with pytest.raises(UsageError, match=next(iter(option))):
        ThreeSPOConfig(**option).validate()
