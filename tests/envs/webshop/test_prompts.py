"""The prompts, word for word: a change here is a new version of the template."""

from __future__ import annotations

from random import Random

import pytest

from tests.envs.webshop.catalogue import visit
from threespo_bench.contracts.environment import Observation, PromptContext, Task, Turn
from threespo_bench.errors import UsageError
from threespo_envs.webshop.commands import shorten
from threespo_envs.webshop.environment import WebShopConfig, WebShopEnvironment
from threespo_envs.webshop.expert import Searcher
from threespo_envs.webshop.prompts import COMPACT_WORDS, LONGEST_PROMPT, TEMPLATES, render
from threespo_envs.webshop.words import vocabulary
from threespo_envs.words import split_words

TASK = Task("webshop/test/00000", "fashion", "test")
WISH = "find waterproof hiking jackets with breathable cotton . with color red , size large . under 40"
RESULTS = "1 waterproof hiking jackets breathable cotton over 99 dollars , 2 {}waterproof hiking jackets 25 dollars , 3 {}hiking jackets 19 dollars"
ITEM = "title norwind waterproof hiking jacket . 25 dollars . color : red , dark blue . size : small , large ."
LEFT = "left heath hiking jacket , norwind waterproof hiking jacket"

# (command, the compact prompt after it)
ERRAND = [
    ("", f"{WISH} . at search ."),
    ("search[waterproof hiking jackets]", f"page 1 of 1 . {RESULTS.format('', '')} . {WISH} . at results ."),
    (
        "click[j000000003]",
        f"title heath hiking jacket . 19 dollars . lacks waterproof breathable cotton color size . seen 1 . chosen nothing . {WISH} . at item .",
    ),
    ("click[< prev]", f"page 1 of 1 . {RESULTS.format('', 'seen ')} . {WISH} . at results ."),
    ("click[j000000001]", f"{ITEM} lacks breathable cotton . seen 2 . chosen nothing . {WISH} . at item ."),
    ("click[features]", f"features made of breathable cotton , two pockets . lacks nothing . {WISH} . at features ."),
    ("click[< prev]", f"{ITEM} features breathable cotton . lacks nothing . seen 2 . chosen nothing . {WISH} . at item ."),
    ("click[red]", f"{ITEM} features breathable cotton . lacks nothing . seen 2 . chosen color red . {WISH} . at item ."),
    ("click[description]", f"description a jacket for all seasons . lacks nothing . {WISH} . at description ."),
    ("click[< prev]", f"{ITEM} description jackets . features breathable cotton . lacks nothing . seen 2 . chosen color red . {WISH} . at item ."),
    ("click[large]", f"{ITEM} description jackets . features breathable cotton . lacks nothing . seen 2 . chosen color red , size large . {WISH} . at item ."),
    ("click[reviews]", f"reviews nothing . lacks nothing . {WISH} . at reviews ."),
    ("click[back to search]", f"tried waterproof hiking jackets . {LEFT} . {WISH} . at search ."),
    ("click[nothing]", f"tried waterproof hiking jackets . {LEFT} . {WISH} . at search ."),
    ("search[zzz]", f"page 1 of 1 . nothing . {WISH} . at results ."),
]


def contexts(commands: list[str], instruction: str = "color: red, and size: large", show_attributes: bool = False) -> list[PromptContext]:
    """What a prompt can be made of before the first command and after each."""
    made = visit(instruction, show_attributes)
    history: tuple[Turn, ...] = ()
    found = [PromptContext(TASK, history, Observation(made.text, made.admissible), 15)]
    for command in commands:
        history += (Turn(made.text, command),)
        made.do(command)
        found.append(PromptContext(TASK, history, Observation(made.text, made.admissible), 15))
    return found


def text(context: PromptContext, template: str, **options: object) -> str:
    (message,) = render(context, template, **options)  # type: ignore[arg-type]
    assert message["role"] == "user"
    return message["content"]


@pytest.mark.parametrize("turn", range(len(ERRAND)))
def test_compact_along_an_errand(turn: int) -> None:
    (context,) = contexts([command for command, _ in ERRAND[1 : turn + 1]])[-1:]
    assert text(context, "compact") == ERRAND[turn][1]


