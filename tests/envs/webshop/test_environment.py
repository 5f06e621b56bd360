"""The environment: its tasks, what it pays, its keys and its options."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tests.envs.webshop import catalogue
from threespo_bench.contracts.environment import Observation, PromptContext, Task
from threespo_bench.errors import DataError, EngineError, UsageError
from threespo_bench.testing import check_environment
from threespo_envs.webshop.environment import WebShopConfig, WebShopEnvironment

GOOD = ["search[waterproof hiking jacket]", "click[j000000001]", "click[red]", "click[large]"]


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> str:
    return catalogue.write(tmp_path_factory.mktemp("shop") / "products.jsonl")


def shop(products: str, **options: object) -> WebShopEnvironment:
    return WebShopEnvironment(WebShopConfig(products=products, **options))  # type: ignore[arg-type]


def red_and_large(environment: WebShopEnvironment) -> Task:
    return next(task for split in ("train", "test") for task in environment.tasks(split) if "color: red, and size: large" in task.payload)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("template", ["compact", "verl_agent"])
def test_the_contract(products: str, split: str, template: str) -> None:
    check_environment(shop(products, template=template), split)


@pytest.mark.parametrize("split", ["train", "test", "demonstrations"])
def test_the_contract_with_generated_products(split: str) -> None:
    check_environment(WebShopEnvironment(WebShopConfig(catalogue_size=80)), split)


def test_splits(products: str) -> None:
    environment = shop(products)
    train, test = environment.tasks("train"), environment.tasks("test")
    assert (len(test), len(train)) == (14, 15), "25 teas and four choices of one jacket, and half of them are to test on"
    assert {task.payload for task in train} | {task.payload for task in test} == {goal.instruction for goal in environment.shop("train").goals}
    assert not {task.key.partition("/")[2].partition("/")[2] for task in train} & {task.key.partition("/")[2].partition("/")[2] for task in test}
    assert test[0] == Task("webshop/test/00000", test[0].kind, "test") and train[0].key == "webshop/train/00014"
    assert {task.kind for task in [*train, *test]} == {"fashion", "grocery"}
    assert [task.key for task in shop(products, max_goals=3).tasks("train")] == [task.key for task in train[:3]]


def test_the_test_split_has_500_goals_of_many() -> None:
    environment = WebShopEnvironment(WebShopConfig(catalogue_size=1000))
    test, train = environment.tasks("test"), environment.tasks("train")
    assert (len(test), test[-1].key, train[0].key) == (500, "webshop/test/00499", "webshop/train/00500")
    assert len(train) >= 500
    assert not set(environment.shop("demonstrations").products) & set(environment.shop("test").products)
    assert environment.shop("train") is environment.shop("test")


def test_a_goal_is_the_same_in_every_process_and_another_seed_shuffles(products: str) -> None:
    first = [task.payload for task in shop(products).tasks("test")]
    assert [task.payload for task in shop(products).tasks("test")] == first
    assert [task.payload for task in shop(products, goal_seed=1).tasks("test")] != first


def test_buying_pays(products: str) -> None:
    environment = shop(products)
    environment.reset(red_and_large(environment), 0)
    for command in GOOD:
        step = environment.step(command)
        assert (step.reward, step.terminated, step.success, step.score) == (0.0, False, False, 0.0)
    step = environment.step("click[Buy Now]")
    assert (step.reward, step.terminated, step.success, step.score) == (10.0, True, True, 1.0)
    again = environment.step("click[buy now]")
    assert (again.reward, again.terminated) == (0.0, True), "it is paid once"


@pytest.mark.parametrize(("reward", "paid"), [("success", 0.0), ("score", 8.0)])
def test_buying_what_is_not_quite_right(products: str, reward: str, paid: float) -> None:
    environment = shop(products, reward=reward)
    environment.reset(red_and_large(environment), 0)
    for command in GOOD[:-1]:
        environment.step(command)
    step = environment.step("click[buy now]")
    assert (step.terminated, step.success) == (True, False)
    assert step.score == pytest.approx(0.8)
    assert step.reward == pytest.approx(paid)


def test_buying_what_is_all_wrong(products: str) -> None:
    environment = shop(products, reward="score")
    environment.reset(red_and_large(environment), 0)
    for command in ("search[green tea]", "click[t000000003]"):
        environment.step(command)
    step = environment.step("click[buy now]")
    assert (step.reward, step.terminated, step.success, step.score) == (0.0, True, False, 0.0)


def test_keys(products: str) -> None:
    environment = shop(products)
    task = red_and_large(environment)
    observation = environment.reset(task, 0)
    assert environment.anchors == ("state", "obs", "goal")
    assert task.payload in observation.text and task.payload not in environment.anchor("obs")
    for command in GOOD[:2]:
        environment.step(command)
    before = {kind: environment.anchor(kind) for kind in environment.anchors}
    environment.step(GOOD[2])
    after = {kind: environment.anchor(kind) for kind in environment.anchors}
    assert [kind for kind in environment.anchors if before[kind] != after[kind]] == ["state", "goal"], "the text hides what was chosen"
    with pytest.raises(UsageError, match="stat") as failure:
        environment.anchor("stat")
    assert "state" in failure.value.fix


def test_snapshots_are_small(products: str) -> None:
    environment = shop(products)
    task = red_and_large(environment)
    environment.reset(task, 0)
    for command in GOOD:
        environment.step(command)
    snapshot = environment.snapshot()
    assert len(pickle.dumps(snapshot)) < 300
    step = environment.step("click[buy now]")
    other = shop(products)
    other.reset(task, 5)
    other.restore(snapshot)
    assert other.anchor("state").startswith("item ")
    assert other.step("click[buy now]") == step, "a restored episode is paid, too"


def test_a_search_that_cannot_be_made_is_not_valid(products: str) -> None:
    environment = shop(products)
    task = red_and_large(environment)
    observation = environment.reset(task, 0)
    assert observation.admissible == ()
    assert environment.parse("search tea", observation).valid
    assert not environment.parse("buy", observation).valid
    results = environment.step("search[tea]").observation
    assert not environment.parse("search tea", results).valid
    assert environment.step("search[jacket]").observation == results


def test_templates(products: str) -> None:
    environment = shop(products, template="verl_agent")
    assert (environment.max_turns, environment.max_new_tokens, shop(products).max_new_tokens) == (15, 512, 24)
    task = red_and_large(environment)
    context = PromptContext(task, (), environment.reset(task, 0), 15)
    assert "Your task: " + task.payload in environment.render(context)[0]["content"]
    assert shop(products).render(context)[0]["content"].endswith(" at search .")


def test_digests(products: str, tmp_path: Path) -> None:
    digest = shop(products).digest()
    assert shop(products).digest() == digest
    copied = catalogue.write(tmp_path / "copy.jsonl")
    assert shop(copied).digest() == digest, "the name of the file does not matter"
    text = Path(copied).read_text(encoding="utf-8")
    changed = tmp_path / "changed.jsonl"
    changed.write_text(text.replace("Warm lining.", "Cold lining."), encoding="utf-8")
    others = [
        shop(str(changed)),
        *(
            shop(products, **option)
            for option in ({"goal_seed": 1}, {"template": "verl_agent"}, {"history_length": 1}, {"reward": "score"}, {"show_attributes": True})
        ),
        WebShopEnvironment(WebShopConfig(catalogue_size=80)),
    ]
    assert len({digest, *(other.digest() for other in others)}) == len(others) + 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"reward": "sucess"}, "env.reward=sucess"),
        ({"template": "compct"}, "compct"),
        ({"history_length": -1}, "history_length"),
        ({"catalogue_size": 1}, "catalogue_size"),
        ({"max_goals": 0}, "max_goals"),
    ],
)
def test_options_out_of_range(options: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        WebShopEnvironment(WebShopConfig(**options))  # type: ignore[arg-type]


def test_unknown_splits_and_tasks(products: str) -> None:
    environment = shop(products)
    with pytest.raises(UsageError, match="tests") as failure:
        environment.tasks("tests")
    assert "test" in failure.value.fix
    with pytest.raises(UsageError, match="demonstrations"):
        environment.tasks("demonstrations")
    for key in ("webshop/test/00014", "webshop/train/00000", "webshop/demonstrations/00000", "household/test/00001", "webshop/test", "webshop/test/-1", ""):
        with pytest.raises(UsageError, match="is no task of this webshop"):
            environment.reset(Task(key, "fashion", "test"), 0)


def test_no_products_and_no_goals(tmp_path: Path, products: str) -> None:
    with pytest.raises(DataError, match=r"nowhere\.jsonl"):
        shop(str(tmp_path / "nowhere.jsonl")).tasks("train")
    line = Path(products).read_text(encoding="utf-8").splitlines()[2]
    lonely = tmp_path / "lonely.jsonl"
    lonely.write_text(line + "\n", encoding="utf-8")
    with pytest.raises(DataError, match="0 goals"):
        shop(str(lonely)).tasks("train")


def test_before_a_task_is_started(products: str) -> None:
    with pytest.raises(EngineError, match="before a task"):
        shop(products).step("search[tea]")
    assert shop(products).parse("buy", Observation("?")).command == "click[buy now]"
