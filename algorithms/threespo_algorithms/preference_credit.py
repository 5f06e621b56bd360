"""What algorithms that learn from preferences share: their options, the moving reference, and who gets the credit.

The learner takes the preferences themselves. The advantages of such a credit only show what they amount to: the slope of the loss at each item's
log-ratio to the reference, which is the weight that its tokens have in the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from threespo_algorithms.group_statistics import over_tokens
from threespo_bench.contracts.algorithm import AlgorithmConfig, Credit, Item, Preferences
from threespo_bench.contracts.objective import Preference
from threespo_bench.errors import UsageError
from threespo_bench.turns import TurnBatch

NEEDS = frozenset({"reference", "preference"})


@dataclass
class PreferenceConfig(AlgorithmConfig):
    """Options of algorithms that learn from preferences.

    Attributes:
        objective: the loss on preferences.
        reference_update_iterations: the present policy becomes the reference every so many iterations; 0 keeps the starting policy.
    """

    objective: Preference = field(default_factory=Preference)  # type: ignore[assignment]
    reference_update_iterations: int = 1

    def validate(self) -> None:
        super().validate()
        check_reference_update(self.reference_update_iterations)


def check_reference_update(every: int) -> None:
    """Raises UsageError for a number of iterations below 0."""
    if every < 0:
        raise UsageError(f"algorithm.reference_update_iterations={every} is out of range: must be >= 0 (0 keeps the starting policy)")


def refresh_is_due(every: int, iteration: int) -> bool:
    """Whether the reference moves after ``iteration`` iterations, if it does so every ``every`` of them."""
    return every > 0 and iteration % every == 0


def preference_credit(turns: TurnBatch, preferences: Preferences, objective: Preference) -> Credit:
    """The credit of these preferences: +slope * weight on the tokens of chosen turns, -slope * weight on those of rejected ones, summed over items.

    With h from ``old_log_probs`` and ``ref_log_probs`` the slope is beta sigmoid(-beta h) in DPO. Without either column every log-ratio is 0.
    """
    chosen, rejected = (_side(turns, side, objective) for side in (preferences.chosen, preferences.rejected))
    liked, disliked = implied_weights(objective, chosen.ratios, rejected.ratios)
    per_turn = chosen.spread(liked, len(turns)) - rejected.spread(disliked, len(turns))
    selected = np.zeros(len(turns), bool)
    selected[np.r_[chosen.rows, rejected.rows]] = True
    diagnostics = {"preference/chosen": float(len(preferences.chosen)), "preference/rejected": float(len(preferences.rejected))}
    return Credit(over_tokens(per_turn, turns), selected=selected, preferences=preferences, diagnostics=diagnostics)


def implied_weights(objective: Preference, chosen: np.ndarray, rejected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How fast the loss of each item falls as its log-ratio moves the right way: up for the (P,) chosen ones, down for the (Q,) rejected ones.

    Args:
        objective: the loss. chosen, rejected: log-ratios to the reference, pair by pair except in ``kto``.
    """
    beta = objective.beta
    if objective.loss == "kto":
        z0 = max(0.0, float(np.r_[chosen, rejected].mean())) if len(chosen) + len(rejected) else 0.0
        good, bad = beta * (chosen - z0), beta * (z0 - rejected)
        # d/dx of w (1 - sigmoid(x)) is -w sigmoid(x) sigmoid(-x)
        return (
            objective.desirable_weight * beta * _sigmoid(good) * _sigmoid(-good),
            objective.undesirable_weight * beta * _sigmoid(bad) * _sigmoid(-bad),
        )
    h = chosen - rejected
    if objective.loss == "ipo":
        weight = 1.0 / beta - 2.0 * h  # of (h - 1 / (2 beta))^2
    else:
        e = objective.label_smoothing
        weight = beta * ((1.0 - e) * _sigmoid(-beta * h) - e * _sigmoid(beta * h))  # of -(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h)
    return weight, weight


@dataclass(frozen=True)
class _Side:
    """The rows of all items of one side, item after item, with (R,) weights and item numbers, and the (P,) log-ratios of the items."""

    rows: np.ndarray
    weights: np.ndarray
    index: np.ndarray
    ratios: np.ndarray

    def spread(self, of_items: np.ndarray, turns: int) -> np.ndarray:
        """(N,) the items' values on their rows, weighted and summed."""
        return np.bincount(self.rows, weights=of_items[self.index] * self.weights, minlength=turns)


def _side(turns: TurnBatch, items: list[Item], objective: Preference) -> _Side:
    rows = np.concatenate([np.zeros(0, np.int64), *(item.rows for item in items)])
    weights: np.ndarray = np.concatenate([np.zeros(0), *(item.weights for item in items)])
    index = np.repeat(np.arange(len(items)), [len(item.rows) for item in items])
    mask = turns.response_mask[rows]
    if objective.average_log_prob:
        weights = weights / np.maximum(np.bincount(index, weights=mask.sum(axis=1), minlength=len(items)), 1)[index]
    ratios: np.ndarray = np.zeros(len(items))
    if turns.old_log_probs is not None and turns.ref_log_probs is not None:
        difference = np.zeros(mask.shape)
        np.subtract(turns.old_log_probs[rows], turns.ref_log_probs[rows], out=difference, where=mask)
        ratios = np.bincount(index, weights=weights * difference.sum(axis=1), minlength=len(items))
    return _Side(rows, weights, index, ratios)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0.0, -x))