def test_compact_is_equal_in_equal_states_on_whatever_way() -> None:
    there = ["search[waterproof hiking jackets]", "click[j000000001]"]
    one = contexts([*there, "click[red]", "click[large]"])[-1]
    other = contexts([*there, "click[dark blue]", "click[large]", "fly away", "click[red]"])[-1]
    assert text(one, "compact") == text(other, "compact")
    assert text(one, "compact") != text(contexts([*there, "click[red]"])[-1], "compact")


def test_compact_after_the_choices_were_forgotten() -> None:
    again = contexts(["search[waterproof hiking jackets]", "click[j000000001]", "click[red]", "click[< prev]", "click[j000000001]"])[-1]
    assert " chosen nothing . " in text(again, "compact")


def test_a_search_on_another_page_is_no_choice() -> None:
    context = contexts(["search[waterproof hiking jackets]", "click[j000000001]", "search[red]"])[-1]
    assert " chosen nothing . " in text(context, "compact")


def test_compact_without_options_and_with_pages() -> None:
    context = contexts(["search[green tea]", "click[next >]"], "organic green tea")[-1]
    prompt = text(context, "compact")
    assert prompt.startswith("page 2 of 3 . 1 green tea ")
    assert " find organic green tea . under " in prompt and " with " not in prompt


def test_compact_options() -> None:
    context = contexts(["search[waterproof hiking jackets]", "click[j000000001]", "click[features]"])[-1]
    prompt = text(context, "compact", history_length=2, list_admissible=True)
    assert prompt.startswith("can back , previous . last open 2 , features . features made of ")
    assert text(contexts([])[0], "compact", history_length=2, list_admissible=True) == f"can search . last nothing . {WISH} . at search ."


def test_compact_with_the_page_of_attributes() -> None:
    there = ["search[waterproof hiking jackets]", "click[j000000001]", "click[attributes]"]
    made = contexts([*there, "click[< prev]"], show_attributes=True)
    assert text(made[-2], "compact").startswith("attributes waterproof , breathable cotton , fashion , ")
    assert " . attributes waterproof hiking jackets breathable cotton . lacks nothing . " in text(made[-1], "compact")


def test_compact_has_no_words_but_those_of_texts_and_its_own() -> None:
    made = contexts([command for command, _ in ERRAND[1:]])
    for context in made:
        known = {*COMPACT_WORDS, *split_words(" ".join([context.observation.text, *(turn.observation for turn in context.history)])), "25", "zzz"}
        words = text(context, "compact", history_length=3, list_admissible=True).split()
        assert set(words) <= known


def test_compact_shows_texts_of_an_unknown_form() -> None:
    for shown in ("Out of order.", "", "Instruction:", "Instruction: [SEP] x", "Instruction: [SEP] Find me tea [SEP] Back to Search", " [SEP] " * 5):
        prompt = text(PromptContext(TASK, (), Observation(shown), 15), "compact")
        assert prompt.endswith("at nowhere .")
    assert text(PromptContext(TASK, (), Observation("Out of order."), 15), "compact").startswith("out of order . ")


def test_prompts_are_made_of_the_texts_alone() -> None:
    context = contexts(["search[waterproof hiking jackets]", "click[j000000001]"])[-1]
    other = PromptContext(Task("other", "other", "other", payload=object()), context.history, context.observation, 99)
    for template in TEMPLATES:
        assert render(context, template) == render(other, template)


VERL_FIRST = """You are an agent in WebShop, an online shop, and you act by searching and clicking.

Your task: Find me waterproof hiking jackets with breathable cotton with color: red, and size: large, and price lower than 40.00 dollars

What you see now: 'Search'

The actions that you can use now:
['search[<your query>]']

It is your move. Work out first, step by step, what the situation is and what to do next, and write this between <think> and </think>. \
Then pick exactly one of the actions listed above and write it between <action> and </action>."""

