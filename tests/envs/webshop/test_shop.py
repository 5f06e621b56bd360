"""What commands lead to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.envs.webshop.catalogue import PRODUCTS, WANTED, shop, visit
from threespo_envs.webshop.shop import START, Place, Shop, Visit, read_command

JACKETS = "search[waterproof hiking jacket]"
ITEM = "click[j000000001]"


def at(*commands: str) -> Visit:
    made = visit()
    for command in commands:
        made.do(command)
    return made


def test_searching_opening_choosing_buying() -> None:
    made = at(JACKETS)
    assert made.place == Place("results", "waterproof hiking jacket", 1)
    assert set(made.shop.listed(made.place)) == {0, 1, 2}
    made.do("click[J000000001]")
    assert (made.place.page, made.product) == ("item", WANTED)
    made.do("click[large]")
    made.do("click[dark blue]")
    assert made.place.chosen == (("color", "dark blue"), ("size", "large")), "in the order of the options, not of the clicks"
    made.do("click[red]")
    assert made.place.chosen == (("color", "red"), ("size", "large")), "one value for an option"
    assert made.score().total == 1.0  # type: ignore[union-attr]
    made.do("click[buy now]")
    assert (made.place.page, made.page.labels, made.admissible) == ("bought", (), ())
    assert made.score().total == 1.0  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["description", "features", "reviews"])
def test_sub_pages_keep_the_choices(kind: str) -> None:
    made = at(JACKETS, ITEM, "click[red]")
    item = made.place
    made.do(f"click[{kind}]")
    assert made.place == item._replace(page=kind)
    made.do("click[< prev]")
    assert made.place == item


def test_going_back_to_the_results_forgets_the_choices() -> None:
    made = at("search[green tea]", "click[next >]")
    results = made.place
    assert results.number == 2
    made.do(f"click[{made.page.labels[-1]}]")
    assert (made.place.page, made.place.number) == ("item", 2)
    made.do("click[< prev]")
    assert made.place == results
    again = at(JACKETS, ITEM, "click[red]", "click[< prev]", ITEM)
    assert again.place.chosen == ()


def test_pages_of_results() -> None:
    made = at("search[green tea]")
    seen = []
    for number in (1, 2, 3):
        assert made.place.number == number
        seen += [label for label in made.page.labels if label.startswith("t0")]
        made.do("click[next >]")
    assert made.place.number == 3, "there is no fourth page"
    assert sorted(seen) == [product.asin.lower() for product in PRODUCTS if product.query == "green tea"]
    made.do("click[< prev]")
    assert made.place.number == 2


@pytest.mark.parametrize("commands", [(JACKETS,), (JACKETS, ITEM), (JACKETS, ITEM, "click[features]")])
def test_back_to_search_forgets_everything(commands: tuple[str, ...]) -> None:
    assert at(*commands, "click[back to search]").place == START


NOWHERE = ["", "search", "search[]", "search[ ]", "click[]", "click[search]", "click[buy now]", "click[next >]", "buy now", "click[red", "click red", "[red]"]


@pytest.mark.parametrize("command", NOWHERE)
def test_what_is_not_possible_changes_nothing(command: str) -> None:
    assert at(command).place == START


@pytest.mark.parametrize(
    "command", ["search[tea]", "click[next >]", "click[< prev]", "click[red]", "click[buy now]", "click[t000000001]", "click[description]"]
)
def test_what_is_not_possible_among_results_changes_nothing(command: str) -> None:
    made = at(JACKETS)
    before = made.place
    made.do(command)
    assert made.place == before


def test_nothing_is_possible_after_buying() -> None:
    made = at(JACKETS, ITEM, "click[buy now]")
    before = made.place
    for command in (JACKETS, ITEM, "click[buy now]", "click[back to search]"):
        made.do(command)
    assert made.place == before


def test_a_search_without_results() -> None:
    made = at("search[zzz]")
    assert made.text.endswith("Back to Search [SEP] Page 1 (Total results: 0)")
    assert made.admissible == ("click[back to search]",)


def test_commands_are_compared_in_lower_case_without_blanks() -> None:
    assert read_command(" Click[ Buy  NOW ] ") == ("click", "buy now")
    assert read_command("search[a [b] c]") == ("search", "a [b] c")
    assert read_command("click[a] click[b]") == ("click", "a] click[b")
    assert read_command("buy[x]") == ("", "")


def test_a_value_of_two_options_is_of_the_last_one() -> None:
    twice = replace(WANTED, options=(("inner", ("red", "blue")), ("outer", ("red", "green"))))
    made = Visit(Shop([twice], shop().goals), shop().goals[0])
    for command in (JACKETS, ITEM, "click[blue]", "click[red]"):
        made.do(command)
    assert made.place.chosen == (("inner", "blue"), ("outer", "red"))


def test_state_keys() -> None:
    assert at().state_key() == "search"
    assert at(JACKETS).state_key() == at("search[jacket hiking waterproof]").state_key(), "the results matter, not the words"
    assert at(JACKETS).state_key() != at("search[green tea]").state_key()
    assert at("search[green tea]").state_key() != at("search[green tea]", "click[next >]").state_key()
    one, other = at(JACKETS, ITEM, "click[red]", "click[large]"), at(JACKETS, ITEM, "click[large]", "click[red]")
    assert one.state_key() == other.state_key()
    assert one.page.body() == at(JACKETS, ITEM).page.body(), "the text hides what was chosen"
    assert one.state_key() != at(JACKETS, ITEM).state_key()
    assert one.state_key() != at(JACKETS, ITEM, "click[red]", "click[large]", "click[features]").state_key()


def test_goal_keys() -> None:
    assert at().goal_key() == "search"
    assert at(JACKETS).goal_key() == "results best 1.00"
    assert at("search[green tea]").goal_key() == "results best 0.00"
    # two attributes, two options, price: three of five parts without the options
    assert at(JACKETS, ITEM).goal_key() == "item best 1.00 now 0.60 chosen none"
    assert at(JACKETS, ITEM, "click[large]", "click[dark blue]").goal_key() == "item best 1.00 now 0.80 chosen size"
    assert at(JACKETS, ITEM, "click[large]", "click[red]", "click[features]").goal_key() == "features best 1.00 now 1.00 chosen color,size"
    assert at(JACKETS, ITEM, "click[large]", "click[red]", "click[buy now]").goal_key() == "bought best 1.00 now 1.00 chosen color,size"


COMMANDS = st.one_of(
    st.sampled_from(
        [JACKETS, ITEM, "search[green tea]", "click[red]", "click[next >]", "click[< prev]", "click[back to search]", "click[features]", "click[buy now]"]
    ),
    st.text(max_size=12),
    st.text(max_size=8).map("search[{}]".format),
    st.text(max_size=8).map("click[{}]".format),
)


@given(commands=st.lists(COMMANDS, max_size=12))
def test_any_commands_lead_somewhere_and_back(commands: list[str]) -> None:
    made = visit()
    for command in commands:
        place = made.place
        made.do(command)
        assert set(made.admissible) == {f"click[{label}]" for label in made.page.labels}
        twin = visit()
        twin.go(made.place)
        assert (twin.text, twin.admissible, twin.state_key(), twin.goal_key()) == (made.text, made.admissible, made.state_key(), made.goal_key())
        if made.place != place and place.page != "search":
            assert f"click[{read_command(command)[1]}]" in [f"click[{label}]" for label in made.shop.page(place).labels]
