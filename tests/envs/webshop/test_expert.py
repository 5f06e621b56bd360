"""The experts: every goal can be reached, and can be found by reading."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.envs.webshop import catalogue
from threespo_bench.contracts.environment import Observation, Task
from threespo_envs.webshop.environment import WebShopConfig, WebShopEnvironment
from threespo_envs.webshop.expert import Searcher, oracle_plan
from threespo_envs.webshop.shop import Visit


@pytest.fixture(scope="module")
def generated() -> WebShopEnvironment:
    return WebShopEnvironment(WebShopConfig())


def carry_out(visit: Visit) -> float:
    plan = oracle_plan(visit)
    for command in plan:
        before = visit.place
        visit.do(command)
        assert visit.place != before, f"{command} does nothing"
    assert visit.place.page == "bought"
    score = visit.score()
    return score.total if score else 0.0


def play(environment: WebShopEnvironment, task: Task, searcher: Searcher | None = None) -> float:
    """The score of a searcher's episode."""
    searcher = searcher or Searcher(environment.max_turns)
    observation = environment.reset(task, 0)
    for _ in range(environment.max_turns):
        step = environment.step(searcher.act(observation))
        observation = step.observation
        if step.terminated:
            return step.score or 0.0
    pytest.fail(f"{task.key}: nothing was bought in time")


AHEAD = [
    [],
    ["search[green tea]"],
    ["search[green tea]", "click[next >]"],
    ["search[green tea]", "click[t000000003]", "click[features]"],
    ["search[jacket]", "click[j000000003]"],
    ["search[jacket]", "click[j000000001]", "click[dark blue]"],
    ["search[jacket]", "click[j000000001]", "click[red]", "click[description]"],
    ["search[jacket]", "click[j000000001]", "click[red]", "click[large]"],
]


@pytest.mark.parametrize("commands", AHEAD, ids=lambda commands: " ".join(commands) or "start")
def test_the_oracle_goes_on_from_anywhere(commands: list[str]) -> None:
    for instruction in ("color: red, and size: large", "organic green tea"):
        made = catalogue.visit(instruction)
        for command in commands:
            made.do(command)
        before = made.place
        oracle_plan(made)
        assert made.place == before, "planning changes nothing"
        assert carry_out(made) == 1.0


def test_the_oracle_does_not_choose_twice_nor_buy_twice() -> None:
    made = catalogue.visit()
    for command in AHEAD[-1]:
        made.do(command)
    assert oracle_plan(made) == ["click[buy now]"]
    made.do("click[buy now]")
    assert oracle_plan(made) == []


@pytest.mark.parametrize("split", ["test", "train", "demonstrations"])
def test_the_oracle_reaches_generated_goals(generated: WebShopEnvironment, split: str) -> None:
    for task in generated.tasks(split)[:150]:
        generated.reset(task, 0)
        assert carry_out(generated.visit) == 1.0, task.payload


def test_the_oracle_reaches_real_goals(products_path: Path) -> None:
    environment = WebShopEnvironment(WebShopConfig(products=str(products_path)))
    for task in [*environment.tasks("test")[:150], *environment.tasks("train")[::40]]:
        environment.reset(task, 0)
        assert carry_out(environment.visit) == 1.0, task.payload


def test_the_searcher_reads_and_chooses() -> None:
    made, searcher = catalogue.visit(), Searcher()
    played = []
    while made.place.page != "bought":
        played.append(searcher.act(Observation(made.text, made.admissible)))
        made.do(played[-1])
    assert played == [
        "search[waterproof hiking jackets breathable cotton red large]",
        "click[j000000001]",
        "click[features]",
        "click[< prev]",
        "click[red]",
        "click[large]",
        "click[buy now]",
    ], "the jacket whose title has all is over the limit"
    assert made.score().total == 1.0  # type: ignore[union-attr]


def test_the_searcher_finds_most_generated_goals(generated: WebShopEnvironment) -> None:
    tasks = generated.tasks("train")[:200]
    found = sum(play(generated, task) == 1.0 for task in tasks) / len(tasks)
    assert 0.6 <= found < 1.0


def test_the_searcher_buys_in_time_however_few_turns_there_are(generated: WebShopEnvironment) -> None:
    for turns in (6, 8, 10):
        generated.max_turns = turns
        for task in generated.tasks("test")[:20]:
            play(generated, task)
    del generated.max_turns
