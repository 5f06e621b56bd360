"""Does an environment keep its contract?"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from threespo_bench.contracts.environment import Action, Environment, Observation, PromptContext, Step, Task, Turn

_STRANGE = ("", " ", "\n", "x" * 5000, "\0", "é世界🙂", "<action></action>", "<think>", "go to go to", "{}[]()%s%d", "-1", "None")


def check_environment(environment: Environment, split: str = "train", episodes: int = 3, steps: int = 12, seed: int = 0) -> None:
    """Play a few episodes with admissible and with meaningless commands, and check everything the host relies on.

    Args:
        environment: constructed. split: a split with tasks.
        episodes, steps: how much is played. seed: of the choice of commands.

    Raises:
        AssertionError: says what is wrong.
    """
    tasks = _check_tasks(environment, split)
    rng = np.random.default_rng(seed)
    for task in tasks[:episodes]:
        _check_repeatable(environment, task, steps, rng)
        _check_prompt(environment, task)
        _check_strange(environment, task)
        _check_spawned(environment, task)
        if environment.can_restore:
            _check_snapshots(environment, task, steps, rng)


def _check_tasks(environment: Environment, split: str) -> list[Task]:
    tasks = list(environment.tasks(split))
    keys = [task.key for task in tasks]
    assert tasks, f"the split {split} has no tasks"
    assert keys == sorted(keys), "tasks are not sorted by key"
    assert len(set(keys)) == len(keys), "a task key comes twice"
    assert all(task.split == split for task in tasks) or len({task.split for task in tasks}) == 1, "the tasks of a split name different splits"
    assert [task.key for task in environment.tasks(split)] == keys, "tasks differ from call to call"
    assert pickle.loads(pickle.dumps(tasks[0])) == tasks[0], "a task does not survive pickling"
    return tasks


def _play(environment: Environment, task: Task, commands: list[str] | None, steps: int, rng: np.random.Generator) -> tuple[list[str], list[Any]]:
    """Commands (chosen among the admissible ones if none are given) and everything that was seen."""
    observation = environment.reset(task, 7)
    _check_observation(observation)
    played: list[str] = []
    seen: list[Any] = [observation]
    for place in range(steps if commands is None else len(commands)):
        choices = observation.admissible or ("look",)
        command = str(rng.choice(choices)) if commands is None else commands[place]
        step = environment.step(command)
        _check_step(step)
        played.append(command)
        seen += [step, *(environment.anchor(kind) for kind in environment.anchors)]
        observation = step.observation
        if step.terminated:
            break
    return played, seen


def _check_repeatable(environment: Environment, task: Task, steps: int, rng: np.random.Generator) -> None:
    commands, seen = _play(environment, task, None, steps, rng)
    assert _play(environment, task, commands, steps, rng)[1] == seen, f"{task.key}: the same seed and commands gave another episode"
    assert _play(environment.spawn(), task, commands, steps, rng)[1] == seen, f"{task.key}: a spawned environment played another episode"


def _check_observation(observation: Observation) -> None:
    assert isinstance(observation, Observation), f"{observation!r} is no Observation"
    assert isinstance(observation.text, str), "an observation's text is no string"
    assert isinstance(observation.admissible, tuple), "admissible commands are no tuple"
    assert len(set(observation.admissible)) == len(observation.admissible), "an admissible command comes twice"


def _check_step(step: Step) -> None:
    assert isinstance(step, Step), f"step() returned {step!r}"
    _check_observation(step.observation)
    assert isinstance(step.reward, (int, float)), f"a reward is {step.reward!r}"
    assert np.isfinite(step.reward), f"a reward is {step.reward!r}"
    assert type(step.terminated) is bool, "terminated is no bool"
    assert type(step.success) is bool, "success is no bool"
    assert step.terminated or not step.success, "a success that does not end the task"
    if step.score is not None:
        assert isinstance(step.score, (int, float)) and 0 <= step.score <= 1, f"a score is {step.score!r}, not None or from 0 to 1"


def _check_prompt(environment: Environment, task: Task) -> None:
    observation = environment.reset(task, 7)
    for history in ((), (Turn("seen before", "look"),)):
        context = PromptContext(task, history, observation, environment.max_turns)
        messages = environment.render(context)
        assert messages, "render() gave no messages"
        for message in messages:
            assert set(message) == {"role", "content"}, f"a message has the keys {sorted(message)}"
            assert all(isinstance(value, str) for value in message.values()), "a message holds something that is no string"
        assert environment.spawn().render(context) == messages, "render() depends on the live episode, which may be in another process"


def _check_strange(environment: Environment, task: Task) -> None:
    observation, idle = environment.reset(task, 7), environment.spawn()
    for text in _STRANGE:
        action = environment.parse(text, observation)
        assert isinstance(action, Action), f"parse({text[:20]!r}) returned {action!r}"
        assert isinstance(action.command, str), f"parse({text[:20]!r}) gave a command that is no string"
        assert bool(action.reason) != action.well_formed, f"parse({text[:20]!r}): a reason is given exactly if the response is not well-formed"
        expected = (action.command in observation.admissible,) if observation.admissible else (None, False)
        assert action.admissible in expected, f"parse({text[:20]!r}) says admissible={action.admissible}, but the observation says {expected[0]}"
        assert idle.parse(text, observation) == action, f"parse({text[:20]!r}) depends on the live episode, which may be in another process"
        _check_step(environment.step(text))


def _check_spawned(environment: Environment, task: Task) -> None:
    first = environment.reset(task, 7)
    twin = environment.spawn()
    twin.reset(task, 7)
    anchors = [environment.anchor(kind) for kind in environment.anchors]
    twin.step(first.admissible[0] if first.admissible else "look")
    assert [environment.anchor(kind) for kind in environment.anchors] == anchors, "a step of a spawned environment changed this one"
    assert all(isinstance(anchor, str) for anchor in anchors), "a state key is no string"


def _check_snapshots(environment: Environment, task: Task, steps: int, rng: np.random.Generator) -> None:
    commands, _ = _play(environment, task, None, steps, rng)
    half = len(commands) // 2
    observation = environment.reset(task, 7)
    for command in commands[:half]:
        observation = environment.step(command).observation
    snapshot = environment.snapshot()
    kept = pickle.dumps(snapshot)
    rest = [environment.step(command) for command in commands[half:]]
    assert pickle.dumps(snapshot) == kept, "playing on changed a snapshot"
    assert environment.restore(snapshot) == observation, "restore() returned another observation than was seen at the snapshot"
    assert [environment.step(command) for command in commands[half:]] == rest, "playing on after restore() went another way"
    twin = environment.spawn()
    twin.reset(task, 7)
    assert twin.restore(pickle.loads(kept)) == observation, "another live episode cannot be restored to a snapshot"
    assert [twin.step(command) for command in commands[half:]] == rest, "another live episode went another way after restore()"
