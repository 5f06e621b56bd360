"""The prompts, word for word: a change here is a new version of the template."""

from __future__ import annotations

from random import Random

import pytest

from threespo_bench.contracts.environment import Observation, PromptContext, Task, Turn
from threespo_bench.errors import UsageError
from threespo_envs.alfred.game import Game
from threespo_envs.alfred.prompts import TEMPLATES, render
from threespo_envs.alfred.world import World
from threespo_envs.household.generator import Shape, household_game

TASK = Task("household/train/00000", "pick_heat_then_place_in_recep", "train")
WELCOME = "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see "


def start(sentence: str, places: str = "a fridge 1, a microwave 1, a shelf 2, and a shelf 1") -> str:
    return f"{WELCOME}{places}.\n\nYour task is to: {sentence}."


# (command, what it was answered), after the start
ERRAND = [
    ("go to fridge 1", "You arrive at fridge 1. The fridge 1 is closed."),
    ("open fridge 1", "You open the fridge 1. The fridge 1 is open. In it, you see a apple 2, and a egg 1."),
    ("take apple 2 from fridge 1", "You pick up the apple 2 from the fridge 1."),
    ("heat apple 2 with fridge 1", "Nothing happens."),
    ("go to microwave 1", "You arrive at microwave 1. The microwave 1 is closed."),
    ("heat apple 2 with microwave 1", "You heat the apple 2 using the microwave 1."),
    ("go to shelf 1", "You arrive at shelf 1. On the shelf 1, you see a apple 1, and a book 1."),
    ("move apple 2 to shelf 1", "You move the apple 2 to the shelf 1."),
]
ERRAND_PROMPTS = [
    "new fridge 1 microwave 1 shelf 2 shelf 1 . old nothing . last nothing . see nothing . goal heat apple in shelf . hold nothing . at middle .",
    "new fridge 1 microwave 1 shelf 2 shelf 1 . old nothing . last go to fridge 1 . see unknown . goal heat apple in shelf . "
    "hold nothing . at fridge 1 closed .",
    "new microwave 1 shelf 2 shelf 1 . old fridge 1 . last go to fridge 1 , open fridge 1 . see apple 2 egg 1 . here apple 2 . "
    "goal heat apple in shelf . hold nothing . at fridge 1 open .",
    "new microwave 1 shelf 2 shelf 1 . old fridge 1 . last open fridge 1 , take apple 2 from fridge 1 . see egg 1 . "
    "goal heat apple in shelf . hold apple 2 . at fridge 1 open .",
    "new microwave 1 shelf 2 shelf 1 . old fridge 1 . last take apple 2 from fridge 1 , heat apple 2 with fridge 1 failed . see egg 1 . "
    "goal heat apple in shelf . hold apple 2 . at fridge 1 open .",
    "new microwave 1 shelf 2 shelf 1 . old fridge 1 . last heat apple 2 with fridge 1 failed , go to microwave 1 . see unknown . "
    "goal heat apple in shelf . hold apple 2 . at microwave 1 closed .",
    "new microwave 1 shelf 2 shelf 1 . old fridge 1 . last go to microwave 1 , heat apple 2 with microwave 1 . see unknown . "
    "goal heat apple in shelf . hold apple 2 hot . at microwave 1 closed .",
    "new microwave 1 shelf 2 . old fridge 1 shelf 1 . last heat apple 2 with microwave 1 , go to shelf 1 . see apple 1 book 1 . "
    "here apple 1 . goal heat apple in shelf . hold apple 2 hot . at shelf 1 .",
    "new microwave 1 shelf 2 . old fridge 1 shelf 1 . last go to shelf 1 , move apple 2 to shelf 1 . see apple 1 book 1 apple 2 . "
    "here apple 1 apple 2 hot . goal heat apple in shelf . hold nothing . at shelf 1 .",
]


def context(sentence: str, turns: list[tuple[str, str]], admissible: tuple[str, ...] = (), max_turns: int = 30) -> PromptContext:
    texts = [start(sentence), *(text for _, text in turns)]
    history = tuple(Turn(text, command) for text, (command, _) in zip(texts, turns, strict=False))
    return PromptContext(TASK, history, Observation(texts[-1], admissible), max_turns)


def compact(sentence: str, turns: list[tuple[str, str]], **options: object) -> str:
    messages = render(context(sentence, turns), "compact", **options)  # type: ignore[arg-type]
    assert [message["role"] for message in messages] == ["user"]
    return messages[0]["content"]


