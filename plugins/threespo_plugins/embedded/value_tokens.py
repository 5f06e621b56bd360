"""Values that the policy itself says: the difference of two reserved tokens' logits, before and after a response (SAPO, arXiv:2608.19842).

With z the logits of the reserved tokens, V = reward_max * clip((z_plus - z_minus) / value_temperature, -1, 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from threespo_bench.contracts.algorithm import Credit
from threespo_bench.contracts.objective import PolicyGradient, ValueTokens
from threespo_bench.errors import DataError, UsageError
from threespo_bench.objectives.value_regression import value_losses
from threespo_bench.turns import TurnBatch
from threespo_plugins.embedded import checks
from threespo_plugins.embedded.packing import make_packs, micro_batch, prompts_as_turns, split, with_ends
from threespo_plugins.embedded.policy import Policy
from threespo_plugins.embedded.scoring import score_ends

LOSSES = ("value_loss", "action_value_loss")
# A byte-level vocabulary writes the bytes 0xFE and 0xFF, which UTF-8 never uses, as the characters of these code points.
_UNUSED_BYTES = ("\u00fe", "\u00ff")
_NOT_TEXT = "\ufffd"  # what a byte that is no text decodes to


def reserved_ids(policy: Policy, named: Sequence[str] | None) -> list[int]:
    """Ids of the reserved tokens for a high and for a low value.

    Args:
        named: the option ``engine.value_tokens``.

    Raises:
        UsageError: the tokenizer does not have them, or they end a response; the message names the option.
    """
    vocabulary = policy.tokenizer.get_vocab()
    if named is None:
        if not all(_is_byte(policy.tokenizer, token) for token in _UNUSED_BYTES):
            raise UsageError(
                f"the tokenizer in {policy.folder} has no tokens for bytes that no text contains, so engine.value_tokens has no default",
                fix="set engine.value_tokens=[TOKEN,TOKEN] to two tokens of its vocabulary that are used for nothing else",
            )
        named = _UNUSED_BYTES
    for token in named:
        if token not in vocabulary:
            raise UsageError(f"engine.value_tokens: the tokenizer in {policy.folder} has no token {token!r}")
        if vocabulary[token] in policy.stops:
            raise UsageError(f"engine.value_tokens: {token!r} ends responses and cannot be reserved", fix="name a token that is used for nothing else")
    return [vocabulary[token] for token in named]


@torch.no_grad()
def value_logits(policy: Policy, turns: TurnBatch) -> np.ndarray:
    """See :meth:`Learner.value_logits`; 0 on padding rows and on those without a response."""
    turns.require(("response_ids", "prompt_ids"), "the value tokens")
    require_reserved(policy)
    out = np.zeros((len(turns), 2))
    packs = with_ends(make_packs(turns, np.flatnonzero(turns.real), policy.forward.takes_masks))
    for part in split(packs, policy.config.micro_batch_tokens):
        batch = micro_batch(turns, part, policy.device)
        out[batch.ends_row] = score_ends(policy, policy.model, batch).double().cpu().numpy()
    return out


def prompt_value_logits(policy: Policy, prompts: Sequence[np.ndarray]) -> np.ndarray:
    """See :meth:`Learner.prompt_value_logits`."""
    return value_logits(policy, prompts_as_turns(prompts))[:, 0]


def require_reserved(policy: Policy) -> None:
    """Raises UsageError if no tokens were reserved."""
    if policy.value_tokens is None:
        raise UsageError("no value tokens were reserved", fix="call engine.prepare(frozenset({'value_tokens'})) first, or let the algorithm name them in needs")


@dataclass(frozen=True)
class ValueTargets:
    """What the two value losses of a mini-batch read; column 0 is the state value, column 1 the action value.

    Attributes:
        old: (N, 2) values at the time of the rollout. targets: (N, 2). coefficients: (2,), 0 where there is no loss.
        share: weight of one turn in the mean over the mini-batch.
    """

    objective: ValueTokens
    old: np.ndarray
    targets: np.ndarray
    coefficients: tuple[float, float]
    share: float

    @staticmethod
    def of(objective: PolicyGradient, policy: Policy, turns: TurnBatch, credit: Credit, rows: np.ndarray) -> ValueTargets | None:
        """Those of the mini-batch ``rows``; None if the objective has no value losses.

        Raises:
            UsageError: the credit lacks targets, or the engine was not prepared.
            DataError: targets have the wrong shape, or the batch lacks the rollout's values.
            EngineError: a target or a value is not finite.
        """
        if not isinstance(objective, ValueTokens):
            return None
        require_reserved(policy)
        if credit.selected_tokens is not None:
            raise UsageError("value tokens are read behind whole responses, so credit.selected_tokens cannot go with them")
        turns.require(("value_logit", "action_value_logit"), "the value losses")
        old, targets = np.zeros((len(turns), 2)), np.zeros((len(turns), 2))
        coefficients = (objective.value_coef, objective.action_value_coef)
        for i, (name, column) in enumerate((("returns", credit.returns), ("action_returns", credit.action_returns))):
            if coefficients[i] == 0:
                continue
            if column is None:
                raise UsageError(f"the objective has a loss of values, but the algorithm's credit has no {name}")
            if column.shape != (len(turns),):
                raise DataError(f"{name} have shape {column.shape}, expected {(len(turns),)}: one number a turn")
            logit = turns.extras["value_logit" if i == 0 else "action_value_logit"]
            old[:, i], targets[:, i] = _spoken(objective, torch.from_numpy(np.asarray(logit, np.float64))).numpy(), column
            checks.check_finite(name, targets[:, i : i + 1], np.ones((len(turns), 1), bool), rows)
            checks.check_finite("values", old[:, i : i + 1], np.ones((len(turns), 1), bool), rows)
        return ValueTargets(objective, old, targets, coefficients, credit.scale / len(rows))

    def loss(self, logits: torch.Tensor, rows: np.ndarray) -> tuple[torch.Tensor, dict[str, float]]:
        """The part of the loss that belongs to a micro-batch's ``rows`` (R,) with (R, 2) ``logits``, and what to report of it.

        Over the micro-batches it sums to c_V mean(l_V) + c_Q mean(l_Q), l of :func:`value_losses`.
        """
        old, targets = (torch.from_numpy(column[rows]).to(logits.device, torch.float32) for column in (self.old, self.targets))
        losses, _ = value_losses(_spoken(self.objective, logits), old, targets, self.objective.value_clip)
        means = self.share * losses.sum(dim=0)
        used = [i for i in (0, 1) if self.coefficients[i] > 0]
        loss = sum((self.coefficients[i] * means[i] for i in used), start=means.new_zeros(()))
        report = {LOSSES[i]: means[i].item() for i in used}
        return loss, report | {"loss": loss.item()}


def _spoken(objective: ValueTokens, logits: torch.Tensor) -> torch.Tensor:
    """reward_max * clip((z_plus - z_minus) / value_temperature, -1, 1)."""
    return objective.reward_max * (logits / objective.value_temperature).clamp(-1.0, 1.0)


def _is_byte(tokenizer: PreTrainedTokenizerBase, token: str) -> bool:
    """The vocabulary has the token, and it stands for a byte, not for the character that it is written with."""
    number = tokenizer.get_vocab().get(token)
    return number is not None and tokenizer.backend_tokenizer.decode([number], skip_special_tokens=False) == _NOT_TEXT
