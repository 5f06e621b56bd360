"""Two experts: one that knows what is wanted, and one that knows only what it has read.

:func:`oracle_plan` gives a plan from any state: it searches for the wanted product by its title. It proves that goals can be reached.
:class:`Searcher` plays by the rules an agent plays by; its episodes are what a model can be taught from.
"""

from __future__ import annotations

from threespo_bench.contracts.environment import Observation
from threespo_envs.webshop.memory import Listed, Memory, words_of
from threespo_envs.webshop.pages import BACK_TO_SEARCH, BUY, NEXT, PER_PAGE, PREVIOUS, label_of
from threespo_envs.webshop.shop import START, Place, Visit

_BACK, _BUY, _NEXT, _PREVIOUS = (f"click[{label_of(label)}]" for label in (BACK_TO_SEARCH, BUY, NEXT, PREVIOUS))


def oracle_plan(visit: Visit) -> list[str]:
    """Commands that buy the goal's own product as it is wanted, from the present state of ``visit``, which is left as it is.

    Empty if something was bought, or if no search for the product's texts finds it.
    """
    shop, goal, place = visit.shop, visit.goal, visit.place
    if place.page == "bought":
        return []
    target = shop.products.index(goal.product)
    plan: list[str] = []
    if place.item == target:
        if place.page != "item":
            plan.append(_PREVIOUS)
        return plan + _choices(visit, dict(place.chosen)) + [_BUY]
    if place.item >= 0 and target in shop.found(place.query):
        plan += [_PREVIOUS] * (1 if place.page == "item" else 2)
    elif place.page != "search" and target not in shop.found(place.query):
        plan.append(_BACK)
        place = START
    if place.page == "search":
        query = next((words for words in _queries(visit) if target in shop.found(words)), "")
        if not query:
            return []
        plan.append(f"search[{query}]")
        place = Place("results", query, 1)
    pages = shop.found(place.query).index(target) // PER_PAGE + 1 - place.number
    plan += [_NEXT if pages > 0 else _PREVIOUS] * abs(pages)
    return [*plan, f"click[{label_of(goal.product.asin)}]", *_choices(visit, {}), _BUY]


def _queries(visit: Visit) -> list[str]:
    product = visit.goal.product
    texts = (product.title, f"{product.title} {product.query}", f"{product.title} {product.description}", product.description, *product.features)
    return [label_of(text) for text in texts]


def _choices(visit: Visit, chosen: dict[str, str]) -> list[str]:
    return [f"click[{label_of(value)}]" for name, value in visit.goal.options if chosen.get(name) != value]


class Searcher:
    """Looks for the wanted product by what it has read, as an agent must.

    It searches for all words of the instruction and opens, of the products within the price limit that it has not seen, the one whose title has most
    of them. It reads features and description if wanted words are still missing, and goes back if they remain so or if a wanted option value is not
    offered. Otherwise it chooses and buys; so it does with whatever it has come to when its patience or its time is at an end.

    Args:
        max_turns: the step limit of the episode, in time for which it buys.
        patience: how many products it looks at.
    """

    def __init__(self, max_turns: int = 15, patience: int = 4) -> None:
        self._max_turns, self._patience = max_turns, patience
        self._memory = Memory()
        self._turn = 0

    def act(self, observation: Observation) -> str:
        """The next command. The observations of an episode must be given one after the other."""
        self._memory.see(observation)
        command = self._decide()
        self._memory.do(command)
        self._turn += 1
        return command

    def carried_out(self, command: str) -> None:
        """Take note that another command than the one that :meth:`act` gave is carried out."""
        self._memory.do(command)

    def _decide(self) -> str:
        page = self._memory.page
        if page == "search":
            return f"search[{self._query()}]"
        if page == "results":
            return self._from_results()
        return self._from_item() if page == "item" else _PREVIOUS

    def _query(self) -> str:
        """The words of the wish and of the wanted option values, which the search looks at too; the second time without these."""
        wish = self._memory.wish
        values = [value for _, value in wish.options] if len(self._memory.queries) % 2 == 0 else []
        return " ".join(words_of(" ".join([wish.words, *values]))) or "product"

    def _from_results(self) -> str:
        memory, products = self._memory, self._memory.now.products
        fresh = [listed for listed in products if listed.asin not in memory.opened and listed.price <= memory.wish.price_limit]
        if fresh and not self._in_haste(spare=2):
            return f"click[{min(fresh, key=self._missing).asin}]"
        if memory.now.has_next and not self._in_haste(spare=3):
            return _NEXT
        return f"click[{min(products, key=self._missing).asin}]" if products else _BACK

    def _from_item(self) -> str:
        memory, wish = self._memory, self._memory.wish
        offered = {label_of(value) for _, values in memory.options for value in values}
        lacks = memory.lacking(memory.now.title, *memory.texts_of_item())
        fits = memory.now.price <= wish.price_limit and all(label_of(value) in offered for _, value in wish.options)
        if fits and lacks and not self._in_haste(spare=2):
            unread = [kind for kind in ("features", "description") if (memory.item, kind) not in memory.said]
            if unread:
                return f"click[{unread[0]}]"
        if (lacks or not fits) and len(memory.opened) < self._patience and not self._in_haste(spare=2):
            return _PREVIOUS
        chosen = {label_of(value) for value in memory.chosen.values()}
        left = [label_of(value) for _, value in wish.options if label_of(value) in offered - chosen]
        return f"click[{left[0]}]" if left else _BUY

    def _missing(self, listed: Listed) -> int:
        """How many wanted words a title lacks."""
        return len(self._memory.lacking(listed.title))

    def _in_haste(self, spare: int) -> bool:
        """After ``spare`` more turns there is no longer time to choose all options and to buy."""
        return self._max_turns - self._turn - spare < len(self._memory.wish.options) + 1
