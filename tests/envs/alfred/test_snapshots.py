"""Going back to a snapshot is the same as playing up to it again."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.envs.alfred.games import kitchen, play, random_walk
from threespo_bench.errors import EngineError
from threespo_envs.alfred.game import Game
from threespo_envs.alfred.world import World


def seen(world: World) -> tuple[object, ...]:
    """All that can be observed of a world."""
    return world.observation, world.admissible(), world.won, world.state_key(), world.inventory_text(), world.state


def replayed(game: Game, commands: list[str]) -> World:
    world = World(game)
    for command in commands:
        world.step(command)
    return world


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_restoring_equals_replaying(data: st.DataObject, some_games: list[Game]) -> None:
    game = data.draw(st.sampled_from(some_games))
    seed = data.draw(st.integers(0, 2**32))
    length, detour, after = (data.draw(st.integers(0, 40)) for _ in range(3))
    world = World(game)
    prefix = random_walk(world, length, seed)
    snapshot = world.snapshot()
    at_snapshot = seen(world)
    random_walk(world, detour, seed + 1)

    assert world.restore(snapshot) == at_snapshot[0]
    assert seen(world) == at_snapshot == seen(replayed(game, prefix))
    other = World(game)
    other.restore(pickle.loads(pickle.dumps(snapshot)))
    assert seen(other) == at_snapshot

    following = random_walk(world, after, seed + 2)
    assert seen(world) == seen(replayed(game, prefix + following))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_state_keys_ignore_what_only_looks(data: st.DataObject, some_games: list[Game]) -> None:
    world = World(data.draw(st.sampled_from(some_games)))
    random_walk(world, data.draw(st.integers(0, 30)), data.draw(st.integers(0, 2**32)))
    key = world.state_key()
    for command in world.admissible():
        if command.split()[0] in ("look", "inventory", "help", "examine"):
            world.step(command)
            assert world.state_key() == key
    world.step("no such command")
    assert world.state_key() == key


def test_state_keys_tell_states_apart() -> None:
    world = World(kitchen())
    keys = [world.state_key()]
    for command in (
        "go to countertop 1",
        "take apple 2 from countertop 1",
        "heat apple 2 with microwave 1",
        "open microwave 1",
        "move apple 2 to microwave 1",
        "use desklamp 1",
        "take knife 1 from countertop 1",
        "slice apple 2 with knife 1",
    ):
        play(world, command)
        keys.append(world.state_key())
    assert len(set(keys)) == len(keys)


def test_state_keys_meet_again_whatever_the_way() -> None:
    world = World(kitchen())
    play(world, "go to countertop 1")
    key = world.state_key()
    play(world, "take apple 2 from countertop 1", "move apple 2 to countertop 1", "go to fridge 1", "open fridge 1", "close fridge 1", "go to microwave 1")
    assert world.state_key() == key


def test_snapshots_are_refused_by_another_game() -> None:
    snapshot = World(kitchen()).snapshot()
    with pytest.raises(EngineError, match=r"kitchen.*cannot be restored in game attic"):
        World(kitchen(game_id="attic")).restore(snapshot)


RESTORE = """
import pickle, sys
from threespo_envs.alfred.world import World
game, snapshot = pickle.load(sys.stdin.buffer)
world = World(game)
world.restore(snapshot)
first = (world.observation, world.admissible(), world.won, world.state_key())
world.step(world.admissible()[-1])
sys.stdout.buffer.write(pickle.dumps((*first, world.observation)))
"""


def test_snapshots_are_valid_in_another_process(some_games: list[Game]) -> None:
    world = World(some_games[0])
    random_walk(world, 40, seed=3)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": "7"}
    answer = subprocess.run(
        [sys.executable, "-c", RESTORE],
        input=pickle.dumps((world.game, world.snapshot())),
        capture_output=True,
        env=environment,
        check=True,
        timeout=60,
    )
    expected = (world.observation, world.admissible(), world.won, world.state_key())
    world.step(world.admissible()[-1])
    assert pickle.loads(answer.stdout) == (*expected, world.observation)


def test_memory_does_not_grow_with_resets(some_games: list[Game]) -> None:
    games = some_games[:6]

    def episodes(count: int) -> None:
        for index in range(count):
            world = World(games[index % len(games)])
            random_walk(world, 3, seed=index)

    episodes(200)
    tracemalloc.start()
    episodes(200)
    gc.collect()  # also empties the interpreter's own stores of freed tuples
    before = tracemalloc.get_traced_memory()[0]
    episodes(1000)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 50_000


def test_views_remembered_from_another_time_are_not_shown(some_games: list[Game]) -> None:
    # The commands of a place are remembered between visits; a world without that memory must list the same.
    for seed, game in enumerate(some_games):
        world = World(game)
        for command in random_walk(World(game), 60, seed):
            world.step(command)
            fresh = World(game)
            fresh.restore(world.snapshot())
            assert fresh.admissible() == world.admissible()