VERL_LATER = """You are an agent in WebShop, an online shop, and you act by searching and clicking.

Your task: Find me waterproof hiking jackets with breathable cotton with color: red, and size: large, and price lower than 40.00 dollars

Steps taken so far: 3. The latest 2, each with what you saw before it:
[Observation 2: 'Back to Search', 'Page 1 (Total results: 3)', 'J000000002', 'Alpin Waterproof Hiking Jacket, Breathable Cotton', '$99.0', 'J000000001', \
'Norwind Waterproof Hiking Jacket', '$24.5', 'J000000003', 'Heath Hiking Jacket', '$19.0', Action 2: 'click[j000000003]']
[Observation 3: 'Back to Search', '< Prev', 'Heath Hiking Jacket', 'Price: $19.0', 'Rating: N.A.', 'Description', 'Features', 'Reviews', 'Buy Now', \
Action 3: 'click[features]']

This is step 4. What you see now: 'Back to Search', '< Prev', 'Warm lining.'

The actions that you can use now:
['click[back to search]'
'click[< prev]']

It is your move. Work out first, step by step, what the situation is and what to do next, and write this between <think> and </think>. \
Then pick exactly one of the actions listed above and write it between <action> and </action>."""


def test_verl_agent_first_and_later_turns() -> None:
    made = contexts(["search[waterproof hiking jackets]", "click[j000000003]", "click[features]"])
    assert text(made[0], "verl_agent") == VERL_FIRST
    assert text(made[-1], "verl_agent") == VERL_LATER


def test_verl_agent_options() -> None:
    context = contexts(["search[waterproof hiking jackets]", "click[j000000003]", "click[features]"])[-1]
    bare = text(context, "verl_agent", history_length=0, list_admissible=False)
    assert "Steps taken" not in bare and "listed above" not in bare and "'click[" not in bare
    assert "pick exactly one action, search[<your query>] or click[<what to click>], and write" in bare
    assert "The latest 3," in text(context, "verl_agent", history_length=50)


def test_verl_agent_drops_the_history_of_too_long_a_prompt() -> None:
    page = "Instruction: [SEP] Find me tea [SEP] Back to Search [SEP] < Prev [SEP] " + "word " * 2000
    context = PromptContext(TASK, (Turn(page, "click[< prev]"),), Observation(page, ("click[< prev]",)), 15)
    prompt = text(context, "verl_agent")
    assert "Steps taken" not in prompt and LONGEST_PROMPT > len(prompt) > len(page)
    much_longer = PromptContext(TASK, context.history, Observation(page * 2, ("click[< prev]",)), 15)
    assert len(text(much_longer, "verl_agent")) > LONGEST_PROMPT, "the page itself is never cut"
    short = page[: -len("word " * 1000)]
    assert "Steps taken so far: 1." in text(PromptContext(TASK, (Turn(short, "click[< prev]"),), Observation(short), 15), "verl_agent")


def test_unknown_template() -> None:
    with pytest.raises(UsageError, match="compct") as failure:
        render(contexts([])[0], "compct")
    assert "compact" in failure.value.fix


def test_versions() -> None:
    assert {name: template.version for name, template in TEMPLATES.items()} == {"compact": "compact-1", "verl_agent": "verl_agent-1"}
    assert {name: template.max_new_tokens for name, template in TEMPLATES.items()} == {"compact": 24, "verl_agent": 512}


def test_the_words_of_generated_shops_are_known() -> None:
    known = {*vocabulary(), *COMPACT_WORDS}
    environment = WebShopEnvironment(WebShopConfig(catalogue_size=300))
    rng = Random(0)
    for split in ("train", "demonstrations"):
        for task in environment.tasks(split)[:40]:
            observation, history, searcher = environment.reset(task, 0), (), Searcher()
            for _ in range(environment.max_turns):
                context = PromptContext(task, history, observation, environment.max_turns)
                words = text(context, "compact", history_length=2, list_admissible=True).split()
                assert set(words) <= known, sorted(set(words) - known)
                command = searcher.act(observation)
                assert set(shorten(command, observation).split()) <= known
                if observation.admissible and rng.random() < 0.3:
                    command = rng.choice(observation.admissible)
                searcher.carried_out(command)
                history += (Turn(observation.text, command),)
                step = environment.step(command)
                if step.terminated:
                    break
                observation = step.observation
