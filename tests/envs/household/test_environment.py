"""The household environment through the plugin contract."""

from __future__ import annotations

import pickle

import pytest

from threespo_bench.contracts.environment import PromptContext, Task, Turn
from threespo_bench.errors import UsageError
from threespo_envs.household.environment import HouseholdConfig, HouseholdEnvironment


@pytest.fixture
def environment() -> HouseholdEnvironment:
    return HouseholdEnvironment(HouseholdConfig(train_tasks=24, eval_tasks=12))


def test_tasks(environment: HouseholdEnvironment) -> None:
    for split, size in (("train", 24), ("valid_seen", 12), ("valid_unseen", 12)):
        tasks = environment.tasks(split)
        assert len(tasks) == size
        assert [task.key for task in tasks] == sorted(task.key for task in tasks)
        assert {task.split for task in tasks} == {split}
        assert len({task.kind for task in tasks}) == 6
    assert environment.tasks("train")[17].key == "household/train/00017"
    assert environment.task("demonstrations", 123456).key == "household/demonstrations/123456"


def test_unknown_split_and_task(environment: HouseholdEnvironment) -> None:
    with pytest.raises(UsageError, match="valid_unsen") as failure:
        environment.tasks("valid_unsen")
    assert "valid_unseen" in failure.value.fix
    for key in ("household/train/x", "household/nowhere/00001", "train/00001", "", "a/b/c"):
        with pytest.raises(UsageError, match="no task"):
            environment.load_game(Task(key, "", "train"))


@pytest.mark.parametrize("options", [{"train_tasks": 0}, {"eval_tasks": -1}, {"receptacles_min": 2}, {"task_types": ["x"]}, {"template": "compat"}])
def test_bad_options(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        HouseholdEnvironment(HouseholdConfig(**options))  # type: ignore[arg-type]


def test_kind_of_a_task_is_that_of_its_game(environment: HouseholdEnvironment) -> None:
    for task in environment.tasks("valid_unseen"):
        game = environment.load_game(task)
        assert game.goal.task_type == task.kind
        assert game.game_id == task.key
        assert environment.load_game(task) is game


def test_an_episode_to_the_win(environment: HouseholdEnvironment) -> None:
    for task in environment.tasks("train"):
        environment.reset(task, seed=0)
        walkthrough = environment.load_game(task).walkthrough
        steps = [environment.step(command) for command in walkthrough]
        assert [step.success for step in steps] == [False] * (len(steps) - 1) + [True]
        assert steps[-1].terminated
        assert sum(step.reward for step in steps) == steps[-1].reward > 0


def test_tasks_and_snapshots_travel(environment: HouseholdEnvironment) -> None:
    task = pickle.loads(pickle.dumps(environment.tasks("train")[3]))
    environment.reset(task, seed=0)
    walkthrough = environment.load_game(task).walkthrough
    environment.step(walkthrough[0])
    snapshot = pickle.loads(pickle.dumps(environment.snapshot()))
    rest = [environment.step(command) for command in walkthrough[1:]]
    twin = HouseholdEnvironment(environment.config).spawn()
    twin.reset(task, seed=5)
    twin.restore(snapshot)
    assert [twin.step(command) for command in walkthrough[1:]] == rest


def test_render_and_parse_go_together(environment: HouseholdEnvironment) -> None:
    task = environment.tasks("train")[0]
    observation = environment.reset(task, seed=0)
    messages = environment.render(PromptContext(task, (), observation, 30))
    assert [message["role"] for message in messages] == ["user"]
    command = environment.load_game(task).walkthrough[0]
    action = environment.parse(f"  {command.upper()}\n", observation)
    assert action.valid
    assert action.command == command
    step = environment.step(command)
    later = environment.render(PromptContext(task, (Turn(observation.text, command),), step.observation, 30))
    assert f" at {command.removeprefix('go to ')} " in later[0]["content"]


def test_digest_tells_configurations_apart() -> None:
    configs = [
        HouseholdConfig(),
        HouseholdConfig(house_seed=1),
        HouseholdConfig(receptacles_max=15),
        HouseholdConfig(template="verl_agent"),
        HouseholdConfig(history_length=3),
        HouseholdConfig(task_types=["look_at_obj_in_light"]),
    ]
    digests = [HouseholdEnvironment(config).digest() for config in configs]
    assert len(set(digests)) == len(configs)
    assert digests[0] == HouseholdEnvironment(HouseholdConfig()).digest()
    # How many tasks a split has changes none of them.
    assert digests[0] == HouseholdEnvironment(HouseholdConfig(train_tasks=16)).digest()
