"""The reward: its formula by hand, each rule about the kind of product, and the goals of the original."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from threespo_envs.webshop.goals import make_goals
from threespo_envs.webshop.products import Goal, Product
from threespo_envs.webshop.reward import Score, has_attribute, score, type_factor


@pytest.fixture
def goal(shirt: Product) -> Goal:
    return Goal(shirt, "Find me a shirt", ("machine wash", "classic fit"), (("color", "navy blue"), ("size", "large")), 30.0)


def test_all_that_is_wanted_is_worth_exactly_1(goal: Goal, shirt: Product) -> None:
    assert score(goal, shirt, {"size": "large", "color": "navy blue"}) == Score(1.0, 1.0, 1.0, 1.0, 1.0)


def test_the_formula_by_hand(goal: Goal, shirt: Product) -> None:
    # 2 attributes, 1 of 2 options, price: (2 + 1 + 1) / (2 + 2 + 1) = 0.8
    assert score(goal, shirt, {"size": "large", "color": "white"}) == Score(0.8, 1.0, 1.0, 0.5, 1.0)
    # no option chosen: (2 + 0 + 1) / 5
    assert score(goal, shirt, {}).total == pytest.approx(0.6, abs=1e-12)
    # over the limit: (2 + 2 + 0) / 5
    assert score(goal, replace(shirt, prices=(30.01,)), {"size": "large", "color": "navy blue"}) == Score(0.8, 1.0, 1.0, 1.0, 0.0)
    # 1 of 2 attributes, no option, over the limit: (1 + 0 + 0) / 5
    other = replace(shirt, attributes=("classic fit",), features=(), prices=(99.0,))
    assert score(goal, other, {}) == Score(0.2, 1.0, 0.5, 0.0, 0.0)


def test_the_price_limit_itself_is_not_too_much(goal: Goal, shirt: Product) -> None:
    assert score(goal, replace(shirt, prices=(30.0,)), {}).price == 1.0


def test_of_a_price_range_the_least_counts(goal: Goal, shirt: Product) -> None:
    assert score(goal, replace(shirt, prices=(29.0, 400.0)), {}).price == 1.0


def test_colours_are_compared_by_their_basic_name_and_options_whatever_their_name(goal: Goal, shirt: Product) -> None:
    assert score(goal, shirt, {"color": "sky blue", "size": "LARGE"}).options == 1.0
    assert score(goal, shirt, {"style": "large", "fit": "navy blue"}).options == 1.0
    assert score(goal, shirt, {"color": "green", "size": "small"}).options == 0.0


def test_a_goal_without_wishes_counts_the_price_alone(shirt: Product) -> None:
    assert score(Goal(shirt, "Find me a shirt", (), (), 10.0), shirt, {}) == Score(0.0, 1.0, 1.0, 1.0, 0.0)
    assert score(Goal(shirt, "Find me a shirt", (), (), float("inf")), shirt, {"size": "small"}) == Score(1.0, 1.0, 1.0, 1.0, 1.0)


def test_attributes_are_looked_up_nearly_in_the_list_and_literally_in_the_texts(shirt: Product) -> None:
    assert has_attribute(shirt, "wash machine")
    assert has_attribute(shirt, "two pockets")  # features
    assert has_attribute(shirt, "cool in SUMMER")  # description
    assert has_attribute(shirt, "linen")  # title
    assert not has_attribute(shirt, "summer linen")
    assert not has_attribute(replace(shirt, attributes=()), "wash machine")


LONG = "harbour linen shirt collar pocket sleeve button stripe cuff placket yoke hem"  # twelve nouns


@pytest.mark.parametrize(
    ("title", "query", "path", "factor"),
    [
        ("harbour linen shirt", "lamps", (), 1.0),  # overlap 3/12 > 0.2
        ("harbour linen lamp", "lamps", (), 0.5),  # 2/12
        ("harbour linen lamp", "shirts", (), 1.0),  # the same query
        ("harbour linen lamp", "lamps", ("Men", "Clothing"), 1.0),  # two elements of the path, in any order
        ("harbour linen lamp", "lamps", ("Men", "Lamps"), 0.5),  # one
        ("harbour lamp", "lamps", (), 0.1),  # 1/12 < 0.1
        ("harbour lamp", "shirts", ("Clothing", "Men"), 0.1),  # which comes after the other rules
        ("lamp", "lamps", (), 0.0),
        ("lamp", "shirts", ("Clothing", "Men"), 0.0),
        ("", "shirts", (), 0.0),
    ],
)
def test_the_kind_of_product(shirt: Product, title: str, query: str, path: tuple[str, ...], factor: float) -> None:
    wanted = replace(shirt, title=LONG, query="shirts", path=("Clothing", "Men", "Shirts"))
    assert type_factor(wanted, replace(shirt, title=title, query=query, path=path)) == factor


def test_a_wanted_title_without_nouns_is_no_mismatch(shirt: Product) -> None:
    wanted = replace(shirt, title="The Best")
    assert type_factor(wanted, wanted) == 1.0
    assert type_factor(wanted, replace(shirt, title="Lamp", query="lamps", path=())) == 0.5


def test_the_factor_multiplies_the_rest(goal: Goal, shirt: Product) -> None:
    wanted = replace(shirt, title=LONG)
    bought = replace(shirt, title="harbour linen lamp", query="lamps", path=())
    # 0.5 * (2 + 1 + 1) / 5
    assert score(replace(goal, product=wanted), bought, {"size": "large"}) == Score(0.4, 0.5, 1.0, 0.5, 1.0)


def test_every_goal_of_the_original_can_be_reached_exactly(real_products: tuple[Product, ...]) -> None:
    goals = make_goals(real_products, seed=0)[::5]
    assert {score(goal, goal.product, dict(goal.options)).total for goal in goals} == {1.0}


def test_another_product_of_the_original_is_worth_less_on_average(real_products: tuple[Product, ...]) -> None:
    goals = make_goals(real_products, seed=0)[:200]
    totals = [score(goal, real_products[position], {}).total for position, goal in enumerate(goals)]
    assert all(0 <= total <= 1 for total in totals)
    assert sum(totals) / len(totals) < 0.1


WORDS = st.sampled_from(["red", "shirt", "lamp", "size", "small", "", "!", "\u00e9"])
TEXT = st.lists(WORDS, max_size=5).map(" ".join)
PRODUCTS = st.builds(
    Product,
    asin=st.just("B000000001"),
    title=TEXT,
    query=TEXT,
    category=TEXT,
    path=st.lists(TEXT, max_size=3).map(tuple),
    prices=st.floats(0.01, 2000).map(lambda price: (price,)),
    description=TEXT,
    features=st.lists(TEXT, max_size=2).map(tuple),
    attributes=st.lists(TEXT, max_size=3).map(tuple),
    options=st.lists(st.tuples(TEXT, st.lists(TEXT, min_size=1, max_size=2).map(tuple)), max_size=2, unique_by=lambda option: option[0]).map(tuple),
    instruction=st.just("Find me something"),
)


@settings(deadline=None, max_examples=60)
@given(PRODUCTS, PRODUCTS, st.integers(0, 9))
def test_the_own_product_is_worth_1_and_no_other_more(product: Product, other: Product, seed: int) -> None:
    for goal in make_goals([replace(product, wanted=product.attributes)], seed):
        assert score(goal, product, dict(goal.options)).total == 1.0
        assert 0 <= score(goal, other, dict(goal.options)).total <= 1
