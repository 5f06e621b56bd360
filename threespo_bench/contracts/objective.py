"""What an update minimises and how: plain data that an algorithm declares and a learner carries out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from threespo_bench.errors import UsageError

AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
UNITS = ("token", "turn", "trajectory")
PREFERENCE_LOSSES = ("dpo", "ipo", "kto")
POLICY_LOSSES = ("clip", "gspo", "cispo", "gmpo", "clip_cov", "kl_cov", "gpg")
DECAYS = ("constant", "linear")
KL_ESTIMATORS = ("k1", "k2", "k3")


@dataclass
class PolicyGradient:
    """A policy-gradient loss; by default the clipped one (PPO, arXiv:1707.06347), with the options that the compared algorithms use.

    Attributes:
        loss: ``clip``; ``gspo`` (one ratio a response, arXiv:2507.18071); ``cispo`` (the clipped ratio is a weight, arXiv:2506.13585);
            ``gmpo`` (geometric mean of the ratios, arXiv:2507.20673); ``clip_cov`` and ``kl_cov`` (tokens of large covariance of advantage and
            log-probability are left out, or held by a KL term, arXiv:2505.22617); ``gpg`` (no ratio, arXiv:2504.02546).
        clip_low, clip_high: the ratio is clipped to [1 - clip_low, 1 + clip_high]; ``gmpo`` clips the log-ratio to [-clip_low, clip_high].
        dual_clip: in ``clip``, for negative advantages the loss is at most ``-dual_clip * advantage`` (arXiv:1912.09729); None switches it off.
        kl_coef: weight of the KL term to the reference policy; 0 needs no reference.
        kl_estimator: k1, k2 or k3 (http://joschu.net/blog/kl-approx.html).
        entropy_coef: weight of the entropy bonus.
        aggregation: how token losses become one number: their mean (``token-mean``), the mean over sequences of their sums (``seq-mean-token-sum``) or of
            their means (``seq-mean-token-mean``), or their sum over a constant (``seq-mean-token-sum-norm``).
        unit: what a "sequence" of the aggregation is: a ``token``, the response of one ``turn``, or all responses of a ``trajectory``.
        rollout_ratio_cap: each token's loss is weighted by the ratio of the old policy to the sampler's, at most this; null does not weight.
        covariance_share: share of the tokens that ``clip_cov`` and ``kl_cov`` act on. covariance_low, covariance_high: band that ``clip_cov`` takes them from.
        covariance_kl: weight of the KL term of ``kl_cov``.
        loss_scale_tokens: the constant divisor of ``seq-mean-token-sum-norm``.
        mask_zero_variance_groups: rows of groups whose advantages are all zero leave the KL and entropy terms too.
    """

    loss: str = "clip"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = 3.0
    kl_coef: float = 0.0
    kl_estimator: str = "k3"
    entropy_coef: float = 0.0
    aggregation: str = "token-mean"
    unit: str = "turn"
    loss_scale_tokens: int = 16
    mask_zero_variance_groups: bool = False
    rollout_ratio_cap: float | None = None
    covariance_share: float = 2e-4
    covariance_low: float = 1.0
    covariance_high: float = 5.0
    covariance_kl: float = 1.0

    @property
    def needs_reference(self) -> bool:
        """The loss reads log-probabilities of the reference policy."""
        return self.kl_coef > 0

    def validate(self) -> None:
        """Raises UsageError naming the key for a value out of range."""
        require(self.loss in POLICY_LOSSES, "algorithm.objective.loss", self.loss, f"one of {', '.join(POLICY_LOSSES)}")
        require(self.unit in UNITS, "algorithm.objective.unit", self.unit, f"one of {', '.join(UNITS)}")
        cap = self.rollout_ratio_cap
        require(cap is None or cap > 0, "algorithm.objective.rollout_ratio_cap", cap, "> 0, or null")
        require(0 < self.covariance_share <= 1, "algorithm.objective.covariance_share", self.covariance_share, "in (0, 1]")
        require(self.covariance_low < self.covariance_high, "algorithm.objective.covariance_low", self.covariance_low, "below covariance_high")
        require(self.covariance_kl >= 0, "algorithm.objective.covariance_kl", self.covariance_kl, ">= 0")
        require(0 < self.clip_low <= 1, "algorithm.objective.clip_low", self.clip_low, "in (0, 1]")
        require(self.clip_high > 0, "algorithm.objective.clip_high", self.clip_high, "> 0")
        require(self.dual_clip is None or self.dual_clip > 1, "algorithm.objective.dual_clip", self.dual_clip, "> 1, or null")
        require(self.kl_coef >= 0, "algorithm.objective.kl_coef", self.kl_coef, ">= 0")
        require(self.entropy_coef >= 0, "algorithm.objective.entropy_coef", self.entropy_coef, ">= 0")
        require(self.kl_estimator in KL_ESTIMATORS, "algorithm.objective.kl_estimator", self.kl_estimator, f"one of {', '.join(KL_ESTIMATORS)}")
        require(self.aggregation in AGGREGATIONS, "algorithm.objective.aggregation", self.aggregation, f"one of {', '.join(AGGREGATIONS)}")
        require(self.loss_scale_tokens >= 1, "algorithm.objective.loss_scale_tokens", self.loss_scale_tokens, ">= 1")


@dataclass
class ValueTokens(PolicyGradient):
    """A policy-gradient loss plus two value losses of the same model, read from two reserved tokens (SAPO, arXiv:2608.19842), in one backward pass.

    With z the logits of the reserved tokens, ``V = reward_max * clip((z_plus - z_minus) / value_temperature, -1, 1)``.

    Attributes:
        value_coef: weight of the loss of the state value, read before the response. action_value_coef: of the action value, read after it.
        value_clip: a value is clipped to this distance from the one at the time of the rollout, in units of reward.
        reward_max: the greatest value that can be said. value_temperature: divides the difference of the logits.
    """

    value_coef: float = 0.5
    action_value_coef: float = 0.25
    value_clip: float = 2.0
    reward_max: float = 10.0
    value_temperature: float = 5.0

    def validate(self) -> None:
        """Raises UsageError naming the key for a value out of range."""
        super().validate()
        require(self.value_coef >= 0, "algorithm.objective.value_coef", self.value_coef, ">= 0")
        require(self.action_value_coef >= 0, "algorithm.objective.action_value_coef", self.action_value_coef, ">= 0")
        require(self.value_clip > 0, "algorithm.objective.value_clip", self.value_clip, "> 0")
        require(self.reward_max > 0, "algorithm.objective.reward_max", self.reward_max, "> 0")
        require(self.value_temperature > 0, "algorithm.objective.value_temperature", self.value_temperature, "> 0")


@dataclass
class Preference:
    """A loss on preferences between items, each some turns with weights (:class:`~threespo_bench.contracts.algorithm.Preferences`).

    With l the weighted sum of an item's token log-probabilities, less the reference's, and h = l(chosen) - l(rejected):
    ``dpo`` is -(1 - e) logsigmoid(beta h) - e logsigmoid(-beta h) (arXiv:2305.18290; e > 0 is cDPO); ``ipo`` is (h - 1 / (2 beta))^2
    (arXiv:2310.12036); ``kto`` takes chosen and rejected items one by one (arXiv:2402.01306).

    Attributes:
        loss: ``dpo``, ``ipo`` or ``kto``.
        beta: strength of the pull to the reference. label_smoothing: e, the share of labels taken to be wrong.
        average_log_prob: divide each item's sum by its number of tokens.
        desirable_weight, undesirable_weight: of the two sides in ``kto``.
    """

    loss: str = "dpo"
    beta: float = 0.1
    label_smoothing: float = 0.0
    average_log_prob: bool = False
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0

    @property
    def needs_reference(self) -> bool:
        """The loss reads log-probabilities of the reference policy."""
        return True

    def validate(self) -> None:
        """Raises UsageError naming the key for a value out of range."""
        require(self.loss in PREFERENCE_LOSSES, "algorithm.objective.loss", self.loss, f"one of {', '.join(PREFERENCE_LOSSES)}")
        require(self.beta > 0, "algorithm.objective.beta", self.beta, "> 0")
        require(0 <= self.label_smoothing < 0.5, "algorithm.objective.label_smoothing", self.label_smoothing, "in [0, 0.5)")
        require(self.desirable_weight >= 0, "algorithm.objective.desirable_weight", self.desirable_weight, ">= 0")
        require(self.undesirable_weight >= 0, "algorithm.objective.undesirable_weight", self.undesirable_weight, ">= 0")


@dataclass
class Critic:
    """How a value function of its own is trained: a copy of the model with a scalar head and an AdamW of its own.

    Attributes:
        learning_rate, weight_decay: of its optimiser. gradient_clip: maximum norm of its gradient.
        value_clip: a value is clipped to this distance from the one at the time of the rollout (PPO's value clipping); null does not clip.
        epochs: passes over a batch. mini_batch_turns: turns per optimiser step; null means that a batch is one step.
    """

    learning_rate: float = 1e-5
    weight_decay: float = 0.01
    gradient_clip: float = 1.0
    value_clip: float | None = 0.5
    epochs: int = 1
    mini_batch_turns: int | None = None

    def validate(self) -> None:
        """Raises UsageError naming the key for a value out of range."""
        require(self.learning_rate >= 0, "algorithm.critic.learning_rate", self.learning_rate, ">= 0")
        require(self.weight_decay >= 0, "algorithm.critic.weight_decay", self.weight_decay, ">= 0")
        require(self.gradient_clip > 0, "algorithm.critic.gradient_clip", self.gradient_clip, "> 0")
        require(self.value_clip is None or self.value_clip > 0, "algorithm.critic.value_clip", self.value_clip, "> 0, or null")
        require(self.epochs >= 1, "algorithm.critic.epochs", self.epochs, ">= 1")
        require(self.mini_batch_turns is None or self.mini_batch_turns >= 1, "algorithm.critic.mini_batch_turns", self.mini_batch_turns, ">= 1, or null")


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
        require(self.learning_rate >= 0, "algorithm.optimization.learning_rate", self.learning_rate, ">= 0")
        require(self.decay in DECAYS, "algorithm.optimization.decay", self.decay, f"one of {', '.join(DECAYS)}")
        require(self.weight_decay >= 0, "algorithm.optimization.weight_decay", self.weight_decay, ">= 0")
        require(0 <= self.beta1 < 1, "algorithm.optimization.beta1", self.beta1, "in [0, 1)")
        require(0 <= self.beta2 < 1, "algorithm.optimization.beta2", self.beta2, "in [0, 1)")
        require(self.gradient_clip > 0, "algorithm.optimization.gradient_clip", self.gradient_clip, "> 0")
        require(self.epochs >= 1, "algorithm.optimization.epochs", self.epochs, ">= 1")
        require(self.mini_batch_turns is None or self.mini_batch_turns >= 1, "algorithm.optimization.mini_batch_turns", self.mini_batch_turns, ">= 1, or null")


def require(good: bool, key: str, value: object, allowed: str) -> None:
    """Raises UsageError saying which key has which value and what is allowed."""
    if not good:
        raise UsageError(f"{key}={value} is out of range: must be {allowed}")


Objective = PolicyGradient | Preference
"""What :meth:`Learner.update` can minimise."""
