"""What an algorithm plugin offers: how experience is gathered, what each turn is worth, what is minimised, and what is remembered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from threespo_bench.contracts.objective import Optimization, PolicyGradient

if TYPE_CHECKING:
    from threespo_bench.contracts.sampler import RolloutContext, Sampler
    from threespo_bench.turns import TurnBatch


@dataclass(frozen=True)
class Item:
    """Some turns whose log-probabilities are summed: (R,) integer ``rows`` of the batch and (R,) float64 ``weights`` (1 for a plain sum)."""

    rows: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True)
class Preferences:
    """What is liked better than what. With ``paired`` the items are pairs, place by place; without, two independent lists (KTO)."""

    chosen: list[Item]
    rejected: list[Item]
    paired: bool = True


@dataclass
class Credit:
    """The answer of :meth:`Algorithm.credit`.

    Attributes:
        advantages: (N, T) float64, exactly 0 where the response mask is false.
        selected: (N,) bool, the rows that take part in the update; None means all rows that are not padding.
        selected_tokens: (N, T) bool, the tokens that take part in the update and in its denominators; None means all under the response mask.
        scale: factor on the loss; below 1 for a batch that is smaller than usual and shall move the policy less.
        returns: targets of the value function: (N, T) a token, (N,) a turn (the value of the state the turn acts in), or None.
        action_returns: (N,) targets of the action value, read after the response, or None.
        preferences: what a :class:`~threespo_bench.contracts.objective.Preference` objective learns from; ``advantages`` then only tell who gets the credit.
        diagnostics: scalars for the metrics (group count, shares, moments ...), each finite.
    """

    advantages: np.ndarray
    selected: np.ndarray | None = None
    selected_tokens: np.ndarray | None = None
    scale: float = 1.0
    returns: np.ndarray | None = None
    action_returns: np.ndarray | None = None
    preferences: Preferences | None = None
    diagnostics: dict[str, float] = field(default_factory=dict)


@dataclass
class AlgorithmConfig:
    """Options every algorithm has; subclasses add their own.

    Attributes:
        objective: the loss.
        optimization: the optimiser and the division into steps.
        anchor: the kind of state key that fills ``anchor_obs`` and ``next_anchor_obs`` (``obs``, ``state`` ... as the environment offers).
        temperature: sampling temperature of training rollouts.
        tasks_per_iteration: tasks taken from the task stream by one iteration.
    """

    objective: PolicyGradient = field(default_factory=PolicyGradient)
    optimization: Optimization = field(default_factory=Optimization)
    anchor: str = "obs"
    temperature: float = 1.0
    tasks_per_iteration: int = 8

    def state_keys(self) -> dict[str, str]:
        """The kinds of state key that the algorithm asks of its environment, by option. Subclasses with more options of that sort add them."""
        return {"anchor": self.anchor}

    def validate(self) -> None:
        """Raises UsageError naming the key for a value out of range. Subclasses extend it and call super."""
        from threespo_bench.errors import UsageError

        self.objective.validate()
        self.optimization.validate()
        if not self.temperature > 0:
            raise UsageError(f"algorithm.temperature={self.temperature} is out of range: must be > 0")
        if self.tasks_per_iteration < 1:
            raise UsageError(f"algorithm.tasks_per_iteration={self.tasks_per_iteration} is out of range: must be >= 1")


Score = Callable[["TurnBatch"], np.ndarray]


class Algorithm(ABC):
    """Base of all algorithms. One instance lives for one run.

    Attributes:
        Config: a subclass of :class:`AlgorithmConfig`; its field names are the keys under ``algorithm.``.
        title: full name. source: paper and equations. notes: what a user should know, shown by ``info``.
        needs: engine and environment capabilities it cannot do without (:data:`~threespo_bench.contracts.engine.CAPABILITIES`, ``restore``). A class
            whose needs depend on its options sets them in ``__init__``. The loop fills the columns that they bring before it asks for credit
            (:mod:`threespo_bench.completion`).
        requires: columns of :class:`TurnBatch` that :meth:`credit` reads beyond the always present ones.
    """

    Config: ClassVar[type[AlgorithmConfig]] = AlgorithmConfig
    title: ClassVar[str] = ""
    source: ClassVar[str] = ""
    notes: ClassVar[str] = ""
    needs: frozenset[str] = frozenset()
    requires: tuple[str, ...] = ()

    sampler: Sampler

    def __init__(self, config: Any) -> None:
        self.config = config

    def collect(self, context: RolloutContext) -> AsyncIterator[TurnBatch]:
        """One iteration of experience; each yielded batch is credited, learned from and observed before the next is asked for."""
        return self.sampler.collect(context, self)

    def most_env_steps(self, max_turns: int) -> int | None:
        """The most environment steps that one iteration can charge, as its sampler says; None if there is no bound that is known before.

        An algorithm with a :meth:`collect` of its own has none unless it says so here. ``max_turns`` is the step limit of an episode.
        """
        if type(self).collect is not Algorithm.collect:
            return None
        return self.sampler.most_env_steps(self.config.tasks_per_iteration, max_turns)

    @abstractmethod
    def credit(self, turns: TurnBatch) -> Credit:
        """Advantages of a batch. Pure: depends on ``turns`` and the configuration only, changes nothing."""

    def observe(self, turns: TurnBatch, score: Score) -> None:
        """Remember what a batch showed (state statistics, value trackers ...). Called once a batch, after the update.

        Args:
            turns: the batch that was learned from. score: log-probabilities (N, T) of any turns under the policy as it is after the update.
        """

    def refreshes_reference(self, iteration: int) -> bool:
        """Whether the present policy becomes the reference policy now. Asked at the end of an iteration; ``iteration`` of them are over."""
        return False

    def diagnostics(self) -> dict[str, float]:
        """Scalars about the persistent state, asked once an iteration."""
        return {}

    def case_study(self) -> list[dict[str, Any]]:
        """What became of a few states that were visited again, as plain data (JSON types); asked once an iteration and kept as ``states.json``.

        Of each state: ``state``, ``task`` and ``observation`` (texts), ``count`` of its visits, and ``visits``: of some of them ``visit`` (its number),
        ``clock``, ``total`` and ``won`` (trajectories through the state so far), ``score``, ``samples``, and perhaps ``actions``, each with ``command``,
        ``reward``, ``valid`` and ``success``. The report draws and lists them.
        """
        return []

    def warnings(self) -> list[str]:
        """What a user should know before a run starts and that is no error. Raises a BenchError if the algorithm lacks an input of its own."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """The persistent state as plain data (JSON types and NumPy arrays); part of every checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
