"""Playing an episode from where it stands: seeds by turn, charges, and the prompt that a cut episode would have gone on with."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np

from tests.rollout.players import Drawing, Knowing, context, household
from threespo_bench.contracts.engine import Sampling
from threespo_bench.contracts.sampler import RolloutContext
from threespo_bench.rollout.batching import make_batch
from threespo_bench.rollout.episode import Episode, PlayedTurn
from threespo_bench.rollout.grouped import GroupedSampler
from threespo_bench.rollout.playing import play, play_turn, with_next_prompt


def started(run: RolloutContext) -> Episode:
    episode = Episode(run.environment, run.max_turns, run.anchor)
    asyncio.run(episode.start(run.tasks[0], 0))
    return episode


def drawn(**options: object) -> RolloutContext:
    environment = household()
    return context(environment, Drawing(), environment.tasks("train")[:1], **options)


def solved(**options: object) -> RolloutContext:
    environment = household()
    tasks = environment.tasks("train")[:1]
    return context(environment, Knowing(environment, tasks, 30), tasks, max_turns=30, **options)


def play_all(run: RolloutContext, sampling: Sampling | None = None) -> list[PlayedTurn]:
    return asyncio.run(play(run, started(run), lambda turn: 100 + turn, sampling))


def test_seeds_count_from_the_present_state():
    run = drawn(max_turns=5)
    episode = started(run)
    asyncio.run(play_turn(run, episode, seed=7))
    turns = asyncio.run(play(run, episode, lambda turn: 100 + turn))
    assert [seed for _, seed, _ in run.engine.requests] == [7, 100, 101, 102, 103]
    assert [turn.step_id for turn in turns] == [1, 2, 3, 4]
    assert episode.ended and turns[-1].truncated


def test_an_ended_episode_has_no_turns():
    run = drawn(max_turns=1)
    episode = started(run)
    asyncio.run(play_turn(run, episode, seed=0))
    assert asyncio.run(play(run, episode, lambda turn: turn)) == []


def test_charges():
    ticks = []
    run = drawn(tick=lambda: ticks.append(1))
    turns = play_all(run)
    spent = run.budget.spent
    assert (spent.env_steps, spent.episodes) == (len(turns), 1) and len(ticks) == len(turns)
    assert spent.tokens == sum(len(turn.generation.token_ids) for turn in turns)
    assert spent.prompt_tokens == sum(len(turn.generation.prompt_ids) for turn in turns)


def test_one_turn_charges_no_episode():
    run = drawn(max_turns=1)
    asyncio.run(play_turn(run, started(run), seed=0))
    assert (run.budget.spent.env_steps, run.budget.spent.episodes) == (1, 0)


def test_sampling_of_its_own():
    run = drawn()
    play_all(run, Sampling(temperature=0.0))
    play_all(run)
    assert {sampling.temperature for _, _, sampling in run.engine.requests[:6]} == {0.0}
    assert {sampling for _, _, sampling in run.engine.requests[6:]} == {run.sampling}


def test_the_prompt_after_a_cut_is_the_one_a_longer_episode_would_have_asked():
    short, longer = drawn(max_turns=4, keep_next_prompt=True), drawn(max_turns=5)
    turns = play_all(short)
    episode = started(longer)
    for turn in turns:
        asyncio.run(play_turn(longer, episode, 100 + turn.step_id))
    assert [turn.next_prompt_ids is None for turn in turns] == [True, True, True, False]
    assert turns[-1].next_prompt_ids.dtype == np.int32 and len(turns[-1].next_prompt_ids)
    prompt_of_the_cut = episode.prompt()
    np.testing.assert_array_equal(turns[-1].next_prompt_ids, longer.engine.encode(prompt_of_the_cut))


def test_no_prompt_is_kept_after_the_end_of_a_task_or_unasked():
    won = play_all(solved(keep_next_prompt=True))
    assert won[-1].success and all(turn.next_prompt_ids is None for turn in won)
    assert all(turn.next_prompt_ids is None for turn in play_all(drawn()))


def test_the_prompt_on_demand():
    run = drawn()
    episode = started(run)
    turn = asyncio.run(play_turn(run, episode, seed=0))
    kept = with_next_prompt(run, episode, turn)
    np.testing.assert_array_equal(kept.next_prompt_ids, run.engine.encode(episode.prompt()))
    assert replace(kept, next_prompt_ids=None) == turn


def test_column_of_prompts():
    cut, won = play_all(drawn(max_turns=2, keep_next_prompt=True)), play_all(solved(keep_next_prompt=True))
    played = cut + won
    turns = make_batch(played, ["g"] * len(played), ["a"] * len(played))
    lengths = [len(prompt) for prompt in turns.extras["next_prompt_ids"]]
    assert lengths[1] == len(cut[1].next_prompt_ids) > 0 and sum(lengths) == lengths[1]
    assert "next_prompt_ids" not in make_batch(won, ["g"] * len(won), ["a"] * len(won)).extras


def test_single_rollouts_keep_the_prompts_of_cut_episodes():
    environment = household()
    run = context(environment, Drawing(), environment.tasks("train")[:3], max_turns=2, keep_next_prompt=True)

    async def collect():
        return [turns async for turns in GroupedSampler(1).collect(run, None)]

    (turns,) = asyncio.run(collect())
    kept = np.array([len(prompt) > 0 for prompt in turns.extras["next_prompt_ids"]])
    assert len(set(turns.traj_id)) == len(set(turns.group_id)) == 3
    assert kept.any() and kept.tolist() == turns.truncated.tolist()
