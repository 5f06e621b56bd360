"""3SPO: a score of how hard a state is supervises the reward of a transition, the number of samples at the state, and the search."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from threespo_algorithms.case_study import CaseStudy
from threespo_algorithms.episode_term import require_choice
from threespo_algorithms.group_statistics import group_statistics, invalid, mean_over, normalise, over_tokens
from threespo_algorithms.state_history import StateHistory, hash_text, novelty_weight, state_score
from threespo_bench.contracts.algorithm import AlgorithmConfig, Credit, Score
from threespo_bench.errors import UsageError
from threespo_bench.rollout.adaptive_tree import AdaptiveTreeSampler, TreeAlgorithm
from threespo_bench.turns import TurnBatch, codes

_KNOWN = ("known_total", "known_won", "next_known_total", "next_known_won", "clock", "first_on_path")


@dataclass
class ThreeSPOConfig(AlgorithmConfig):
    """Options of 3SPO. D1 to D14 are the decisions, E1 to E7 the formulas of docs/3spo.md; preset ``paper`` is the published method.

    Attributes:
        alpha: slope of lambda(t) = alpha ln t. xi, zeta: a state is given up after xi failures unless its success rate exceeds zeta.
        omega_max, omega_k: the novelty weight is omega_max exp(-omega_k N); the published omega_max is 0.5. max_samples: G_max, samples at a state of score 1.
        env_steps_per_tree, leaves_per_tree: where the search of one task ends.
        clock: what t counts (D1): finished ``trajectories`` or ``iteration``.
        novelty: what earns the novelty reward (D3): the text ``changed``, the state is ``first_in_trajectory``, or it was ``never_seen``; with the last
            two, no end of the task without success is novel.
        count_terminal: the last state of a trajectory is counted too (D4). count_repeats: a state counts each time a path visits it (D5).
        count_unsolved: where a search ends without any ending, the path it was following counts as a failed trajectory.
        leaf_unit: every ``leaf`` counts as a trajectory (D12), or the leaves among the children of one ``expansion`` count as one.
        success_discount: a success counts this to the power of the turns to it, so that states nearer to success score better; 1 as published.
        root_min_samples: the root is never given up and gets at least this many samples (D7).
        key_scope: statistics are kept per ``task`` or ``global`` (D8).
        normalise_by_std: divide by the group's deviation (D11). minimum_std: divide by at least this, so that a group of
            hardly different children gives a small update and not a full one.
        invalid_actions: ``exclude`` them from the comparison, ``include`` them as they are, ``penalise`` them by ``invalid_action_penalty`` in R
            before the group is normalised, or ``penalise_after`` normalisation, in the advantage.
        graph_search: a state already expanded in this tree is not expanded again. search_key: the key by which the search knows a state.
        scale_small_waves: a wave moves the policy in proportion to its size; otherwise the last few rows of an iteration move Adam as far
            as the first hundreds.
        truncate_reward: S in the reward is 0 for states that are given up, as in n(s).
        unseen_child: score of a state without history in the reward: ``one``, or the ``parent``'s, so that discovering it is neutral (an end of the task
            without success is not: it scores one).
        epsilon: in the success rate and in the normalisation.
    """

    anchor: str = "state"
    alpha: float = 0.3
    xi: float = 1e9
    zeta: float = 0.1
    omega_max: float = 0.5
    omega_k: float = 0.1
    max_samples: int = 8
    env_steps_per_tree: int = 300
    leaves_per_tree: int = 32
    clock: str = "trajectories"
    novelty: str = "first_in_trajectory"
    count_terminal: bool = True
    count_repeats: bool = False
    count_unsolved: bool = True
    leaf_unit: str = "expansion"
    success_discount: float = 0.95
    root_min_samples: int = 2
    key_scope: str = "task"
    normalise_by_std: bool = True
    minimum_std: float = 0.03
    invalid_actions: str = "exclude"
    invalid_action_penalty: float = 0.1
    graph_search: bool = True
    search_key: str = "state"
    scale_small_waves: bool = True
    truncate_reward: bool = False
    unseen_child: str = "parent"
    epsilon: float = field(default=1e-6)

    def state_keys(self) -> dict[str, str]:
        return super().state_keys() | {"search_key": self.search_key}

    def validate(self) -> None:
        super().validate()
        require_choice("algorithm.clock", self.clock, ("trajectories", "iteration"))
        require_choice("algorithm.novelty", self.novelty, ("changed", "first_in_trajectory", "never_seen"))
        require_choice("algorithm.leaf_unit", self.leaf_unit, ("leaf", "expansion"))
        require_choice("algorithm.key_scope", self.key_scope, ("task", "global"))
        require_choice("algorithm.invalid_actions", self.invalid_actions, ("exclude", "include", "penalise", "penalise_after"))
        require_choice("algorithm.unseen_child", self.unseen_child, ("one", "parent"))
        if self.max_samples < 2:
            raise UsageError(f"algorithm.max_samples={self.max_samples} is out of range: the comparison of a state's actions needs at least 2")
        for name, most in (("omega_max", 0.5), ("success_discount", 1.0)):
            if not 0 <= getattr(self, name) <= most:
                raise UsageError(f"algorithm.{name}={getattr(self, name)} is out of range: must be in [0, {most}]")
        for name in ("alpha", "xi", "zeta", "omega_k", "root_min_samples", "minimum_std", "invalid_action_penalty"):
            if getattr(self, name) < 0:
                raise UsageError(f"algorithm.{name}={getattr(self, name)} is out of range: must be >= 0")
        for name in ("env_steps_per_tree", "leaves_per_tree"):
            if getattr(self, name) < 1:
                raise UsageError(f"algorithm.{name}={getattr(self, name)} is out of range: must be >= 1")


class ThreeSPO(TreeAlgorithm):
    """State-Score-Supervised Policy Optimization."""

    Config: ClassVar[type[AlgorithmConfig]] = ThreeSPOConfig
    title = "State-Score-Supervised Policy Optimization"
    source = "arXiv:2606.09961"
    notes = (
        "S(s) = exp(-alpha ln t SR(s)); n(s) = ceil(G_max S(s)); R = omega R_novel + (0.5 - omega)(S(s) - S(s')) + 0.5 R_success; the policy is updated after "
        "each wave of expanded states. The published repository never runs this search. Preset `paper` follows the published formulas; the default is ours: "
        "every difference is an option here and is explained in docs/3spo.md."
    )
    needs = frozenset({"restore"})
    requires: tuple[str, ...] = ("next_anchor_obs", "success", *_KNOWN)

    def __init__(self, config: ThreeSPOConfig) -> None:
        super().__init__(config)
        most = max(config.max_samples, config.root_min_samples)
        self.sampler = AdaptiveTreeSampler(config.env_steps_per_tree, config.leaves_per_tree, config.graph_search, config.search_key, most)
        if config.novelty == "changed":
            self.requires = (*self.requires, "observation", "next_observation")
        self.history = StateHistory()
        self.cases = CaseStudy()
        self._seen: set[int] = set()
        self._visited = 0

    def samples(self, task_key: str, key: str, root: bool) -> int:
        """n(s) = ceil(G_max S(s)) (E4); the root gets at least ``root_min_samples`` (D7)."""
        total, won = self.history.lookup([self._scoped(task_key, key)])
        count = math.ceil(self.config.max_samples * float(self._score(total, won, self.history.clock, truncate=True)[0]))
        return max(count, self.config.root_min_samples) if root else count

    def state_report(self, task_key: str, key: str, root: bool) -> str:
        """What the search makes of a state as things stand, for people: S(s) without the indicator, n(s), and the counts behind them."""
        total, won = self.history.lookup([self._scoped(task_key, key)])
        score = float(self._score(total, won, self.history.clock, truncate=False)[0])
        return f"S(s) = {score:.3f}, n(s) = {self.samples(task_key, key, root)}, N_total = {total[0]:g}, N_success = {won[0]:.3g}, t = {self.history.clock}"

    def annotate(self, turns: TurnBatch) -> None:
        """What the history knows of both ends of each transition, before this wave's outcomes (D10)."""
        for prefix, column in (("known", turns.anchor_obs), ("next_known", turns.next_anchor_obs)):
            keys = [self._scoped(task, key) for task, key in zip(turns.task_key, column, strict=True)]
            turns.extras[f"{prefix}_total"], turns.extras[f"{prefix}_won"] = self.history.lookup(keys)
        turns.extras["clock"] = np.full(len(turns), self.history.clock)

    def rank(self, turns: TurnBatch) -> np.ndarray:
        """R itself (D13)."""
        return self.transition_reward(turns)

    def transition_reward(self, turns: TurnBatch) -> np.ndarray:
        """(N,) R(s, s') = omega R_novel + (0.5 - omega)(S(s) - S(s')) + 0.5 R_success (E6)."""
        turns.require(ThreeSPO.requires, "threespo")  # the search asks before a subclass has all its columns
        config, extras = self.config, turns.extras
        here = self._score(extras["known_total"], extras["known_won"], extras["clock"], config.truncate_reward)
        there = self._score(extras["next_known_total"], extras["next_known_won"], extras["clock"], config.truncate_reward)
        if config.unseen_child == "parent":
            # Where the task ended badly nothing was discovered: no way from there succeeds, so S = 1 whatever the parent's is.
            there = np.where((extras["next_known_total"] == 0) & ~_ended_badly(turns), here, there)
        omega = novelty_weight(extras["known_total"], config.omega_k, config.omega_max)
        reward = omega * self._novel(turns) + (0.5 - omega) * (here - there) + 0.5 * turns.success
        if config.invalid_actions == "penalise":
            reward = reward - np.where(invalid(turns), config.invalid_action_penalty, 0.0)
        return reward

    def credit(self, turns: TurnBatch) -> Credit:
        """A = R relative to the siblings (E7). A child without siblings takes no part in the update; siblings that do not differ get exactly 0."""
        config = self.config
        reward = self.transition_reward(turns)
        members = turns.real & ~invalid(turns) if config.invalid_actions == "exclude" else turns.real
        statistics = group_statistics(reward, codes(turns.group_id), members)
        relative = normalise(reward, statistics, by_std=config.normalise_by_std, epsilon=config.epsilon, minimum_std=config.minimum_std)
        if config.invalid_actions == "penalise_after":
            relative = relative - np.where(invalid(turns) & ~statistics.single, config.invalid_action_penalty, 0.0)
        advantage = np.where(members, relative, 0.0)
        score = self._score(turns.extras["known_total"], turns.extras["known_won"], turns.extras["clock"], truncate=False)
        diagnostics = statistics.shares("group", members) | {
            "state/mean_score": mean_over(score, turns.real),
            "state/mean_reward": mean_over(reward, turns.real),
            "state/known_share": mean_over(turns.extras["next_known_total"] > 0, turns.real),
            "state/novel_share": mean_over(self._novel(turns), turns.real),
        }
        scale = float(members.sum()) / (config.tasks_per_iteration * config.max_samples) if config.scale_small_waves else 1.0
        return Credit(over_tokens(advantage, turns), selected=members & ~statistics.single, scale=scale, diagnostics=diagnostics)

    def observe(self, turns: TurnBatch, score: Score) -> None:
        """Write the outcomes of the trajectories that ended in this wave into the history (D4, D5, D9, D12), and move the clock."""
        self._follow(turns)
        outcomes: dict[object, tuple[str, tuple[str, ...], bool]] = {}
        for row in np.flatnonzero([bool(path) for path in turns.extras["path"]]):
            unit = turns.group_id[row] if self.config.leaf_unit == "expansion" else row
            if unit not in outcomes or (turns.success[row] and not outcomes[unit][2]):
                outcomes[unit] = (turns.task_key[row], turns.extras["path"][row], bool(turns.success[row]))
        for task, path, won in outcomes.values():
            self._record(task, path if self.config.count_terminal else path[:-1], won)
        self._visited += len(turns)
        self._seen.update(hash_text(f"{task}\x1f{key}") for task, key in zip(turns.task_key, turns.next_anchor_obs, strict=True))

    def unsolved(self, task_key: str, keys: tuple[str, ...]) -> None:
        """A search ended without any ending: its path failed, if that counts."""
        if self.config.count_unsolved:
            self._record(task_key, keys, won=False)

    def diagnostics(self) -> dict[str, float]:
        """The state of the history and what the last search did; called once an iteration, which is when an iteration clock moves."""
        if self.config.clock == "iteration":
            self.history.clock += 1
        return self.sampler.diagnostics() | {
            "state/known": float(len(self.history)),
            "state/clock": float(self.history.clock),
            "state/unique_ratio": len(self._seen) / max(self._visited, 1),
        }

    def case_study(self) -> list[dict[str, Any]]:
        return self.cases.told()

    def state_dict(self) -> dict[str, Any]:
        seen = np.array(sorted(self._seen), dtype=np.int64)
        return {"history": self.history.state_dict(), "seen": seen, "visited": self._visited, "cases": self.cases.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history.load_state_dict(state["history"])
        if "cases" in state:  # older checkpoints have none
            self.cases.load_state_dict(state["cases"])
        self._seen, self._visited = set(np.asarray(state["seen"]).tolist()), int(state["visited"])

    def _follow(self, turns: TurnBatch) -> None:
        """Note the states of the wave for the case study, where the batch has the texts that it tells."""
        if all(name in turns.extras for name in ("command", "observation", *_KNOWN)):
            extras = turns.extras
            keys = [self._scoped(task, key) for task, key in zip(turns.task_key, turns.anchor_obs, strict=True)]
            score = self._score(extras["known_total"], extras["known_won"], extras["clock"], truncate=False)
            self.cases.add(turns, keys, score, self.transition_reward(turns))

    def _record(self, task_key: str, path: tuple[str, ...], won: bool) -> None:
        self.history.record([self._scoped(task_key, key) for key in path], won, self.config.success_discount, self.config.count_repeats)
        if self.config.clock == "trajectories":
            self.history.clock += 1

    def _score(self, total: np.ndarray, won: np.ndarray, clock: Any, truncate: bool) -> np.ndarray:
        config = self.config
        return state_score(total, won, clock, config.alpha, config.xi, config.zeta, config.epsilon, truncate)

    def _novel(self, turns: TurnBatch) -> np.ndarray:
        """(N,) R_novel, 0 or 1 (D3)."""
        if self.config.novelty == "changed":
            return (turns.extras["observation"] != turns.extras["next_observation"]).astype(float)
        new = turns.extras["next_known_total"] == 0 if self.config.novelty == "never_seen" else turns.extras["first_on_path"]
        return (new & ~_ended_badly(turns)).astype(float)

    def _scoped(self, task_key: str, key: str) -> str:
        return key if self.config.key_scope == "global" else f"{task_key}\x1f{key}"


def _ended_badly(turns: TurnBatch) -> np.ndarray:
    """(N,) the turn ended the task and did not solve it: a wrong purchase, say. The step limit is no such end."""
    return np.zeros(len(turns), bool) if turns.terminated is None else turns.terminated & ~turns.success