@pytest.mark.parametrize("turn", range(len(ERRAND) + 1))
def test_compact_along_an_errand(turn: int) -> None:
    with_commands = compact("heat some apple and put it in shelf", ERRAND[:turn], history_length=2)
    assert with_commands == ERRAND_PROMPTS[turn]
    # By default the memory is all that is told of the past, so that equal states have equal prompts.
    before, _, after = with_commands.partition(" last ")
    assert compact("heat some apple and put it in shelf", ERRAND[:turn]) == f"{before} see {after.partition(' . see ')[2]}"


def test_compact_is_equal_in_equal_states_on_whatever_way() -> None:
    there = [("go to fridge 1", "You arrive at fridge 1. The fridge 1 is closed.")]
    shelf = [("go to shelf 1", "You arrive at shelf 1. On the shelf 1, you see a pen 1."), *there]
    detour = [*shelf, ("open fridge 1", "You open the fridge 1. The fridge 1 is open. In it, you see nothing.")]
    back = [*detour, ("close fridge 1", "You close the fridge 1.")]
    again = [*back, ("go to shelf 1", "You arrive at shelf 1. On the shelf 1, you see a pen 1."), *there]
    assert compact("put a mug in desk", back) == compact("put a mug in desk", again)
    assert compact("put a mug in desk", shelf) != compact("put a mug in desk", back), "what is inside the fridge is known now"
    assert compact("put a mug in desk", back, history_length=1) != compact("put a mug in desk", again, history_length=1)


def test_compact_for_two() -> None:
    turns = [
        ("go to shelf 2", "You arrive at shelf 2. On the shelf 2, you see a apple 3, and a pen 1."),
        ("take apple 3 from shelf 2", "You pick up the apple 3 from the shelf 2."),
        ("go to shelf 1", "You arrive at shelf 1. On the shelf 1, you see nothing."),
        ("move apple 3 to shelf 1", "You move the apple 3 to the shelf 1."),
        ("go to fridge 1", "You arrive at fridge 1. The fridge 1 is open. In it, you see a apple 2, and a apple 1."),
    ]
    assert compact("put two apple in shelf", turns).endswith(
        "see apple 2 apple 1 . done apple 3 in shelf 1 . here apple 2 apple 1 . goal two apple in shelf . hold nothing . at fridge 1 open ."
    )


def test_compact_for_look() -> None:
    turns = [
        ("go to shelf 2", "You arrive at shelf 2. On the shelf 2, you see a desklamp 1, and a pen 1."),
        ("use desklamp 1", "You turn on the desklamp 1."),
        ("take pen 1 from shelf 2", "You pick up the pen 1 from the shelf 2."),
    ]
    assert compact("examine the book with the desklamp", turns).endswith(
        "see desklamp 1 . here desklamp 1 lit . goal look book with desklamp . hold pen 1 . at shelf 2 ."
    )


@pytest.mark.parametrize(
    ("sentence", "goal"),
    [
        ("put a mug in desk", "put mug in desk"),
        ("put some mug on desk", "put mug in desk"),
        ("put two mug in desk", "two mug in desk"),
        ("find two mug and put them in desk", "two mug in desk"),
        ("put a clean mug in desk", "clean mug in desk"),
        ("clean some mug and put it in desk", "clean mug in desk"),
        ("put a hot mug in desk", "heat mug in desk"),
        ("heat some mug and put it in desk", "heat mug in desk"),
        ("put a cool mug in desk", "cool mug in desk"),
        ("cool some mug and put it in desk", "cool mug in desk"),
        ("look at mug under the desklamp", "look mug with desklamp"),
        ("examine the mug with the desklamp", "look mug with desklamp"),
        ("tidy up, please", "tidy up , please"),
    ],
)
def test_compact_goals(sentence: str, goal: str) -> None:
    assert f". goal {goal} . hold" in compact(sentence, [])


def test_compact_history_length() -> None:
    lines = {n: compact("heat some apple and put it in shelf", ERRAND[:5], history_length=n) for n in (0, 1, 4, 9)}
    assert " last " not in lines[0]
    assert " last go to microwave 1 . see" in lines[1]
    last_four = " last open fridge 1 , take apple 2 from fridge 1 , heat apple 2 with fridge 1 failed , go to microwave 1 . see"
    assert last_four in lines[4]
    assert " last go to fridge 1 , open fridge 1 , " in lines[9]


