"""Where things usually are in a household is what the real training games show, and no evaluation game was looked at."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from threespo_envs.alfworld.games import GameCache, PackedGames
from threespo_envs.household import rooms

SCENES = {0: "kitchen", 2: "livingroom", 3: "bedroom", 4: "bathroom"}
"""The hundreds of the number of a scene, which ends the first part of a game's id."""


@pytest.mark.slow
def test_usual_places_are_counted_in_the_training_games(packed_games: PackedGames) -> None:
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    cache = GameCache(capacity=1)
    for record in packed_games.records("train"):
        game = cache.load(record.game_id, record.game_id, record.payload)
        room = SCENES[int(record.game_id.partition("/")[0].rpartition("-")[2]) // 100]
        for thing, place in game.inside:
            counts[room, game.things[thing].kind][game.receptacles[place].kind] += 1
    for room in rooms.ROOMS:
        for thing, places in rooms.usual_places(room).items():
            found = counts[room, thing]
            shares = {place: round(100 * number / found.total()) for place, number in found.items() if (place, thing) in rooms.can_contain()}
            assert places == {place: share for place, share in shares.items() if share >= 2}, f"{thing} in {room}"
