"""The oracle wins from anywhere; the searcher wins by what it has read."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from threespo_envs.alfred.game import Game, Goal, Receptacle, Thing
from threespo_envs.alfred.memory import Memory
from threespo_envs.alfred.world import World
from threespo_envs.alfworld.games import PackedGames
from threespo_envs.household.expert import Searcher, oracle_plan
from threespo_envs.household.generator import SPLITS, TASK_TYPES, Shape, household_game


def play(world: World, plan: list[str]) -> None:
    for command in plan:
        assert command in world.admissible(), f"{world.game.game_id}: {command}"
        world.step(command)


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_oracle_wins_every_household(task_type: str) -> None:
    for shape in (Shape(6, 6, task_types=(task_type,)), Shape(task_types=(task_type,)), Shape(30, 30, task_types=(task_type,))):
        for split in SPLITS:
            for index in range(30):
                game = household_game(shape, split, index)
                world = World(game)
                play(world, list(game.walkthrough))
                assert world.won
                assert oracle_plan(world) == []


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_oracle_wins_from_the_middle_of_any_game(task_type: str) -> None:
    for index in range(150):
        game = household_game(Shape(6, 14, task_types=(task_type,)), "demonstrations", index)
        world = World(game)
        rng = random.Random(index)
        for _ in range(rng.randrange(60)):
            world.step(rng.choice(world.admissible(with_help=False)))
        before = world.snapshot()
        plan = oracle_plan(world)
        assert world.snapshot() == before, "planning must not change the world"
        play(world, plan)
        assert world.won


def test_oracle_is_never_much_longer_than_the_start_needs() -> None:
    lengths = Counter(len(household_game(Shape(), "train", index).walkthrough) for index in range(300))
    assert max(lengths) <= 12
    assert min(lengths) >= 2


def dead_end() -> Game:
    """A room whose only place cannot take the wanted thing."""
    place = Receptacle("Shelf_bar_00", "shelf 1", "Shelf", 1, False)
    thing = Thing("Apple_bar_00", "apple 1", "Apple", pickupable=True)
    goal = Goal("pick_and_place_simple", "Apple", "Shelf")
    return Game("dead", "put a apple in shelf", goal, (place,), (thing,), frozenset(), 0, frozenset(), (), ())


def test_oracle_gives_no_plan_where_there_is_none() -> None:
    assert oracle_plan(World(dead_end())) == []


def search(game: Game, seed: int, max_turns: int, order: str = "likely", detour: float = 0.0) -> tuple[bool, list[str]]:
    """Play a game with the searcher, which is given nothing but the texts."""
    world = World(game)
    memory = Memory.of([world.observation])
    searcher = Searcher(seed, order)
    rng = random.Random(seed)
    commands: list[str] = []
    for _ in range(max_turns):
        command = searcher.act(memory)
        if rng.random() < detour:
            command = rng.choice(world.admissible(with_help=False))
        commands.append(command)
        memory.add(world.step(command))
        if world.won:
            return True, commands
    return False, commands


@pytest.mark.parametrize(("order", "detour", "least", "longest"), [("likely", 0.0, 1.0, 11.0), ("random", 0.0, 0.99, 15.0), ("likely", 0.3, 0.93, 17.0)])
def test_searcher_wins_within_thirty_turns(order: str, detour: float, least: float, longest: float) -> None:
    played = [search(household_game(Shape(), "demonstrations", index), index, 30, order, detour) for index in range(300)]
    assert sum(won for won, _ in played) / len(played) >= least
    assert sum(len(commands) for _, commands in played) / len(played) <= longest


def test_searcher_sends_only_admissible_commands_in_households() -> None:
    for index in range(120):
        world = World(household_game(Shape(6, 20), "train", index))
        memory = Memory.of([world.observation])
        searcher = Searcher(index)
        while not world.won:
            command = searcher.act(memory)
            assert command in world.admissible()
            memory.add(world.step(command))


def test_searcher_is_repeatable_and_its_seed_matters() -> None:
    games = [household_game(Shape(), "train", index) for index in range(10)]
    first = [search(game, 1, 30)[1] for game in games]
    assert first == [search(game, 1, 30)[1] for game in games]
    assert first != [search(game, 2, 30)[1] for game in games]


def test_searcher_copes_with_places_that_share_a_spot() -> None:
    shelves = tuple(Receptacle(f"Shelf_bar_{i}", f"shelf {3 - i}", "Shelf", 1, False) for i in range(3))
    bed = Receptacle("Bed_bar_0", "bed 1", "Bed", 2, False)
    thing = Thing("Book_bar_0", "book 1", "Book", pickupable=True)
    goal = Goal("pick_and_place_simple", "Book", "Bed")
    fits = frozenset({("Bed", "Book"), ("Shelf", "Book")})
    for home in (1, 2, 3):
        game = Game("shared", "put a book in bed", goal, (bed, *shelves), (thing,), fits, 0, frozenset(), ((0, home),), ((0, 1),))
        for seed in range(5):
            assert search(game, seed, 12)[0]


def test_searcher_does_not_raise_for_a_goal_it_cannot_read() -> None:
    assert Searcher(0).act(Memory.of(["You see a bed 1.\n\nYour task is to: sing a song."])) == "look"
    assert Searcher(0).act(Memory()) == "look"


def test_experts_win_real_games(packed_games: PackedGames, real_game: Callable[[str, str], Game]) -> None:
    """Both experts win nearly all games of the benchmark's evaluation splits."""
    games = [real_game(split, record.game_id) for split in ("valid_seen", "valid_unseen") for record in packed_games.records(split)]
    won: Counter[str] = Counter()
    for game in games:
        world = World(game)
        for command in oracle_plan(world):
            world.step(command)
            if world.won:
                break
        won["oracle"] += world.won
        won["searcher"] += search(game, 1, 50)[0]
    assert won["oracle"] >= 0.99 * len(games)
    assert won["searcher"] >= 0.97 * len(games)
