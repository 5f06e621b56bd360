"""Goals: how many, their sentences, their price limits, and that a seed decides everything."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from threespo_envs.webshop.goals import make_goals, price_limit
from threespo_envs.webshop.products import Goal, Product


def test_the_original_has_6910_goals(real_products: tuple[Product, ...]) -> None:
    goals = make_goals(real_products, seed=0)
    assert len(goals) == 6910
    assert len({goal.product.asin for goal in goals}) == 415


def test_the_seed_decides_order_and_limits(real_products: tuple[Product, ...]) -> None:
    def limits(goals: tuple[Goal, ...]) -> dict[str, float]:
        return {goal.product.asin: goal.price_limit for goal in goals}

    first, again, other = make_goals(real_products, 0), make_goals(real_products, 0), make_goals(real_products, 1)
    assert first == again
    assert first != other
    assert limits(first) != limits(other)
    assert Counter((goal.product.asin, goal.options) for goal in first) == Counter((goal.product.asin, goal.options) for goal in other)
    assert len({goal.product.asin for goal in first[:500]}) > 50  # shuffled goal by goal


def test_a_goal_for_each_combination(shirt: Product) -> None:
    goals = make_goals([replace(shirt, prices=(985.0,))], seed=0)
    assert sorted(goal.options for goal in goals) == [
        (("color", color), ("size", size)) for color in ("green", "navy blue", "white") for size in ("large", "small")
    ]
    assert all(goal.attributes == shirt.wanted and math.isinf(goal.price_limit) for goal in goals)
    assert "Find me machine wash men's shirts with classic fit with color: green, and size: small" in {goal.instruction for goal in goals}


def test_the_sentence_has_the_price_limit(shirt: Product) -> None:
    goals = make_goals([shirt], seed=3)
    assert {goal.instruction.rpartition(" with ")[2] for goal in goals} == {
        f"color: {goal.options[0][1]}, and size: {goal.options[1][1]}, and price lower than {goal.price_limit:.2f} dollars" for goal in goals
    }
    (plain,) = make_goals([replace(shirt, options=())], seed=3)
    assert plain.instruction == f"{shirt.instruction}, and price lower than {plain.price_limit:.2f} dollars"
    assert plain.options == ()


def test_products_without_instruction_have_no_goals(shirt: Product) -> None:
    assert make_goals([replace(shirt, instruction="")], seed=0) == ()
    assert make_goals([], seed=0) == ()


@pytest.mark.parametrize(
    ("price", "limits"),
    [
        (24.5, {40.0, 50.0, 60.0}),  # the larger one of two of 30, 40, 50 and 60
        (30.0, {50.0, 60.0, 70.0}),  # a limit is above the price
        (0.01, {20.0, 30.0, 40.0}),
        (965.0, {980.0, 990.0}),
        (975.0, {990.0}),
        (980.0, {math.inf}),
        (5000.0, {math.inf}),
    ],
)
def test_price_limits(shirt: Product, price: float, limits: set[float]) -> None:
    assert {price_limit(replace(shirt, prices=(price, price + 500)), seed) for seed in range(60)} == limits


def test_the_larger_of_two_different_limits_is_not_uniform(shirt: Product) -> None:
    counts = Counter(price_limit(shirt, seed) for seed in range(1200))
    # of the six pairs the larger one is the second, third or fourth limit in one, two or three
    assert [counts[limit] / 1200 for limit in (40.0, 50.0, 60.0)] == pytest.approx([1 / 6, 2 / 6, 3 / 6], abs=0.05)


def test_a_limit_does_not_depend_on_the_other_products(shirt: Product) -> None:
    another = replace(shirt, asin="B000000002")
    alone = {goal.price_limit for goal in make_goals([shirt], 5)}
    together = {goal.price_limit for goal in make_goals([another, shirt], 5) if goal.product == shirt}
    assert alone == together and len(alone) == 1


def test_the_goals_are_the_same_in_every_process(shirt: Product) -> None:
    program = f"from threespo_envs.webshop.products import Product; from threespo_envs.webshop.goals import make_goals; print(make_goals([{shirt!r}], 7))"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60, env={"PYTHONHASHSEED": "1"}).stdout
    assert printed.strip() == repr(make_goals([shirt], 7))
