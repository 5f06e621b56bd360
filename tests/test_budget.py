"""Budgets."""

from __future__ import annotations

import pytest

from threespo_bench.budget import Budget, Limits, Spent
from threespo_bench.errors import UsageError


@pytest.mark.parametrize("name", ["env_steps", "tokens", "updates", "iterations"])
def test_every_limit_ends_a_run(name: str) -> None:
    budget = Budget(Limits(**{name: 10}))
    for amount in (9, 1):
        assert not budget.exhausted()
        budget.charge(**{name: amount})
    assert budget.exhausted()


def test_the_first_limit_that_is_reached_counts() -> None:
    budget = Budget(Limits(env_steps=100, tokens=1000))
    budget.charge(env_steps=10, tokens=400)
    assert (budget.fraction(), budget.exhausted()) == (0.4, False)
    budget.charge(env_steps=90)
    assert (budget.fraction(), budget.exhausted()) == (1.0, True)
    budget.charge(env_steps=900)
    assert budget.fraction() == 1.0


def test_what_has_no_limit_ends_nothing() -> None:
    budget = Budget(Limits(iterations=2))
    budget.charge(env_steps=10**9, tokens=10**9, prompt_tokens=1, episodes=1, updates=10**6)
    assert (budget.exhausted(), budget.fraction()) == (False, 0.0)


def test_totals() -> None:
    budget = Budget(Limits(env_steps=5), Spent(env_steps=2))
    budget.charge(env_steps=1, tokens=7, prompt_tokens=70, episodes=1)
    budget.charge(env_steps=1, updates=3, iterations=1)
    assert budget.spent == Spent(env_steps=4, tokens=7, prompt_tokens=70, episodes=1, updates=3, iterations=1)


def test_a_slip_in_a_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="steps"):
        Budget(Limits(env_steps=5)).charge(steps=1)


@pytest.mark.parametrize("name", ["env_steps", "tokens", "updates", "iterations"])
@pytest.mark.parametrize("value", [0, -1])
def test_limits_are_positive(name: str, value: int) -> None:
    with pytest.raises(UsageError, match=f"budget.{name}={value} is out of range"):
        Limits(**{"env_steps": 10, name: value}).validate()


def test_a_run_has_a_limit() -> None:
    Limits(tokens=1).validate()
    with pytest.raises(UsageError, match="no limit") as failure:
        Limits().validate()
    assert "budget.env_steps=" in failure.value.fix
