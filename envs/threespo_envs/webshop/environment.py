"""The WebShop environment: find a product by an instruction, choose its options and buy it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from threespo_bench.contracts.environment import Action, Environment, Message, Observation, PromptContext, Step, Task
from threespo_bench.errors import DataError, EngineError, UsageError, suggest
from threespo_envs.webshop import parser, prompts
from threespo_envs.webshop.generator import generated_products
from threespo_envs.webshop.goals import make_goals
from threespo_envs.webshop.reading import read_products
from threespo_envs.webshop.shop import VERSION, Place, Shop, Visit

FULL_REWARD = 10.0
REWARDS = ("success", "score")
SPLITS = ("train", "test", "demonstrations")
TEST_GOALS = 500
"""Goals of the split ``test``, the first after the shuffle, as in WebShop; half of them where there are fewer than twice as many."""

_DEMONSTRATIONS_SEED = 1 << 20
"""What is added to the catalogue's seed for the shop of the demonstrations."""


@dataclass
class WebShopConfig:
    """Options of the ``webshop`` environment.

    Attributes:
        products: file with the products that are sold, one JSON object a line (``.jsonl``, also ``.xz`` or ``.gz``). None means generated ones.
        catalogue_size: how many products are generated.
        catalogue_seed: another seed generates other products.
        goal_seed: another seed gives other price limits and another order of the goals, and with it other splits.
        max_goals: play only so many goals of each split, the first ones.
        show_attributes: the pages of products have the button ``Attributes``.
        reward: what buying pays: ``success`` is 10 for a score of exactly 1 and nothing for less, ``score`` is 10 times the score.
        template: the prompt's form, ``compact`` or ``verl_agent``.
        history_length: how many past turns the prompt shows.
        list_admissible: the prompt lists the possible actions; None leaves that to the template.
    """

    products: str | None = None
    catalogue_size: int = 1000
    catalogue_seed: int = 0
    goal_seed: int = 0
    max_goals: int | None = None
    show_attributes: bool = False
    reward: str = "success"
    template: str = "compact"
    history_length: int | None = None
    list_admissible: bool | None = None


