"""Reading commands from responses: one row for each way in which models write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threespo_bench.contracts.environment import Observation
from threespo_bench.errors import UsageError
from threespo_envs.alfred.parser import REASONS, parse

GO = "go to fridge 1"
SHOWN = Observation("You are in the middle of a room.", ("go to fridge 1", "look", "take apple 1 from fridge 1"))

# response, command, reason (empty: well-formed), admissible
VERL_AGENT = {
    "plain": ("<think>hm</think><action>go to fridge 1</action>", GO, "", True),
    "blanks around": ("  <think> hm </think>\n\n<action>  go to fridge 1\n</action>  ", GO, "", True),
    "capitals": ("<think>hm</think><action>Go To FRIDGE 1</action>", GO, "", True),
    "capital tags": ("<THINK>hm</THINK><Action>go to fridge 1</ACTION>", GO, "", True),
    "double blanks": ("<think>hm</think><action>go  to\tfridge 1</action>", GO, "", True),
    "text between": ("<think>hm</think> So: <action>go to fridge 1</action>", GO, "", True),
    "text after": ("<think>hm</think><action>go to fridge 1</action> done", GO, "", True),
    "text before": ("Well. <think>hm</think><action>look</action>", "look", "", True),
    "empty thought": ("<think></think><action>look</action>", "look", "", True),
    "not admissible": ("<think>hm</think><action>fly away</action>", "fly away", "", False),
    "full stop is kept": ("<think>hm</think><action>go to fridge 1.</action>", "go to fridge 1.", "", False),
    "thought of an action": ("<think>maybe <action>look</action></think><action>go to fridge 1</action>", GO, "", True),
    "thought of an opening tag": ("<think>use <action> now</think><action>go to fridge 1</action>", GO, "", True),
    "only a thought action": ("<think>maybe <action>look</action></think>", "maybe <action>look</action></think>"[-30:], "no_action_tag", False),
    "no tags": (GO, GO, "no_action_tag", True),
    "no tags, long": ("I would like now to go to fridge 1", "uld like now to go to fridge 1", "no_action_tag", False),
    "no action": ("<think>hm</think>", "<think>hm</think>", "no_action_tag", False),
    "no action but a command": ("<think>hm</think>go to fridge 1", "<think>hm</think>go to fridge 1"[-30:], "no_action_tag", False),
    "no thought": ("<action>go to fridge 1</action>", GO, "no_think_tag", True),
    "thought without opening": ("hm</think><action>go to fridge 1</action>", GO, "no_think_tag", True),
    "thought action without opening": ("try <action>look</action></think><action>go to fridge 1</action>", GO, "no_think_tag", True),
    "unclosed thought": ("<think>hm", "<think>hm", "unclosed_think", False),
    "unclosed thought with action": ("<think>hm <action>look</action>", "<think>hm <action>look</action>"[-30:], "unclosed_think", False),
    "closing before opening": ("</think>hm<think><action>look</action>", "nk>hm<think><action>look</action>"[-30:], "unclosed_think", False),
    "unclosed action": ("<think>hm</think><action>go to fridge 1", GO, "unclosed_action", True),
    "unclosed action, other tag": ("<think>hm</think><action>go to fridge 1</act>", GO, "unclosed_action", True),
    "closing before opening action": ("<think>hm</think></action>look<action>", "", "unclosed_action", False),
    "empty action": ("<think>hm</think><action></action>", "", "empty_action", False),
    "blank action": ("<think>hm</think><action> \n </action>", "", "empty_action", False),
    "empty": ("", "", "empty_response", False),
    "blank": (" \n\t ", "", "empty_response", False),
    "action first": ("<action>look</action><think>hm</think>", "look", "action_before_think", True),
    "action before and after": ("<action>look</action><think>hm</think><action>go to fridge 1</action>", GO, "multiple_actions", True),
    "two actions": ("<think>hm</think><action>go to fridge 1</action><action>look</action>", GO, "multiple_actions", True),
    "second action unclosed": ("<think>hm</think><action>go to fridge 1</action><action>", GO, "multiple_actions", True),
    "Chinese thought": ("<think>去冰箱</think><action>go to fridge 1</action>", GO, "cjk_characters", True),
    "Chinese action": ("<think>hm</think><action>去冰箱</action>", "去冰箱", "cjk_characters", False),
    "Japanese": ("<think>れいぞうこ</think><action>look</action>", "look", "cjk_characters", True),
    "Korean": ("<think>냉장고</think><action>look</action>", "look", "cjk_characters", True),
    "full-width digit": ("<think>hm</think><action>go to fridge １</action>", "go to fridge １", "cjk_characters", False),
    "accents are fine": ("<think>déjà vu</think><action>look</action>", "look", "", True),
    "nested thought": ("<think>a<think>b</think><action>look</action>", "look", "", True),
    "command in quotes is as it is": ("<think>hm</think><action>'look'</action>", "'look'", "", False),
}

COMPACT = {
    "plain": (GO, GO, "", True),
    "capitals and blanks": ("  Go to  Fridge 1 \n", GO, "", True),
    "first line": ("go to fridge 1\nlook", GO, "", True),
    "first line with text": ("\n\n  \ngo to fridge 1\nlook", GO, "", True),
    "not admissible": ("go to fridge 2", "go to fridge 2", "", False),
    "after a thought": ("<think>look</think>\ngo to fridge 1", GO, "", True),
    "after a thought without opening": ("look</think>go to fridge 1", GO, "", True),
    "tagged": ("<action>go to fridge 1</action>", GO, "", True),
    "thought and tagged": ("<think>hm</think><action>go to fridge 1</action>", GO, "", True),
    "only opened": ("<action>go to fridge 1", GO, "", True),
    "only closed": ("go to fridge 1</action>", GO, "", True),
    "tag on its own line": ("<action>\ngo to fridge 1\n</action>", GO, "", True),
    "empty": ("", "", "empty_response", False),
    "blank": (" \n ", "", "empty_response", False),
    "only a thought": ("<think>hm</think>", "", "empty_response", False),
    "empty tags": ("<action></action>", "", "empty_action", False),
    "unclosed thought": ("<think>go to fridge 1", "<think>go to fridge 1", "unclosed_think", False),
    "Chinese": ("去冰箱", "去冰箱", "cjk_characters", False),
}


@pytest.mark.parametrize("name", VERL_AGENT)
def test_verl_agent(name: str) -> None:
    response, command, reason, admissible = VERL_AGENT[name]
    action = parse(response, SHOWN, "verl_agent")
    assert (action.command, action.reason, action.admissible) == (command.strip(), reason, admissible)
    assert action.well_formed == (reason == "")
    assert action.valid == (reason == "" and admissible)


@pytest.mark.parametrize("name", COMPACT)
def test_compact(name: str) -> None:
    response, command, reason, admissible = COMPACT[name]
    action = parse(response, SHOWN, "compact")
    assert (action.command, action.reason, action.admissible) == (command, reason, admissible)
    assert action.well_formed == (reason == "")


def test_every_reason_has_a_row() -> None:
    assert {reason for _, _, reason, _ in [*VERL_AGENT.values(), *COMPACT.values()]} == {"", *REASONS}


def test_without_a_list_admissibility_is_unknown() -> None:
    action = parse("go to fridge 1", Observation("?"), "compact")
    assert action.admissible is None
    assert action.valid


def test_unknown_template() -> None:
    with pytest.raises(UsageError, match="verl-agent") as failure:
        parse("look", SHOWN, "verl-agent")
    assert "verl_agent" in failure.value.fix


PIECES = st.lists(
    st.one_of(st.sampled_from(["<think>", "</think>", "<action>", "</action>", "<", ">", "\n", " ", "look", "İ", "\x00", "\u2028"]), st.text(max_size=8)),
    max_size=12,
).map("".join)


@given(response=PIECES, template=st.sampled_from(["verl_agent", "compact"]))
def test_no_text_raises_and_answers_are_consistent(response: str, template: str) -> None:
    action = parse(response, SHOWN, template)
    assert action.well_formed == (action.reason == "")
    assert action.reason in {"", *REASONS}
    assert action.admissible is (action.command in SHOWN.admissible)
    assert action.command == " ".join(action.command.split())
    if action.well_formed:
        assert action.command


@given(thought=st.text(alphabet="ab <>/\n", max_size=30))
def test_a_thought_never_changes_the_action(thought: str) -> None:
    action = parse(f"<think>{thought}</think><action>look</action>", SHOWN, "verl_agent")
    assert (action.command, action.reason) == ("look", "")
