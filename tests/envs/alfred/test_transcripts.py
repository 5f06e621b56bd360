"""Our engine says what TextWorld said: each recorded step, and each stored plan of the benchmark wins."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from threespo_envs.alfred.game import Game
from threespo_envs.alfred.world import World
from threespo_envs.alfworld.games import SPLITS, PackedGames

STEPS = {"walkthrough": 2759, "random": 28320, "detour": 9372, "chores": 12760}


def differences(episode: dict[str, Any], game: Game) -> Iterator[str]:
    """Where our engine's episode differs from the recorded one."""
    world = World(game)
    if world.observation != episode["initial"]["obs"]:
        yield f"first text: {world.observation!r}"
    if list(world.admissible()) != episode["initial"]["admissible"]:
        yield f"first commands: {world.admissible()}"
    full = episode.get("adm_full") or [None] * len(episode["steps"])
    for step, listed in zip(episode["steps"], full, strict=True):
        text = world.step(step["a"])
        commands = world.admissible(with_help=False)
        digest = hashlib.sha256("\n".join(commands).encode()).hexdigest()[:16]
        if text != step["obs"]:
            yield f"{step['a']!r}: {text!r} is not {step['obs']!r}"
        if (digest, len(commands)) != (step["adm"], step["n"]):
            yield f"{step['a']!r}: commands {commands}"
        if listed is not None and list(world.admissible()) != listed:
            yield f"{step['a']!r}: all commands {world.admissible()} are not {listed}"
        if world.won != step["won"]:
            yield f"{step['a']!r}: won is {world.won}"


@pytest.mark.parametrize("kind", STEPS)
def test_every_recorded_step_is_reproduced(kind: str, transcripts: list[dict[str, Any]], real_game: Callable[[str, str], Game]) -> None:
    steps = 0
    for episode in transcripts:
        if episode["kind"] == kind:
            found = next(differences(episode, real_game(episode["split"], episode["game"])), None)
            assert found is None, f"{episode['split']}/{episode['game']}: {found}"
            steps += len(episode["steps"])
    assert steps == STEPS[kind]


def plan_wins(game: Game) -> bool:
    """Each command of the plan is admissible, and only the last one wins."""
    world = World(game)
    for command in game.walkthrough:
        if world.won or command not in world.admissible(with_help=False):
            return False
        world.step(command)
    return world.won


def losing_plans(packed: PackedGames, real_game: Callable[[str, str], Game], split: str, every: int) -> list[str]:
    records = packed.records(split)[::every]
    return [record.game_id for record in records if not plan_wins(real_game(split, record.game_id))]


@pytest.mark.parametrize("split", SPLITS)
def test_stored_plans_win(split: str, packed_games: PackedGames, real_game: Callable[[str, str], Game]) -> None:
    assert losing_plans(packed_games, real_game, split, every=20 if split == "train" else 1) == []


@pytest.mark.slow
def test_all_stored_plans_of_the_training_games_win(packed_games: PackedGames, real_game: Callable[[str, str], Game]) -> None:
    assert losing_plans(packed_games, real_game, "train", every=1) == []


def test_task_types_read_from_goals_agree_with_the_ids(packed_games: PackedGames, real_game: Callable[[str, str], Game]) -> None:
    for split in ("valid_seen", "valid_unseen", "valid_train"):
        for record in packed_games.records(split):
            goal = real_game(split, record.game_id).goal
            assert goal.task_type == record.kind
            assert goal.object_kind == record.game_id.split("-")[1]
            assert goal.receptacle_kind == record.game_id.split("-")[3]
