"""A second episode that goes on from a state of another one."""

from __future__ import annotations

from threespo_bench.contracts.sampler import RolloutContext
from threespo_bench.rollout.episode import Episode, EpisodeState


async def fork(context: RolloutContext, state: EpisodeState) -> Episode:
    """A live episode of its own that stands at ``state``."""
    episode = Episode(context.environment, context.max_turns, context.anchor, context.workers)
    await episode.restore(state)
    return episode