def test_compact_shows_texts_that_the_memory_has_no_place_for() -> None:
    turns = [("look", "You are facing the shelf 2, and shelf 1. Next to it, you see nothing.")]
    assert " . say you are facing the shelf 2 , and shelf 1 . next to it , you see nothing . see" in compact("put a mug in desk", turns)
    long = compact("put a mug in desk", [("help", "word " * 200), ("go " * 50, "Nothing happens.")], history_length=2)
    assert len(long.split()) < 60


def test_compact_with_admissible_commands() -> None:
    shown = context("put a mug in desk", [], admissible=("go to fridge 1", "help", "look"))
    assert render(shown, "compact", list_admissible=True)[0]["content"].startswith("can go to fridge 1 , look . new fridge 1 ")


def test_compact_is_made_of_the_texts_alone() -> None:
    shown = context("heat some apple and put it in shelf", ERRAND[:3])
    other = PromptContext(Task("other", "other", "other", payload=object()), shown.history, shown.observation, 99)
    assert render(shown, "compact") == render(other, "compact")


VERL_FIRST = """You are an agent in a simulated home, the ALFRED household, and you act by typing commands.

What you see now: {start}

The commands that you can use now:
['go to fridge 1'
'look']

It is your move. Work out first, step by step, what the situation is and what to do next, and write this between <think> and </think>. \
Then pick exactly one of the commands listed above and write it between <action> and </action>."""

VERL_LATER = """You are an agent in a simulated home, the ALFRED household, and you act by typing commands.

Your task: put a hot apple in shelf.

Steps taken so far: 3. The latest 2, each with what you saw before it:
[Observation 2: 'You arrive at fridge 1. The fridge 1 is closed.', Action 2: 'open fridge 1']
[Observation 3: 'You open the fridge 1. The fridge 1 is open. In it, you see a apple 2, and a egg 1.', Action 3: 'take apple 2 from fridge 1']

This is step 4. What you see now: You pick up the apple 2 from the fridge 1.

The commands that you can use now:
['go to fridge 1'
'look']

It is your move. Work out first, step by step, what the situation is and what to do next, and write this between <think> and </think>. \
Then pick exactly one of the commands listed above and write it between <action> and </action>."""


def test_verl_agent_first_and_later_turns() -> None:
    sentence = "put a hot apple in shelf"
    admissible = ("go to fridge 1", "help", "look")
    assert render(context(sentence, [], admissible), "verl_agent") == [{"role": "user", "content": VERL_FIRST.format(start=start(sentence))}]
    assert render(context(sentence, ERRAND[:3], admissible), "verl_agent") == [{"role": "user", "content": VERL_LATER}]


def test_verl_agent_options() -> None:
    shown = context("put a hot apple in shelf", ERRAND[:3], ("look",))
    bare = render(shown, "verl_agent", history_length=0, list_admissible=False)[0]["content"]
    assert "Your task: put a hot apple in shelf." in bare
    assert "Action 3" not in bare
    assert "['look']" not in bare
    assert "listed above" not in bare
    full = render(shown, "verl_agent", history_length=50)[0]["content"]
    assert "[Observation 1: '-= Welcome" in full


def test_unknown_template() -> None:
    with pytest.raises(UsageError, match="compct") as failure:
        render(context("x", []), "compct")
    assert "compact" in failure.value.fix


def test_versions() -> None:
    assert {name: template.version for name, template in TEMPLATES.items()} == {"compact": "compact-2", "verl_agent": "verl_agent-1"}
    assert {name: template.max_new_tokens for name, template in TEMPLATES.items()} == {"compact": 16, "verl_agent": 512}


def contexts_of(game: Game, seed: int, turns: int) -> list[PromptContext]:
    world = World(game)
    rng = Random(seed)
    history: tuple[Turn, ...] = ()
    made = []
    for _ in range(turns):
        made.append(PromptContext(TASK, history, Observation(world.observation, world.admissible()), turns))
        command = rng.choice(world.admissible(with_help=False))
        history += (Turn(world.observation, command),)
        world.step(command)
    return made


def test_compact_is_short() -> None:
    contexts = [shown for index in range(60) for shown in contexts_of(household_game(Shape(12, 12), "train", index), index, 30)]
    lengths = sorted(len(render(shown, "compact")[0]["content"].split()) for shown in contexts)
    assert sum(lengths) / len(lengths) < 80
    assert lengths[int(0.99 * len(lengths))] <= 110


def test_compact_works_for_real_games(some_games: list[Game]) -> None:
    for seed, game in enumerate(some_games):
        for shown in contexts_of(game, seed, 20):
            prompt = render(shown, "compact")[0]["content"]
            assert prompt.count(" goal ") == 1
            assert len(prompt.split()) < 400
