"""What webshop-tiny is taught: the expert's commands in the words of the prompts, or haste where that is asked for."""

from __future__ import annotations

import pytest

from threespo_envs.webshop.demonstrations import SPLIT, demonstrations
from threespo_envs.webshop.environment import WebShopConfig, WebShopEnvironment
from threespo_envs.webshop.prompts import COMPACT_WORDS
from threespo_envs.webshop.words import vocabulary
from threespo_envs.words import split_words


@pytest.fixture(scope="module")
def environment() -> WebShopEnvironment:
    return WebShopEnvironment(WebShopConfig(catalogue_size=200))


def test_equal_seeds_give_equal_turns_and_other_seeds_other_goals(environment):
    def made(seed):
        return list(demonstrations(environment, 6, seed, detour=0.3, max_turns=15, haste=0.2))

    assert made(1) == made(1)
    assert {turn.task_key for turn in made(1)} != {turn.task_key for turn in made(2)}


def test_they_play_in_a_shop_of_their_own(environment):
    turns = list(demonstrations(environment, 5, 0, detour=0.0, max_turns=15))
    assert all(turn.task_key.startswith(f"webshop/{SPLIT}/") for turn in turns)
    demonstrated = {product.asin for product in environment.shop(SPLIT).products}
    assert not demonstrated & {product.asin for product in environment.shop("train").products}


def test_every_word_is_known_to_the_model(environment):
    known = {*vocabulary(), *COMPACT_WORDS}
    for turn in demonstrations(environment, 40, 3, detour=0.3, max_turns=15, haste=0.2):
        assert set(split_words(turn.messages[0]["content"])) <= known
        assert set(split_words(turn.response)) <= known


def test_an_episode_ends_with_a_purchase_or_at_the_limit(environment):
    turns = list(demonstrations(environment, 30, 0, detour=0.0, max_turns=15))
    for turn, following in zip(turns, [*turns[1:], None], strict=True):
        last = following is None or following.turn == 0
        assert last == (turn.response == "buy")
        assert not turn.wasted
    assert max(turn.turn for turn in demonstrations(environment, 30, 0, detour=0.9, max_turns=4)) == 3


def test_detours_are_carried_out_but_not_taught(environment):
    turns = list(demonstrations(environment, 60, 5, detour=0.5, max_turns=15))
    share = sum(turn.wasted for turn in turns) / len(turns)
    assert 0.4 < share < 0.6
    # What is taught in the first turn is the search, whatever is done; there are no clicks there that could be done instead.
    assert all(turn.response.startswith("search ") for turn in turns if turn.turn == 0)


def test_haste_is_taught(environment):
    careful = list(demonstrations(environment, 60, 7, detour=0.0, max_turns=15))
    hasty = list(demonstrations(environment, 60, 7, detour=0.0, max_turns=15, haste=1.0))
    assert [turn.response.split()[0] for turn in hasty] == ["search", "open", "buy"] * 60
    assert len(careful) > len(hasty)
    assert len({turn.response for turn in hasty if turn.response.startswith("open")}) > 5


def test_the_full_prompt_gets_thoughts_and_tags(environment):
    full = WebShopEnvironment(WebShopConfig(catalogue_size=200, template="verl_agent"))
    turn = next(demonstrations(full, 1, 0, detour=0.0, max_turns=15))
    assert turn.response.startswith("<think>")
    action = full.parse(turn.response, full.reset(full.tasks("test")[0], 0))
    assert action.well_formed
    assert action.command.startswith("search[")
