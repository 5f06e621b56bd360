"""The environment plugin: episodes, rewards, anchors, snapshots."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.envs.alfred.games import random_walk
from threespo_bench.contracts.environment import PromptContext, Task
from threespo_bench.errors import EngineError, UsageError
from threespo_envs.alfred.anchors import goal_key
from threespo_envs.alfred.world import World
from threespo_envs.alfworld.environment import AlfworldConfig, AlfworldEnvironment


@pytest.fixture(scope="module")
def alfworld(shared_data: Callable[..., Path]) -> AlfworldEnvironment:
    return AlfworldEnvironment(AlfworldConfig(games=str(shared_data("alfworld"))))


@pytest.fixture(scope="module")
def tasks(alfworld: AlfworldEnvironment) -> Sequence[Task]:
    return alfworld.tasks("valid_unseen")


def test_a_plan_earns_ten_at_its_end_and_nothing_before(alfworld: AlfworldEnvironment, tasks: Sequence[Task]) -> None:
    for task in tasks[::20]:
        live = alfworld.spawn()
        live.reset(task, seed=0)
        plan = live.world.game.walkthrough
        steps = [live.step(command) for command in plan]
        assert [step.reward for step in steps] == [0.0] * (len(plan) - 1) + [10.0]
        assert [(step.terminated, step.success) for step in steps] == [(False, False)] * (len(plan) - 1) + [(True, True)]
        assert live.step("inventory").reward == 0.0, "it is paid once"


def test_help_is_not_offered_but_works(alfworld: AlfworldEnvironment, tasks: Sequence[Task]) -> None:
    observation = alfworld.reset(tasks[0], seed=0)
    assert "help" not in observation.admissible
    assert {"look", "inventory"} < set(observation.admissible)
    assert alfworld.step("help").observation.text.startswith("Available commands:")


def test_the_seed_changes_nothing_and_a_reset_is_complete(alfworld: AlfworldEnvironment, tasks: Sequence[Task]) -> None:
    first = alfworld.reset(tasks[3], seed=0)
    random_walk(alfworld.world, 20, seed=0)
    assert alfworld.reset(tasks[3], seed=5) == first


def test_spawned_episodes_are_independent_and_share_the_games(alfworld: AlfworldEnvironment, tasks: Sequence[Task]) -> None:
    one, two = alfworld.spawn(), alfworld.spawn()
    start = one.reset(tasks[0], seed=0)
    assert two.reset(tasks[0], seed=0) == start
    assert one.world.game is two.world.game
    one.step(start.admissible[0])
    assert two.world.observation == start.text


def test_anchors(alfworld: AlfworldEnvironment, tasks: Sequence[Task]) -> None:
    observation = alfworld.reset(tasks[0], seed=0)
    assert alfworld.anchors[0] == "state"
    assert alfworld.anchor("obs") == observation.text
    assert alfworld.anchor("state") == alfworld.world.state_key()
    assert alfworld.anchor("goal") == goal_key(alfworld.world)
    before = alfworld.anchor("state"), alfworld.anchor("goal")
    alfworld.step("look")
    assert alfworld.anchor("obs") != observation.text
    assert (alfworld.anchor("state"), alfworld.anchor("goal")) == before
    with pytest.raises(UsageError, match="no anchor 'sate'") as caught:
        alfworld.anchor("sate")
    assert "state" in caught.value.fix


def test_equal_texts_can_be_different_states(alfworld: AlfworldEnvironment, tasks: Sequence[Task]) -> None:
    # What published methods group by hides what the agent holds.
    task = next(task for task in tasks if task.kind == "pick_clean_then_place_in_recep")
    alfworld.reset(task, seed=0)
    world: World = alfworld.world
    goto, take = next((a, b) for a, b in zip(world.game.walkthrough, world.game.walkthrough[1:], strict=False) if b.startswith("take"))
    for command in world.game.walkthrough:
        if command == goto:
            break
        alfworld.step(command)
    elsewhere = next(command for command in world.admissible() if command.startswith("go to") and command != goto)
    alfworld.step(goto)
    alfworld.step(elsewhere)
    with_nothing = alfworld.anchor("obs"), alfworld.anchor("state")
    alfworld.step(goto)
    alfworld.step(take)
    alfworld.step(elsewhere)
    assert alfworld.anchor("obs") == with_nothing[0]
    assert alfworld.anchor("state") != with_nothing[1]


def test_snapshots_restore_in_other_episodes_and_after_pickling(alfworld: AlfworldEnvironment, tasks: Sequence[Task]) -> None:
    task = tasks[7]
    alfworld.reset(task, seed=0)
    *before, last = alfworld.world.game.walkthrough
    for command in before:
        alfworld.step(command)
    snapshot = alfworld.snapshot()
    text = alfworld.world.observation
    won = alfworld.step(last)
    other = alfworld.spawn()
    other.reset(task, seed=0)
    for episode in (other, alfworld):
        observation = episode.restore(pickle.loads(pickle.dumps(snapshot)))
        assert observation.text == text
        assert last in observation.admissible
        assert episode.step(last) == won
        assert won.reward == 10.0, "the reward is paid again after going back to before the win"


def test_restoring_a_won_state_does_not_pay_again(alfworld: AlfworldEnvironment, tasks: Sequence[Task]) -> None:
    alfworld.reset(tasks[7], seed=0)
    for command in alfworld.world.game.walkthrough:
        alfworld.step(command)
    snapshot = alfworld.snapshot()
    alfworld.reset(tasks[7], seed=0)
    alfworld.restore(snapshot)
    step = alfworld.step("look")
    assert (step.reward, step.terminated, step.success) == (0.0, True, True)


def test_snapshots_of_another_task_are_refused(alfworld: AlfworldEnvironment, tasks: Sequence[Task]) -> None:
    alfworld.reset(tasks[0], seed=0)
    snapshot = alfworld.snapshot()
    alfworld.reset(tasks[1], seed=0)
    with pytest.raises(EngineError, match="cannot be restored in game"):
        alfworld.restore(snapshot)


def test_use_before_a_reset_is_an_error(alfworld: AlfworldEnvironment) -> None:
    with pytest.raises(EngineError, match="before a task was started"):
        alfworld.spawn().step("look")


def test_tasks_can_be_sent_to_another_process(alfworld: AlfworldEnvironment, tasks: Sequence[Task]) -> None:
    task = pickle.loads(pickle.dumps(tasks[5]))
    far = AlfworldEnvironment(AlfworldConfig(games="/not/there"))
    assert far.reset(task, seed=0) == alfworld.reset(tasks[5], seed=0)


@pytest.mark.parametrize("options", [{"template": "nonsense"}, {"history_length": -1}])
def test_wrong_options_are_refused_at_once(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        AlfworldEnvironment(AlfworldConfig(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("template", ["compact", "verl_agent"])
def test_prompts_and_responses_go_through_the_configured_template(template: str, alfworld: AlfworldEnvironment, tasks: Sequence[Task]) -> None:
    config = AlfworldConfig(games=alfworld.config.games, template=template)
    episode = AlfworldEnvironment(config)
    observation = episode.reset(tasks[0], seed=0)
    (message,) = episode.render(PromptContext(tasks[0], (), observation, max_turns=50))
    assert message["role"] == "user"
    assert message["content"]
    action = episode.parse("<think>so</think><action>look</action>" if template == "verl_agent" else "look", observation)
    assert episode.max_new_tokens == (512 if template == "verl_agent" else 16)  # a thought and a command, or a command
    assert (action.command, action.valid) == ("look", True)
    assert isinstance(episode.parse("\x00 <action>", observation).command, str)


def test_digests_name_games_rules_and_prompt(alfworld: AlfworldEnvironment) -> None:
    again = AlfworldEnvironment(AlfworldConfig(games=alfworld.config.games))
    assert alfworld.digest() == again.digest()
    assert AlfworldEnvironment(AlfworldConfig(games=alfworld.config.games, template="verl_agent")).digest() != again.digest()
