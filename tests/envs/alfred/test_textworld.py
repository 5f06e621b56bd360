"""Our engine beside TextWorld itself, live. Only where TextWorld is installed (the extra ``textworld``)."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from benchmarks.alfworld_engine import StockPlayer, has_textworld, stock_data
from threespo_envs.alfred.world import World
from threespo_envs.alfworld.games import PackedGames

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_textworld(), reason="textworld is not installed (pip install 'textworld[pddl]==1.7.0')"),
]

GAMES = 4
STEPS = 30


class Pair:
    """Both engines in the same game; each step compares all that can be seen."""

    def __init__(self, packed: PackedGames, folder: Path, split: str, index: int, load: Callable) -> None:
        record = packed.records(split)[index]
        assert isinstance(record.payload, bytes)
        line = json.loads(zlib.decompress(record.payload))
        self.stock = StockPlayer(stock_data(line, (folder / "domain.pddl").read_text(), (folder / "grammar.twl2").read_text()))
        self.world = World(load(split, record.game_id))
        assert self.world.observation == self.stock.reset()
        self.compare()

    def compare(self) -> None:
        assert list(self.world.admissible()) == list(self.stock.state["admissible_commands"])
        assert self.world.won == self.stock.won()

    def step(self, command: str) -> str:
        assert self.world.step(command) == self.stock.step(command), command
        self.compare()
        return self.world.observation


@pytest.mark.parametrize("number", range(GAMES))
def test_random_walks(number: int, packed_games: PackedGames, shared_data: Callable[..., Path], real_game: Callable) -> None:
    split = ("valid_unseen", "valid_train")[number % 2]
    pair = Pair(packed_games, shared_data("alfworld"), split, 31 * number + 5, real_game)
    random = Random(number)
    pair.step("help")
    for _ in range(STEPS):
        commands = pair.world.admissible()
        effective = [command for command in commands if not command.startswith(("go to", "help", "inventory", "examine"))]
        pair.step(random.choice(effective if random.random() < 0.6 else commands))


def test_moving_between_neighbours(packed_games: PackedGames, shared_data: Callable[..., Path], real_game: Callable) -> None:
    """A thing taken out of several places at one location is told once for each of them by "look"."""
    split = "valid_seen"
    for index, record in enumerate(packed_games.records(split)):
        game = real_game(split, record.game_id)
        world = World(game)
        for thing, place in game.inside:
            spot = game.receptacles[place].location
            homes = [i for i, other in enumerate(game.receptacles) if other.location == spot and not other.openable and world.accepts(i, thing)]
            if game.things[thing].pickupable and not game.receptacles[place].openable and place in homes and len(homes) >= 3:
                shuttle(Pair(packed_games, shared_data("alfworld"), split, index, real_game), game.things[thing].name, place, homes)
                return
    pytest.fail("no game has three open neighbours for one thing")


def shuttle(pair: Pair, thing: str, place: int, homes: list[int]) -> None:
    names = [receptacle.name for receptacle in pair.world.game.receptacles]
    pair.step(f"go to {names[place]}")
    told = []
    for target in [home for home in homes if home != place]:
        pair.step(f"take {thing} from {names[place]}")
        pair.step("look")
        pair.step(f"move {thing} to {names[target]}")
        told.append(pair.step("look").count(f"a {thing}"))
        place = target
    assert told[:2] == [1, 2]
