"""Generated households: pure functions of their seed, spread over the task types, solvable, and different between splits."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter

import pytest

from threespo_bench.errors import UsageError
from threespo_envs.alfred.game import Game
from threespo_envs.alfred.world import World
from threespo_envs.household import rooms
from threespo_envs.household.generator import SENTENCES, SPLITS, TASK_TYPES, Shape, household_game


def content_digest(game: Game) -> str:
    """Of all that makes a game except its name."""
    parts = (game.sentence, game.goal, game.receptacles, game.things, game.inside)
    return hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()


def test_same_seed_same_game() -> None:
    assert household_game(Shape(), "train", 17) == household_game(Shape(), "train", 17)
    assert household_game(Shape(), "train", 17) != household_game(Shape(house_seed=1), "train", 17)


def test_games_are_the_same_in_every_process() -> None:
    code = "from threespo_envs.household.generator import *\nprint([hash(repr(0))], [household_game(Shape(), s, i) for s in SPLITS for i in (0, 5, 301)])"
    texts = set()
    for hash_seed in ("0", "1", "random"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        # The set of what fits where has no order; everything else must be equal to the letter.
        text = done.stdout.partition("]")[2]
        texts.add(hashlib.sha256(_without_sets(text).encode()).hexdigest())
    assert len(texts) == 1


def _without_sets(text: str) -> str:
    while "can_contain=frozenset({" in text:
        start = text.index("can_contain=frozenset({")
        text = text[:start] + text[text.index("})", start) + 2 :]
    return text


# Digests of the version named in the generator; they change only together with VERSION.
GOLDEN = {
    ("train", 0): "6deb4c485f2cdbd31e7ff14d",
    ("valid_seen", 7): "9362d4380a2035709cf20eda",
    ("valid_unseen", 3): "80f431fe0f645f13df666c36",
    ("demonstrations", 1000): "aebd039385070f94842725db",
}


@pytest.mark.parametrize(("split", "index"), GOLDEN)
def test_games_of_this_version_stay_what_they_are(split: str, index: int) -> None:
    assert content_digest(household_game(Shape(), split, index)) == GOLDEN[split, index]


def test_all_task_types_take_turns() -> None:
    games = [household_game(Shape(), "train", index) for index in range(60)]
    assert Counter(game.goal.task_type for game in games) == dict.fromkeys(TASK_TYPES, 10)


def test_a_subset_of_task_types() -> None:
    shape = Shape(task_types=("pick_heat_then_place_in_recep", "look_at_obj_in_light"))
    assert {household_game(shape, "train", index).goal.task_type for index in range(10)} == set(shape.task_types)


def test_splits_share_no_game() -> None:
    seen: dict[str, str] = {}
    for split in SPLITS:
        for index in range(400):
            digest = content_digest(household_game(Shape(6, 10), split, index))
            assert digest not in seen, f"{split}/{index} is {seen.get(digest)}"
            seen[digest] = f"{split}/{index}"


def test_seen_rooms_are_training_rooms_and_unseen_rooms_are_not() -> None:
    rooms_of = {split: [household_game(Shape(), split, index).receptacles for index in range(300)] for split in SPLITS}
    assert rooms_of["valid_seen"] == rooms_of["train"], "so that also a small training split has seen the rooms"
    found = {split: set(layouts) for split, layouts in rooms_of.items()}
    assert len(found["train"]) < 100
    assert not found["valid_unseen"] & found["train"]
    assert not found["demonstrations"] & (found["train"] | found["valid_unseen"])


@pytest.mark.parametrize(("least", "most"), [(6, 6), (10, 14), (30, 30), (6, 30)])
def test_size_of_the_house(least: int, most: int) -> None:
    sizes = {len(household_game(Shape(least, most), "demonstrations", index).receptacles) for index in range(120)}
    assert min(sizes) >= least
    assert max(sizes) <= most
    assert len(sizes) >= min(most - least + 1, 4)


@pytest.mark.parametrize("options", [{"receptacles_min": 5}, {"receptacles_max": 31}, {"receptacles_min": 12, "receptacles_max": 11}])
def test_impossible_sizes_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="receptacles"):
        Shape(**options)


def test_unknown_task_type_is_refused_with_advice() -> None:
    with pytest.raises(UsageError, match="pick_heat") as failure:
        Shape(task_types=("pick_heat_then_place",))
    assert "pick_heat_then_place_in_recep" in failure.value.fix
    with pytest.raises(UsageError, match="empty"):
        Shape(task_types=())


def test_a_game_keeps_the_rules_of_the_domain() -> None:
    for index in range(300):
        game = household_game(Shape(6, 14), "train", index)
        assert not World(game).won
        names = [item.name for item in (*game.receptacles, *game.things)]
        assert len(set(names)) == len(names)
        assert game.start_location not in {place.location for place in game.receptacles}
        ids = [place.pddl_id.lower() for place in game.receptacles]
        assert ids == sorted(ids)
        assert sorted(thing for thing, _ in game.inside) == list(range(len(game.things)))
        for thing, place in game.inside:
            kind = game.things[thing].kind
            assert kind == rooms.LAMP or (game.receptacles[place].kind, kind) in game.can_contain


def test_wanted_things_start_where_they_are_not_wanted() -> None:
    for index in range(300):
        game = household_game(Shape(), "train", index)
        for thing, place in game.inside:
            if game.things[thing].kind == game.goal.object_kind:
                assert game.receptacles[place].kind != game.goal.receptacle_kind


def test_some_wanted_things_are_behind_doors() -> None:
    games = [household_game(Shape(), "train", index) for index in range(300)]
    behind = sum(all(game.receptacles[place].openable for thing, place in game.inside if game.things[thing].kind == game.goal.object_kind) for game in games)
    assert 0.15 < behind / len(games) < 0.6


def test_sentences_are_those_of_the_real_games() -> None:
    for index in range(120):
        game = household_game(Shape(), "train", index)
        words = {"thing": game.goal.object_kind.lower(), "place": game.goal.receptacle_kind.lower()}
        assert game.sentence in {template.format(**words) for template in SENTENCES[game.goal.task_type]}


def test_there_are_many_goals() -> None:
    goals = {household_game(Shape(), "train", index).goal for index in range(600)}
    assert len(goals) > 200


def test_tables_of_rooms_agree() -> None:
    known_places = {place for place, _ in rooms.can_contain()}
    for room, plan in rooms.PLANS.items():
        furniture = {*plan.core, *(kind for kind, _, _ in plan.extras)}
        assert len(plan.core) == 6
        assert sum(most for _, _, most in plan.extras) >= 24
        for thing, places in rooms.usual_places(room).items():
            assert all((place, thing) in rooms.can_contain() for place in places)
        assert furniture - known_places <= {"Toaster"}
    assert rooms.fits("fridge", "apple")
    assert not rooms.fits("fridge", "book")
    assert rooms.usual_weight("desk", "desklamp") > 1 > rooms.usual_weight("bed", "apple")
