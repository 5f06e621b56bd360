"""One episode: its endings, its history, and the way back to any state of it."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle

import numpy as np
import pytest

from tests.algorithms.scripted import ScriptedEnvironment
from tests.rollout.players import ReplayedHousehold, household
from threespo_bench.contracts.engine import Generation
from threespo_bench.contracts.environment import Observation, Step, Task
from threespo_bench.errors import DataError
from threespo_bench.rollout.episode import Episode, PlayedTurn
from threespo_envs.household.environment import HouseholdEnvironment

TASK = Task("scripted", "scripted", "train")
LINE = {"a": [("b", None)], "b": [("c", None)], "c": [("win", True), ("lose", False), ("c", None)]}


def said(text: str) -> Generation:
    return Generation(np.arange(2, dtype=np.int32), np.arange(3, dtype=np.int32), np.zeros(3, np.float32), text, 4, finished=True)


def play(episode: Episode, commands: str) -> list[PlayedTurn]:
    return [asyncio.run(episode.act(said(command))) for command in commands]


def line(max_turns: int) -> Episode:
    episode = Episode(ScriptedEnvironment(LINE, "a"), max_turns, "state")
    asyncio.run(episode.start(TASK, seed=0))
    return episode


def endings(turn: PlayedTurn) -> tuple[bool, bool, bool]:
    return turn.terminated, turn.truncated, turn.success


def test_ending_well_ending_badly_and_being_cut_are_three_things() -> None:
    assert [endings(turn) for turn in play(line(10), "000")] == [(False, False, False)] * 2 + [(True, False, True)]
    assert endings(play(line(10), "001")[-1]) == (True, False, False)
    cut = line(4)
    assert [endings(turn) for turn in play(cut, "0022")] == [(False, False, False)] * 3 + [(False, True, False)]
    assert cut.ended


@pytest.mark.parametrize(("last", "success"), [("0", True), ("1", False)])
def test_an_ending_at_the_step_limit_is_no_truncation(last: str, success: bool) -> None:
    assert endings(play(line(3), "00" + last)[-1]) == (True, False, success)


def test_turns_tell_what_happened() -> None:
    turns = play(line(10), "000")
    assert [turn.step_id for turn in turns] == [0, 1, 2]
    assert [(turn.observation, turn.next_observation) for turn in turns] == [("a", "b"), ("b", "c"), ("c", "win")]
    assert [(turn.anchor, turn.next_anchor) for turn in turns] == [("a", "b"), ("b", "c"), ("c", "win")]
    assert [turn.reward for turn in turns] == [0, 0, 1]
    assert all(turn.task is TASK and turn.generation.policy_version == 4 for turn in turns)


def test_the_history_holds_commands_and_never_the_reasoning() -> None:
    environment = household(template="verl_agent")
    episode = Episode(environment, 30, "state")
    asyncio.run(episode.start(environment.tasks("train")[0], seed=0))
    command = episode.state.observation.admissible[0]
    turn = asyncio.run(episode.act(said(f"<think>I wonder about zebras.</think><action>{command}</action>")))
    assert turn.action.command == command
    assert episode.state.history[-1].command == command
    prompt = episode.prompt()[-1]["content"]
    assert f"Action 1: '{command}'" in prompt
    assert "zebras" not in prompt


def test_an_answer_that_is_no_command_is_a_turn_like_any_other() -> None:
    environment = household()
    episode = Episode(environment, 30, "state")
    asyncio.run(episode.start(environment.tasks("train")[0], seed=0))
    for answer in ("", "dance with the fridge", "look " * 300):
        before = episode.state.anchor
        turn = asyncio.run(episode.act(said(answer)))
        assert not turn.action.valid
        assert (turn.next_anchor, turn.reward) == (before, 0.0)


@pytest.mark.parametrize("kind", [HouseholdEnvironment, ReplayedHousehold])
def test_going_back_gives_the_same_future(kind: type[HouseholdEnvironment]) -> None:
    environment = household(kind)
    task = environment.tasks("train")[3]
    commands = environment.load_game(task).walkthrough
    episode = Episode(environment, 30, "state")
    asyncio.run(episode.start(task, seed=5))
    states, prompts, turns = [episode.state], [episode.prompt()], []
    for command in commands:
        turns.append(asyncio.run(episode.act(said(command))))
        states.append(episode.state)
        prompts.append(episode.prompt())
    assert turns[-1].success
    for place in (2, 0, len(commands), 1):
        asyncio.run(episode.restore(states[place]))
        assert episode.state is states[place]
        assert (episode.prompt(), asyncio.run(episode.key("obs"))) == (prompts[place], states[place].observation.text)
        assert episode.ended == (place == len(commands))
        again = [dataclasses.replace(asyncio.run(episode.act(said(command))), generation=turns[0].generation) for command in commands[place:]]
        assert again == [dataclasses.replace(turn, generation=turns[0].generation) for turn in turns[place:]]


def test_replaying_and_snapshots_lead_to_the_same_states() -> None:
    played = []
    for kind in (HouseholdEnvironment, ReplayedHousehold):
        environment = household(kind)
        task = environment.tasks("train")[1]
        episode = Episode(environment, 30, "state")
        asyncio.run(episode.start(task, seed=0))
        root = episode.state
        seen = []
        for command in root.observation.admissible:
            asyncio.run(episode.restore(root))
            turn = asyncio.run(episode.act(said(command)))
            seen.append((turn.next_observation, turn.next_anchor, episode.state.observation.admissible))
        played.append(seen)
    assert played[0] == played[1]
    assert len(set(played[0])) > 3


def test_a_state_is_valid_in_another_episode_and_process() -> None:
    environment = household()
    task = environment.tasks("train")[2]
    first, second = (Episode(environment, 30, "state") for _ in range(2))
    asyncio.run(first.start(task, seed=0))
    asyncio.run(second.start(task, seed=0))
    for command in environment.load_game(task).walkthrough[:2]:
        asyncio.run(first.act(said(command)))
    asyncio.run(second.restore(pickle.loads(pickle.dumps(first.state))))
    assert second.prompt() == first.prompt()
    rest = environment.load_game(task).walkthrough[2:]
    assert [asyncio.run(second.act(said(command))) for command in rest][-1].success


class Forgetful(ScriptedEnvironment):
    """Answers otherwise each time, and cannot be put back."""

    can_restore = False
    calls = 0

    def spawn(self) -> Forgetful:
        return self

    def step(self, command: str) -> Step:
        self.calls += 1
        return Step(Observation(f"answer {self.calls}"), 0.0, terminated=False, success=False)


def test_a_replay_that_shows_something_else_is_an_error() -> None:
    episode = Episode(Forgetful(LINE, "a"), 10, "state")
    asyncio.run(episode.start(TASK, seed=0))
    asyncio.run(episode.act(said("0")))
    state = episode.state
    with pytest.raises(DataError, match="Forgetful is not deterministic: replaying 1 commands of scripted") as failure:
        asyncio.run(episode.restore(state))
    assert "snapshot()" in failure.value.fix


class Paying(ScriptedEnvironment):
    """Pays whatever it was told to."""

    pay: object = 0.0

    def spawn(self) -> Paying:
        return self

    def step(self, command: str) -> Step:
        return Step(Observation("b"), self.pay, terminated=False, success=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), None, "1"])
def test_a_reward_that_is_no_number_is_an_error_and_not_zero(reward: object) -> None:
    environment = Paying(LINE, "a")
    environment.pay = reward
    episode = Episode(environment, 10, "state")
    asyncio.run(episode.start(TASK, seed=0))
    with pytest.raises(DataError, match=r"Paying gave the reward .* for the command '0' in scripted"):
        asyncio.run(episode.act(said("0")))


@pytest.mark.parametrize("reward", [0, 1, True, np.float32(0.5), np.int64(3)])
def test_any_real_number_is_a_reward(reward: object) -> None:
    environment = Paying(LINE, "a")
    environment.pay = reward
    episode = Episode(environment, 10, "state")
    asyncio.run(episode.start(TASK, seed=0))
    assert asyncio.run(episode.act(said("0"))).reward == reward
