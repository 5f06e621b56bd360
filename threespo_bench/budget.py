"""What a run may spend, what it has spent, and when it must stop: the same for a tree search and for parallel rollouts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from threespo_bench.errors import UsageError


@dataclass
class Limits:
    """The budget a run may spend in training; null is no limit, at least one must be set. Evaluation is not charged.

    Attributes:
        env_steps: environment steps. tokens: generated tokens. updates: optimiser steps. iterations: iterations of the loop.
    """

    env_steps: int | None = None
    tokens: int | None = None
    updates: int | None = None
    iterations: int | None = None

    def validate(self) -> None:
        """Raises UsageError naming the key for a limit that is not positive, or if there is none."""
        for name, value in asdict(self).items():
            if value is not None and value < 1:
                raise UsageError(f"budget.{name}={value} is out of range: must be >= 1, or null for no limit")
        if all(value is None for value in asdict(self).values()):
            raise UsageError(
                "the budget has no limit: the run would never end",
                fix="set budget.env_steps=, budget.tokens=, budget.updates= or budget.iterations=",
            )


@dataclass
class Spent:
    """Running totals of one run; ``env_steps`` is the axis of every curve."""

    env_steps: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    episodes: int = 0
    updates: int = 0
    iterations: int = 0


@dataclass
class Budget:
    """Limits and totals of one run."""

    limits: Limits
    spent: Spent = field(default_factory=Spent)

    def charge(self, **amounts: int) -> None:
        """Add to the totals by name, e.g. ``charge(env_steps=1, tokens=5)``."""
        for name, amount in amounts.items():
            setattr(self.spent, name, getattr(self.spent, name) + int(amount))

    def exhausted(self) -> bool:
        """True once any limit is reached."""
        return any(limit is not None and getattr(self.spent, name) >= limit for name, limit in asdict(self.limits).items())

    def fraction(self) -> float:
        """The share of the tightest limit that is spent, in [0, 1]."""
        shares = [getattr(self.spent, name) / limit for name, limit in asdict(self.limits).items() if limit is not None]
        return min(1.0, max(shares, default=0.0))
