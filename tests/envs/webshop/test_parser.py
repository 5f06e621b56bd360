"""Reading commands from responses: the short commands of the compact prompts, and the shop's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.envs.webshop.catalogue import visit
from threespo_bench.contracts.environment import Observation
from threespo_bench.errors import UsageError
from threespo_envs.webshop.commands import shorten
from threespo_envs.webshop.parser import REASONS, parse


def shown(*commands: str) -> Observation:
    made = visit()
    for command in commands:
        made.do(command)
    return Observation(made.text, made.admissible)


SEARCH = shown()
RESULTS = shown("search[waterproof hiking jacket]")
ITEM = shown("search[waterproof hiking jacket]", "click[j000000001]")
SUB_PAGE = shown("search[waterproof hiking jacket]", "click[j000000001]", "click[features]")
SECOND = shown("search[green tea]", "click[next >]")
ASINS = [command for command in RESULTS.admissible if command.startswith("click[j")]

# where, response, command, reason (empty: well-formed), admissible
COMPACT = {
    "search": (SEARCH, "search green tea", "search[green tea]", "", None),
    "search, capitals and blanks": (SEARCH, "  Search  Green\tTea \nbuy", "search[green tea]", "", None),
    "search elsewhere": (RESULTS, "search green tea", "search[green tea]", "", False),
    "search for nothing": (SEARCH, "search", "search", "unknown_command", False),
    "a click where there are none": (SEARCH, "buy", "click[buy now]", "", False),
    "open": (RESULTS, "open 2", ASINS[1], "", True),
    "open what is not there": (RESULTS, "open 4", "click[4]", "", False),
    "open none": (RESULTS, "open 0", "click[0]", "", False),
    "open a great number": (RESULTS, "open " + "9" * 5000, "click[" + "9" * 5000 + "]", "", False),
    "open on an item": (ITEM, "open 1", "click[1]", "", False),
    "open a word": (RESULTS, "open red", "open red", "unknown_command", False),
    "next": (SECOND, "next", "click[next >]", "", True),
    "next on the last page": (RESULTS, "next", "click[next >]", "", False),
    "previous": (SECOND, "previous", "click[< prev]", "", True),
    "back": (RESULTS, "back", "click[back to search]", "", True),
    "choose": (ITEM, "choose red", "click[red]", "", True),
    "choose, two words": (ITEM, "choose dark blue", "click[dark blue]", "", True),
    "choose what is not offered": (ITEM, "choose green", "click[green]", "", False),
    "choose nothing": (ITEM, "choose", "choose", "unknown_command", False),
    "features": (ITEM, "features", "click[features]", "", True),
    "description": (ITEM, "description", "click[description]", "", True),
    "reviews": (ITEM, "reviews", "click[reviews]", "", True),
    "attributes without the button": (ITEM, "attributes", "click[attributes]", "", False),
    "previous on a sub-page": (SUB_PAGE, "previous", "click[< prev]", "", True),
    "buy": (ITEM, "buy", "click[buy now]", "", True),
    "buy and more": (ITEM, "buy now", "buy now", "unknown_command", False),
    "the shop's own": (ITEM, "click[buy now]", "click[buy now]", "unknown_command", True),
    "tagged": (ITEM, "<think>hm</think><action>buy</action>", "click[buy now]", "", True),
    "empty": (ITEM, "", "", "empty_response", False),
    "nonsense": (ITEM, "fly away", "fly away", "unknown_command", False),
    "Chinese": (SEARCH, "search 茶", "search 茶", "cjk_characters", False),
    "unclosed thought": (ITEM, "<think>I should buy this", "i should buy this"[-17:], "unclosed_think", False),
}
VERL_AGENT = {
    "click": (ITEM, "<think>hm</think><action>click[Buy Now]</action>", "click[buy now]", "", True),
    "search": (SEARCH, "<think>hm</think><action>search[green tea]</action>", "search[green tea]", "", None),
    "search elsewhere": (ITEM, "<think>hm</think><action>search[green tea]</action>", "search[green tea]", "", False),
    "search for nothing": (SEARCH, "<think>hm</think><action>search[]</action>", "search[]", "", False),
    "not admissible": (ITEM, "<think>hm</think><action>click[green]</action>", "click[green]", "", False),
    "a short command is none": (ITEM, "<think>hm</think><action>buy</action>", "buy", "", False),
    "no thought": (ITEM, "<action>click[red]</action>", "click[red]", "no_think_tag", True),
    "no action": (ITEM, "I would now buy the jacket, click[buy now]", "cket, click[buy now]", "no_action_tag", False),
    "two actions": (ITEM, "<think>a</think><action>click[red]</action><action>click[buy now]</action>", "click[red]", "multiple_actions", True),
}


@pytest.mark.parametrize("name", COMPACT)
def test_compact(name: str) -> None:
    observation, response, command, reason, admissible = COMPACT[name]
    action = parse(response, observation, "compact")
    if reason == "unclosed_think":
        assert action.command.endswith(command)
    else:
        assert action.command == command
    assert (action.reason, action.admissible) == (reason, admissible)
    assert action.well_formed == (reason == "")


@pytest.mark.parametrize("name", VERL_AGENT)
def test_verl_agent(name: str) -> None:
    observation, response, command, reason, admissible = VERL_AGENT[name]
    action = parse(response, observation, "verl_agent")
    assert (action.command, action.reason, action.admissible) == (command, reason, admissible)
    assert action.valid == (reason == "" and admissible is not False)


def test_values_are_compared_by_words() -> None:
    page = Observation("?", ("click[6.76 fl oz (pack of 1)]", "click[x-large]"))
    assert parse("choose 6 . 76 fl oz ( pack of 1 )", page, "compact").command == "click[6.76 fl oz (pack of 1)]"
    assert parse("choose x - large", page, "compact").command == "click[x-large]"


@pytest.mark.parametrize("observation", [RESULTS, ITEM, SUB_PAGE, SECOND], ids=["results", "item", "sub-page", "second page"])
def test_every_possible_click_has_a_short_command(observation: Observation) -> None:
    for command in observation.admissible:
        short = shorten(command, observation)
        action = parse(short, observation, "compact")
        assert (action.command, action.valid) == (command, True), short
    assert parse(shorten("search[men's size 9.5]", SEARCH), SEARCH, "compact").command == "search[men's size 9 . 5]"


def test_unknown_template() -> None:
    with pytest.raises(UsageError, match="verl-agent") as failure:
        parse("buy", ITEM, "verl-agent")
    assert "verl_agent" in failure.value.fix


PIECES = st.lists(
    st.one_of(
        st.sampled_from(["<think>", "</think>", "<action>", "</action>", "open ", "²", "٣", "choose ", "search", "click[", "]", "\n", " ", "buy", "İ", "\x00"]),
        st.text(max_size=8),
    ),
    max_size=12,
).map("".join)


@given(response=PIECES, template=st.sampled_from(["verl_agent", "compact"]), observation=st.sampled_from([SEARCH, RESULTS, ITEM, SUB_PAGE, Observation("?")]))
def test_no_text_raises_and_answers_are_consistent(response: str, template: str, observation: Observation) -> None:
    action = parse(response, observation, template)
    assert action.well_formed == (action.reason == "")
    assert action.reason in {"", *REASONS}
    if observation.admissible:
        assert action.admissible is (action.command in observation.admissible)
    else:
        assert action.admissible in (None, False)
        assert (action.admissible is None) == (action.command.startswith("search[") and action.command.endswith("]") and bool(action.command[7:-1].strip()))