class WebShopEnvironment(Environment):
    """WebShop. A task is a goal, named by its place in the one shuffle that all processes share.

    ``anchor("state")`` is the true state: kind of page, list of results, page number, product and chosen options; ``anchor("obs")`` is the page's
    text without the instruction, as published methods group by, which hides what was chosen; ``anchor("goal")`` is the state as far as the goal
    is concerned: kind of page, the best score that can be had here, the score of buying now, and which wanted options are chosen.
    """

    Config: ClassVar[type] = WebShopConfig
    anchors: ClassVar[tuple[str, ...]] = ("state", "obs", "goal")
    can_restore: ClassVar[bool] = True
    max_turns: int = 15

    def __init__(self, config: WebShopConfig) -> None:
        super().__init__(config)
        prompts.template_named(config.template)
        if config.reward not in REWARDS:
            raise UsageError(f"env.reward={config.reward} is no way to pay", suggest(config.reward, REWARDS))
        if (config.history_length or 0) < 0:
            raise UsageError(f"env.history_length must not be negative, but is {config.history_length}")
        if config.catalogue_size < 2:
            raise UsageError(f"env.catalogue_size must be at least 2, not {config.catalogue_size}")
        if config.max_goals is not None and config.max_goals < 1:
            raise UsageError(f"env.max_goals must be at least 1, not {config.max_goals}")
        self._live: Visit | None = None

    @property
    def max_new_tokens(self) -> int:  # type: ignore[override]
        """The length limit of a response that the template asks for, unless the run sets one."""
        return prompts.template_named(self.config.template).max_new_tokens

    @property
    def visit(self) -> Visit:
        """The visit being played."""
        if self._live is None:
            raise EngineError(f"{type(self).__name__} was used before a task was started", "call reset() first")
        return self._live

    def shop(self, split: str) -> Shop:
        """The shop that a split's tasks are played in. Opened once in a process."""
        config = self.config
        if config.products is not None:
            return _shop_of_file(config.products, config.goal_seed, config.show_attributes)
        seed = config.catalogue_seed + (_DEMONSTRATIONS_SEED if split == "demonstrations" else 0)
        return _generated_shop(config.catalogue_size, seed, config.goal_seed, config.show_attributes)

    def tasks(self, split: str) -> Sequence[Task]:
        """The goals of a split, in their shuffled order."""
        first, end = self._range(split)
        limit = self.config.max_goals
        return [self.task(split, index) for index in range(first, end if limit is None else min(end, first + limit))]

    def task(self, split: str, index: int) -> Task:
        """The task with the goal at ``index`` of the shuffled ones."""
        goals = self.shop(split).goals
        goal, digits = goals[index], max(5, len(str(len(goals))))
        return Task(f"webshop/{split}/{index:0{digits}d}", goal.product.category, split, payload=goal.instruction)

    @property
    def _splits(self) -> tuple[str, ...]:
        return SPLITS if self.config.products is None else SPLITS[:2]

    def _range(self, split: str) -> tuple[int, int]:
        """The first goal of a split, and the one after its last."""
        if split not in self._splits:
            raise UsageError(f"webshop has no split {split!r}" + (" of a file's products" if split in SPLITS else ""), suggest(split, self._splits))
        count = len(self.shop(split).goals)
        if count < 2:
            raise DataError(f"{self.config.products or 'the catalogue'}: {count} goals are too few for a split to train and one to test on")
        tests = min(TEST_GOALS, count // 2)
        return {"test": (0, tests), "train": (tests, count)}.get(split, (0, count))

    def spawn(self) -> WebShopEnvironment:
        """Another live episode in the same shop."""
        twin = copy(self)
        twin._live = None
        return twin

    def reset(self, task: Task, seed: int) -> Observation:
        """Start a task. A visit has no randomness, so the seed changes nothing."""
        head, split, number = [*task.key.split("/"), "", ""][:3]
        known = head == "webshop" and split in self._splits and number.isdecimal()
        first, end = self._range(split) if known else (0, 0)
        if not known or not first <= int(number) < end:
            raise UsageError(f"{task.key!r} is no task of this webshop", "its tasks are named like webshop/test/00017")
        shop = self.shop(split)
        self._live = Visit(shop, shop.goals[int(number)])
        return self._observation()

    def step(self, command: str) -> Step:
        """Carry out one command. The reward is paid by the step that buys."""
        visit = self.visit
        over = visit.place.page == "bought"
        visit.do(command)
        if visit.place.page != "bought":
            return Step(self._observation(), 0.0, terminated=False, success=False, score=0.0)
        score = visit.score()
        total = score.total if score else 0.0
        success = total == 1.0
        reward = FULL_REWARD * (total if self.config.reward == "score" else success)
        return Step(self._observation(), 0.0 if over else reward, terminated=True, success=success, score=total)

    def anchor(self, kind: str) -> str:
        """The key of the present state; see the class."""
        visit = self.visit
        if kind == "state":
            return visit.state_key()
        if kind == "obs":
            return visit.page.body()
        if kind == "goal":
            return visit.goal_key()
        raise UsageError(f"there is no anchor {kind!r}", suggest(kind, self.anchors))

    def snapshot(self) -> Place:
        """The present state."""
        return self.visit.place

    def restore(self, snapshot: Place) -> Observation:
        """Go back to a snapshot of the task that was last started here, wherever it was taken."""
        self.visit.go(snapshot)
        return self._observation()

    def render(self, context: PromptContext) -> list[Message]:
        """The prompt for the present turn, in the configured form."""
        config = self.config
        return prompts.render(context, template=config.template, history_length=config.history_length, list_admissible=config.list_admissible)

    def parse(self, response: str, observation: Observation) -> Action:
        """Read the command from a response, by the rules that the configured prompt states."""
        return parser.parse(response, observation, template=self.config.template)

    def digest(self) -> str:
        """Of the products and goals, the version of the shop, and the prompt."""
        config = self.config
        shop = self.shop("test")
        goals = [(goal.instruction, goal.product.asin) for goal in shop.goals]
        prompt = (prompts.template_named(config.template).version, config.history_length, config.list_admissible)
        parts = (VERSION, shop.products, goals, config.show_attributes, config.reward, prompt)
        return hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()

    def _observation(self) -> Observation:
        return Observation(self.visit.text, self.visit.admissible)


@lru_cache(maxsize=4)
def _generated_shop(size: int, seed: int, goal_seed: int, show_attributes: bool) -> Shop:
    products = generated_products(size, seed)
    return Shop(products, make_goals(products, goal_seed), show_attributes)


@lru_cache(maxsize=2)
def _shop_of_file(path: str, goal_seed: int, show_attributes: bool) -> Shop:
    products = read_products(Path(path))
    return Shop(products, make_goals(products, goal_seed), show_attributes)
