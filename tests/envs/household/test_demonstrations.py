"""Examples for a warm start."""

from __future__ import annotations

import itertools

import pytest

from threespo_bench.errors import UsageError
from threespo_envs.household.demonstrations import EXPERTS, Demonstration, demonstrations
from threespo_envs.household.environment import HouseholdConfig, HouseholdEnvironment


def examples(
    count: int, seed: int = 0, detour: float = 0.0, max_turns: int = 30, hesitation: float = 0.0, expert: str = "searcher", **options: object
) -> list[Demonstration]:
    environment = HouseholdEnvironment(HouseholdConfig(**options))  # type: ignore[arg-type]
    return list(demonstrations(environment, count, seed, detour, max_turns, hesitation=hesitation, expert=expert))


def test_they_are_repeatable_and_seeds_use_other_games() -> None:
    assert examples(5, 1, 0.3) == examples(5, 1, 0.3)
    keys = [{example.task_key for example in examples(20, seed)} for seed in (0, 1)]
    assert not keys[0] & keys[1]
    assert all(key.startswith("household/demonstrations/") for key in keys[0] | keys[1])


def test_without_detours_all_episodes_are_won_within_the_limit() -> None:
    for _, episode in itertools.groupby(examples(60), key=lambda example: example.task_key):
        turns = list(episode)
        assert [example.turn for example in turns] == list(range(len(turns)))
        assert len(turns) < 30
        assert not any(example.wasted for example in turns)


def test_detours_are_carried_out_and_the_way_back_is_taught() -> None:
    turns = examples(200, detour=0.3, history_length=1)
    strays = [example for example in turns if example.wasted]
    assert 0.27 < len(strays) / len(turns) < 0.33
    assert not {example.response.split()[0] for example in turns} & {"examine", "help", "inventory", "look"}, "the expert never idles"
    longer = len(turns) / 200
    assert longer > len(examples(200)) / 200 + 2
    followed = [
        f"{example.response} . " in following.messages[0]["content"]
        for example, following in itertools.pairwise(turns)
        if following.turn == example.turn + 1 and example.wasted
    ]
    assert sum(followed) / len(followed) < 0.2, "what was carried out is not what is taught, but for chance"


def test_what_was_done_is_in_the_next_prompt() -> None:
    turns = examples(20, hesitation=0.4, history_length=1)
    for example, following in itertools.pairwise(turns):
        if following.turn == example.turn + 1:
            assert f"{example.response} . " in following.messages[0]["content"]


def test_the_oracle_goes_straight_to_the_win() -> None:
    environment = HouseholdEnvironment(HouseholdConfig())
    for key, episode in itertools.groupby(examples(30, expert="oracle"), key=lambda example: example.task_key):
        number = int(key.rpartition("/")[2])
        game = environment.load_game(environment.task("demonstrations", number))
        assert [example.response for example in episode] == list(game.walkthrough)


@pytest.mark.parametrize("expert", EXPERTS)
def test_hesitation_wastes_turns_and_is_taught(expert: str) -> None:
    turns = examples(100, hesitation=0.4, expert=expert)
    idle = [example for example in turns if example.wasted]
    assert 0.35 < len(idle) / len(turns) < 0.45
    assert {example.response.split()[0] for example in idle} == {"look", "inventory", "examine"}
    for example in idle:
        prompt = example.messages[0]["content"]
        if example.response.startswith("examine"):
            assert f". at {example.response.removeprefix('examine ')} closed ." in prompt
        else:
            assert (example.response == "look") == ("hold nothing" in prompt)
    if expert == "oracle":
        straight = [example.response for example in turns if not example.wasted]
        assert straight == [example.response for example in examples(100, expert=expert)], "hesitating changes nothing in the world"


def test_detours_and_hesitation_add_up() -> None:
    turns = examples(150, detour=0.3, hesitation=0.3)
    assert 0.56 < sum(example.wasted for example in turns) / len(turns) < 0.64
    assert not any(example.wasted for example in examples(20))


def test_an_unknown_expert_is_refused_with_advice() -> None:
    with pytest.raises(UsageError, match="orakle") as failure:
        examples(1, expert="orakle")
    assert "oracle" in failure.value.fix


def test_the_limit_cuts() -> None:
    assert max(example.turn for example in examples(20, max_turns=4)) == 3


def test_other_templates() -> None:
    example = examples(1, template="verl_agent")[0]
    assert example.response.startswith("<think>")
    assert "<action>go to " in example.response
    assert "[" in example.messages[0]["content"]
