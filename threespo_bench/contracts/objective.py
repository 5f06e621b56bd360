"""What an update minimises and how: plain data that an algorithm declares and a learner carries out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from threespo_bench.errors import UsageError

AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
DECAYS = ("constant", "linear")
KL_ESTIMATORS = ("k1", "k2", "k3")


@dataclass
class PolicyGradient:
    """The clipped policy-gradient loss (PPO, arXiv:1707.06347) with the options that the compared algorithms use.

    Attributes:
        clip_low, clip_high: the ratio is clipped to [1 - clip_low, 1 + clip_high].
        dual_clip: for negative advantages the loss is at most ``-dual_clip * advantage`` (arXiv:1912.09729); None switches it off.
        kl_coef: weight of the KL term to the reference policy; 0 needs no reference.
        kl_estimator: k1, k2 or k3 (http://joschu.net/blog/kl-approx.html).
        entropy_coef: weight of the entropy bonus.
        aggregation: how token losses become one number, see :data:`AGGREGATIONS`; a "sequence" is one turn's response.
        loss_scale_tokens: the constant divisor of ``seq-mean-token-sum-norm``.
        mask_zero_variance_groups: rows of groups whose advantages are all zero leave the KL and entropy terms too.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = 3.0
    kl_coef: float = 0.0
    kl_estimator: str = "k3"
    entropy_coef: float = 0.0
    aggregation: str = "token-mean"
    loss_scale_tokens: int = 16
    mask_zero_variance_groups: bool = False

    def validate(self) -> None:
        """Raises UsageError naming the key for a value out of range."""
        _require(0 < self.clip_low <= 1, "algorithm.objective.clip_low", self.clip_low, "in (0, 1]")
        _require(self.clip_high > 0, "algorithm.objective.clip_high", self.clip_high, "> 0")
        _require(self.dual_clip is None or self.dual_clip > 1, "algorithm.objective.dual_clip", self.dual_clip, "> 1, or null")
        _require(self.kl_coef >= 0, "algorithm.objective.kl_coef", self.kl_coef, ">= 0")
        _require(self.entropy_coef >= 0, "algorithm.objective.entropy_coef", self.entropy_coef, ">= 0")
        _require(self.kl_estimator in KL_ESTIMATORS, "algorithm.objective.kl_estimator", self.kl_estimator, f"one of {', '.join(KL_ESTIMATORS)}")
        _require(self.aggregation in AGGREGATIONS, "algorithm.objective.aggregation", self.aggregation, f"one of {', '.join(AGGREGATIONS)}")
        _require(self.loss_scale_tokens >= 1, "algorithm.objective.loss_scale_tokens", self.loss_scale_tokens, ">= 1")


@dataclass
class Optimization:
    """How the parameters move: AdamW (arXiv:1711.05101) and the division of a batch into optimiser steps.

    Attributes:
        learning_rate, weight_decay, beta1, beta2: AdamW's.
        decay: ``constant``, or ``linear``: the learning rate falls in proportion to what is left of the run's budget.
        gradient_clip: maximum norm of the gradient of one optimiser step.
        epochs: passes over a batch.
        mini_batch_turns: turns per optimiser step; null means that a batch is one step. Groups are not kept together.
    """

    learning_rate: float = 3e-5
    decay: str = "constant"
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    gradient_clip: float = 1.0
    epochs: int = 1
    mini_batch_turns: int | None = None

    def at(self, spent: float) -> Optimization:
        """The settings to use when the share ``spent`` of the budget is spent."""
        return replace(self, learning_rate=self.learning_rate * (1.0 - spent)) if self.decay == "linear" else self

    def validate(self) -> None:
        """Raises UsageError naming the key for a value out of range."""
        _require(self.learning_rate >= 0, "algorithm.optimization.learning_rate", self.learning_rate, ">= 0")
        _require(self.decay in DECAYS, "algorithm.optimization.decay", self.decay, f"one of {', '.join(DECAYS)}")
        _require(self.weight_decay >= 0, "algorithm.optimization.weight_decay", self.weight_decay, ">= 0")
        _require(0 <= self.beta1 < 1, "algorithm.optimization.beta1", self.beta1, "in [0, 1)")
        _require(0 <= self.beta2 < 1, "algorithm.optimization.beta2", self.beta2, "in [0, 1)")
        _require(self.gradient_clip > 0, "algorithm.optimization.gradient_clip", self.gradient_clip, "> 0")
        _require(self.epochs >= 1, "algorithm.optimization.epochs", self.epochs, ">= 1")
        _require(self.mini_batch_turns is None or self.mini_batch_turns >= 1, "algorithm.optimization.mini_batch_turns", self.mini_batch_turns, ">= 1, or null")


def _require(good: bool, key: str, value: object, allowed: str) -> None:
    if not good:
        raise UsageError(f"{key}={value} is out of range: must be {allowed}")
