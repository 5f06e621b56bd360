"""The sampler ``monte_carlo``: whole episodes, and the value of chosen states on them as the mean return of fresh continuations.

The algorithm says at which places of an episode a value is wanted. From each of these states the present policy plays some continuations to
their end. They are charged to the budget and are not learned from (VinePPO, arXiv:2410.01679; SPO, arXiv:2505.23564).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from threespo_bench.contracts.algorithm import Algorithm, AlgorithmConfig
from threespo_bench.contracts.environment import Task
from threespo_bench.contracts.sampler import RolloutContext, Sampler
from threespo_bench.errors import UsageError
from threespo_bench.rollout.batching import make_batch
from threespo_bench.rollout.concurrency import together
from threespo_bench.rollout.episode import Episode, EpisodeState, PlayedTurn
from threespo_bench.rollout.forking import fork
from threespo_bench.rollout.playing import begin, play, play_turn
from threespo_bench.turns import TurnBatch

Cut = tuple[int, int]
"""(turn, token): the state before this token of this turn's response. Token 0 is the state that the turn acts in."""


@dataclass
class MonteCarloConfig(AlgorithmConfig):
    """Options of algorithms whose values are means over continuations.

    Attributes:
        episodes_per_task: episodes of one task that are learned from.
        continuations: fresh continuations by which a state is valued (K). They cost environment steps and are not learned from.
    """

    episodes_per_task: int = 4
    continuations: int = 3

    def validate(self) -> None:
        super().validate()
        for name in ("episodes_per_task", "continuations"):
            if getattr(self, name) < 1:
                raise UsageError(f"algorithm.{name}={getattr(self, name)} is out of range: must be >= 1")


class MonteCarloAlgorithm(Algorithm):
    """What the sampler asks of its algorithm."""

    @abstractmethod
    def cuts(self, turns: Sequence[PlayedTurn]) -> Sequence[Cut]:
        """Where on an episode a value is wanted. There is no place after the last turn: an ended episode is worth 0."""


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """An episode that is learned from: its turns, and the state that each of them acted in."""

    place: int
    branch: int
    turns: list[PlayedTurn]
    states: list[EpisodeState]


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """A state to continue from: before token ``len(prefix)`` of a response.

    Attributes:
        name: iteration, task place, branch, turn and token where the state was met first; the seeds of its continuations come from it.
    """

    name: str
    state: EpisodeState
    prefix: tuple[int, ...]


class MonteCarloSampler(Sampler):
    """Plays the episodes of the iteration, then all continuations at once, and yields one batch of the episodes' turns.

    ``turns.values`` is (N,), the value of the state each turn acts in, with the columns ``next_value`` (N,), that of the state after the turn (0 after
    the last one), and ``estimated`` (N,), true where continuations were played. A state without continuations gets r + V(s'), so that the advantage of its
    turn is 0.

    With ``token_values`` it is (N, T): the value of the state before each token where one was asked for, NaN at all others.

    Args:
        episodes_per_task: episodes of one task. continuations: played from one state. token_values: see above.
    """

    def __init__(self, episodes_per_task: int, continuations: int, token_values: bool = False) -> None:
        self.episodes_per_task, self.continuations, self.token_values = episodes_per_task, continuations, token_values
        self._report: dict[str, float] = {}

    async def collect(self, context: RolloutContext, algorithm: Algorithm) -> AsyncIterator[TurnBatch]:
        """One batch: the turns of all episodes, trajectory by trajectory."""
        assert isinstance(algorithm, MonteCarloAlgorithm)
        branches = [(place, task, branch) for place, task in enumerate(context.tasks) for branch in range(self.episodes_per_task)]
        episodes = await together(_play(context, place, task, branch) for place, task, branch in branches)
        before = context.budget.spent.env_steps
        estimates, distinct = await self._estimate(context, episodes, [algorithm.cuts(episode.turns) for episode in episodes])
        self._note(estimates, distinct, steps=context.budget.spent.env_steps - before)
        yield self._batch(context, episodes, estimates)

    def most_env_steps(self, tasks: int, max_turns: int) -> int | None:
        """All episodes and continuations at the step limit, a value wanted at each turn; None with ``token_values``, where a turn may have any number."""
        if self.token_values:
            return None
        continued = max_turns * (max_turns + 1) // 2  # L + (L - 1) + ... + 1 turns are left from the states of an episode
        return tasks * self.episodes_per_task * (max_turns + self.continuations * continued)

    def diagnostics(self) -> dict[str, float]:
        """What the last iteration's continuations were: states valued, the share of places that shared another's value, and their cost."""
        return dict(self._report)

    async def _estimate(self, context: RolloutContext, episodes: Sequence[PlayedEpisode], cuts: Sequence[Sequence[Cut]]) -> tuple[list[dict[Cut, float]], int]:
        """The value at every cut of every episode, and the number of distinct states. Equal states are valued once."""
        points: dict[object, ForkPoint] = {}
        keys: list[dict[Cut, object]] = []
        for episode, wanted in zip(episodes, cuts, strict=True):
            keys.append({cut: _key(episode, cut) for cut in wanted})
            for cut, key in keys[-1].items():
                if key not in points:
                    points[key] = _fork_point(context, episode, cut)
        runs = [(point, number) for point in points.values() for number in range(self.continuations)]
        returns = await together(_continue(context, point, number) for point, number in runs)
        of_state: dict[object, list[float]] = {key: [] for key in points}
        for key, start in zip(points, range(0, len(runs), self.continuations), strict=True):
            of_state[key] = returns[start : start + self.continuations]
        return [{cut: mean_return(of_state[key]) for cut, key in asked.items()} for asked in keys], len(points)

    def _batch(self, context: RolloutContext, episodes: Sequence[PlayedEpisode], estimates: Sequence[Mapping[Cut, float]]) -> TurnBatch:
        turns = [turn for episode in episodes for turn in episode.turns]
        groups = [f"{context.iteration}/{episode.place}" for episode in episodes for _ in episode.turns]
        trajectories = [f"{context.iteration}/{episode.place}/{episode.branch}" for episode in episodes for _ in episode.turns]
        estimated = [any(at == turn for at, _ in found) for episode, found in zip(episodes, estimates, strict=True) for turn in range(len(episode.turns))]
        batch = make_batch(turns, groups, trajectories, {"estimated": np.array(estimated)})
        if self.token_values:
            batch.values = _token_values(batch.response_mask.shape, episodes, estimates)
            return batch
        filled = []
        for episode, found in zip(episodes, estimates, strict=True):
            rewards = np.array([turn.reward for turn in episode.turns])
            filled.append(fill_backwards(rewards, {turn: value for (turn, _), value in found.items()}))
        batch.values = np.concatenate(filled)
        batch.extras["next_value"] = np.concatenate([np.append(values[1:], 0.0) for values in filled])
        return batch

    def _note(self, estimates: Sequence[Mapping[Cut, float]], distinct: int, steps: int) -> None:
        values = [value for found in estimates for value in found.values()]
        self._report = {
            "monte_carlo/states": float(distinct),
            "monte_carlo/shared_share": 1.0 - distinct / max(len(values), 1),
            "monte_carlo/mean_value": sum(values) / max(len(values), 1),
            "monte_carlo/env_steps": float(steps),
        }


