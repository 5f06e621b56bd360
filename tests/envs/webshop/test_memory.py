"""Reading instructions and pages, and remembering them."""

from __future__ import annotations

from math import inf

import pytest

from tests.envs.webshop.catalogue import PRODUCTS, shop, visit
from threespo_bench.contracts.environment import Observation
from threespo_envs.webshop.goals import make_goals
from threespo_envs.webshop.memory import Memory, Wish, read, read_wish
from threespo_envs.webshop.products import Product


@pytest.mark.parametrize(
    ("instruction", "wish"),
    [
        ("Find me tea", Wish("tea", (), inf)),
        ("Find me tea, and price lower than 40.00 dollars", Wish("tea", (), 40.0)),
        ("Find me shirts with color: red", Wish("shirts", (("color", "red"),), inf)),
        (
            "Find me women's dresses with spandex for daily wear with color: a-red, and size: x-large (us 12, 14), and price lower than 30.00 dollars",
            Wish("women's dresses with spandex for daily wear", (("color", "a-red"), ("size", "x-large (us 12, 14)")), 30.0),
        ),
        ("i need a lamp, and price lower than 20.50 dollars", Wish("a lamp", (), 20.5)),
        ("lamps with wood, with flavor name: a, and b, and size: 1", Wish("lamps with wood,", (("flavor name", "a, and b"), ("size", "1")), inf)),
        ("", Wish("", (), inf)),
        (" with a: b", Wish("with a: b", (), inf)),
    ],
)
def test_wishes(instruction: str, wish: Wish) -> None:
    assert read_wish(instruction) == wish


def test_the_wishes_of_all_goals_are_read() -> None:
    for goal in shop().goals:
        assert read_wish(goal.instruction) == (goal.product.instruction.removeprefix("Find me "), goal.options, goal.price_limit)


def test_the_wishes_of_the_real_goals_are_read(real_products: tuple[Product, ...]) -> None:
    goals = make_goals(real_products, 0)
    wrong = [goal for goal in goals if read_wish(goal.instruction)[1:] != (tuple((n.strip(), v.strip()) for n, v in goal.options), goal.price_limit)]
    assert len(wrong) <= 0.01 * len(goals), wrong[0].instruction


def test_pages_are_read() -> None:
    made = visit()
    assert read(made.text).page == "search"
    made.do("search[green tea]")
    results = read(made.text)
    assert (results.page, results.number, results.total, results.has_next, len(results.products)) == ("results", 1, 25, True, 10)
    assert all(product.title.endswith("Green Tea") and 4 <= product.price <= 28 for product in results.products)
    made.do("click[next >]")
    assert read(made.text).products[0].asin == made.page.labels[3]
    made.do("click[back to search]")
    for command in ("search[desk lamp]", "click[l000000001]"):
        made.do(command)
    item = read(made.text)
    assert (item.page, item.title, item.price, item.texts) == ("item", "Halo Desk Lamp", 12.0, ("size", "one size"))


def test_a_memory_follows_an_episode() -> None:
    made, memory = visit(), Memory()
    memory.see(Observation(made.text, made.admissible))
    for command in ("search[waterproof hiking jackets]", "click[j000000001]", "click[red]", "click[features]", "click[< prev]"):
        memory.do(command)
        made.do(command)
        memory.see(Observation(made.text, made.admissible))
        assert memory.page == made.place.page
        assert memory.chosen == (dict(made.place.chosen) if memory.page == "item" else memory.chosen)
    assert (memory.item, memory.queries) == ("j000000001", ["waterproof hiking jackets"])
    assert memory.options == PRODUCTS[0].options
    assert memory.said == {("j000000001", "features"): PRODUCTS[0].features}
    assert memory.lacking(memory.now.title) == ["breathable", "cotton"]
    assert memory.lacking(memory.now.title, *memory.texts_of_item()) == []
