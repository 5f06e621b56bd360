"""Seeds, budgets, and overrides for one of several algorithms."""

from __future__ import annotations

import pytest

from threespo_bench.cli.overrides import algorithm_and_preset, budget_overrides, scoped, seeds
from threespo_bench.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"), [("0", [0]), ("0..2", [0, 1, 2]), ("0,3,5", [0, 3, 5]), ("0..1,7", [0, 1, 7]), ("4..4", [4]), (" 1, 2 ", [1, 2])]
)
def test_seeds(text: str, expected: list[int]) -> None:
    assert seeds(text) == expected


@pytest.mark.parametrize("text", ["", "a", "0..", "..3", "3..1", "-1", "0-3", "0,,1", "1,1", "0..2,2", "1.5"])
def test_seeds_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="--seeds"):
        seeds(text)


def test_budgets() -> None:
    assert budget_overrides(["env_steps=100", "budget.tokens=5"]) == ["budget.env_steps=100", "budget.tokens=5"]
    with pytest.raises(UsageError) as refused:
        budget_overrides(["1000"])
    assert "env_steps=1000" in refused.value.fix


def test_scoped_overrides() -> None:
    texts = ["seed=1", "grpo:algorithm.group_size=4", "3spo:algorithm.preset=paper", "grpo:env.games=a:b=c", "env.games=c:/x"]
    common, own = scoped(texts, ["3spo", "grpo"])
    assert common == ["seed=1", "env.games=c:/x"]
    assert own == {"grpo": ["algorithm.group_size=4", "env.games=a:b=c"], "3spo": ["algorithm.preset=paper"]}
    with pytest.raises(UsageError, match="'gigpo' is not one of the compared algorithms"):
        scoped(["gigpo:seed=1"], ["grpo"])


def test_algorithm_with_a_preset() -> None:
    assert algorithm_and_preset("3spo") == ("3spo", [])
    assert algorithm_and_preset("3spo@paper") == ("3spo", ["algorithm.preset=paper"])
    with pytest.raises(UsageError, match="no preset after '@'"):
        algorithm_and_preset("3spo@")