def mean_return(returns: Sequence[float]) -> float:
    """V(s), the mean of the returns from s; 0 without any."""
    return sum(returns) / len(returns) if returns else 0.0


def fill_backwards(rewards: np.ndarray, estimates: Mapping[int, float]) -> np.ndarray:
    """(n,) values of the states that the turns of one episode act in: the estimate where there is one, else r_i + V(s_{i+1}).

    Args:
        rewards: (n,) of the turns. estimates: turn -> value. The state after the last turn is worth 0.
    """
    values, following = np.zeros(len(rewards)), 0.0
    for turn in reversed(range(len(rewards))):
        following = values[turn] = estimates.get(turn, rewards[turn] + following)
    return values


def _token_values(shape: tuple[int, ...], episodes: Sequence[PlayedEpisode], estimates: Sequence[Mapping[Cut, float]]) -> np.ndarray:
    """(N, T) the values at the cuts, NaN elsewhere."""
    values, start = np.full(shape, np.nan), 0
    for episode, found in zip(episodes, estimates, strict=True):
        for (turn, token), value in found.items():
            values[start + turn, token] = value
        start += len(episode.turns)
    return values


async def _play(context: RolloutContext, place: int, task: Task, branch: int) -> PlayedEpisode:
    """One episode to its end; its random numbers are those of the sampler ``grouped``."""
    episode = await begin(context, task)
    played = PlayedEpisode(place, branch, [], [])
    while not episode.ended:
        played.states.append(episode.state)
        seed = context.streams.integer("sample", context.iteration, place, branch, len(played.turns))
        played.turns.append(await play_turn(context, episode, seed))
    context.budget.charge(episodes=1)
    return played


def _key(episode: PlayedEpisode, cut: Cut) -> object:
    """What makes two states equal: the task, the commands so far, and the tokens so far of the present response."""
    state = episode.states[cut[0]]
    return state.task.key, tuple(turn.command for turn in state.history), _prefix(episode, cut)


def _fork_point(context: RolloutContext, episode: PlayedEpisode, cut: Cut) -> ForkPoint:
    name = "/".join(map(str, (context.iteration, episode.place, episode.branch, *cut)))
    return ForkPoint(name, episode.states[cut[0]], _prefix(episode, cut))


def _prefix(episode: PlayedEpisode, cut: Cut) -> tuple[int, ...]:
    turn, token = cut
    return tuple(episode.turns[turn].generation.token_ids[:token].tolist()) if token else ()


async def _continue(context: RolloutContext, point: ForkPoint, number: int) -> float:
    """The return of one continuation; where the step limit ends it, what it got until then."""

    def seed_of(turn: int) -> int:
        return context.streams.integer("continuation", point.name, number, turn)

    episode = await fork(context, point.state)
    turns = [await _finish_response(context, episode, point.prefix, seed_of(0))] if point.prefix else []
    begun = len(turns)
    turns += await play(context, episode, lambda turn: seed_of(begun + turn))
    return sum(turn.reward for turn in turns)


async def _finish_response(context: RolloutContext, episode: Episode, prefix: Sequence[int], seed: int) -> PlayedTurn:
    """One turn whose response begins with ``prefix``; only the new tokens are charged."""
    generation = await context.engine.generate(episode.prompt(), seed, context.sampling, prefix=prefix)
    turn = await episode.act(generation)
    context.budget.charge(env_steps=1, tokens=len(generation.token_ids), prompt_tokens=len(generation.prompt_ids))
    context.tick()
    return turn
