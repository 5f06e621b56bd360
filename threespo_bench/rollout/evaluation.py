"""Evaluation: one episode of each held-out task, with sampling noise that is the same every time and for every algorithm."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from threespo_bench.contracts.engine import RolloutEngine, Sampling
from threespo_bench.contracts.environment import Environment, Task
from threespo_bench.rollout.batching import make_batch
from threespo_bench.rollout.concurrency import together
from threespo_bench.rollout.environment_workers import EnvironmentWorkers, in_step
from threespo_bench.rollout.episode import Episode, PlayedTurn
from threespo_bench.seeding import Streams
from threespo_bench.turns import TurnBatch

_VERIFIED = 8
"""Turns of an evaluation that are looked at again."""


async def evaluate(
    environment: Environment,
    engine: RolloutEngine,
    tasks: Sequence[Task],
    streams: Streams,
    sampling: Sampling,
    max_turns: int,
    ended: Callable[[], None] = lambda: None,
    workers: EnvironmentWorkers | None = None,
    verify: Callable[[TurnBatch], None] = lambda _: None,
) -> dict[str, float]:
    """Play every task once. Returns success and return as means over episodes, success by kind of task, and the mean number of turns.

    ``score`` is there if an episode has one: the mean over episodes of that of their last turn, where none counts as 0.

    ``ended`` is called after every episode. Episodes live in ``workers``, or in this process. ``verify`` gets some of the turns, from all over the
    episodes, before anything is returned: the learner's :meth:`~threespo_bench.contracts.engine.Learner.verify`.
    """
    engine = in_step(workers, engine)

    async def play(task: Task) -> list[PlayedTurn]:
        turns = await _play(environment, engine, task, streams, sampling, max_turns, workers)
        ended()
        return turns

    episodes = await together(play(task) for task in tasks)
    verify(_some(episodes))
    by_kind: dict[str, list[bool]] = defaultdict(list)
    for task, turns in zip(tasks, episodes, strict=True):
        by_kind[task.kind].append(turns[-1].success)
    count, all_turns = len(episodes), [turn for turns in episodes for turn in turns]
    metrics = {
        "success": sum(turns[-1].success for turns in episodes) / count,
        "truncated": sum(turns[-1].truncated for turns in episodes) / count,
        "return": sum(turn.reward for turn in all_turns) / count,
        "turns": len(all_turns) / count,
        "valid_actions": sum(turn.action.valid for turn in all_turns) / len(all_turns),
        "episodes_evaluated": count,
    }
    scores = [turns[-1].score for turns in episodes]
    if any(score is not None for score in scores):
        metrics["score"] = sum(score or 0.0 for score in scores) / count
    return metrics | {f"success/{kind}": sum(won) / len(won) for kind, won in sorted(by_kind.items())}


async def _play(
    environment: Environment,
    engine: RolloutEngine,
    task: Task,
    streams: Streams,
    sampling: Sampling,
    max_turns: int,
    workers: EnvironmentWorkers | None,
) -> list[PlayedTurn]:
    episode = Episode(environment, max_turns, environment.anchors[0], workers)
    await episode.start(task, streams.integer("evaluation/reset", task.key))
    turns: list[PlayedTurn] = []
    while not episode.ended:
        seed = streams.integer("evaluation/sample", task.key, len(turns))
        turns.append(await episode.act(await engine.generate(episode.prompt(), seed, sampling)))
    return turns


def _some(episodes: Sequence[Sequence[PlayedTurn]]) -> TurnBatch:
    """A few turns at equal distances."""
    turns = [(turn, str(number)) for number, played in enumerate(episodes) for turn in played]
    places = np.unique(np.linspace(0, len(turns) - 1, _VERIFIED).round().astype(int))
    chosen, episode = zip(*(turns[place] for place in places), strict=True)
    return make_batch(chosen, episode, episode)
