"""Losses on preferences against the trainers of TRL, given the same logits or log-probabilities.

A pair is two trajectories of several turns; for TRL each is one completion, with the tokens between the turns under its mask. The trainers themselves are never
built: their methods are called with a stand-in that has the attributes they read.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.parity.layouts import Rows, algorithm, by_trajectory, random_turns
from threespo_bench.contracts.objective import Preference
from threespo_bench.objectives.preference import kto_losses, preference_losses
from threespo_bench.turns import TurnBatch

SEEDS = range(4)
BETAS = (0.1, 0.5)
SHAPE = [[3, 2], [1, 4], [2, 2], [1, 1], [5, 1]]
VOCABULARY = 5


@dataclass
class Pairs:
    """Two trajectories of each task, one of which won, and two models. Sequences begin with one token of prompt.

    Attributes:
        turns, rows: as our algorithms and as TRL see them. ids: (2 P, T + 1), the winners first.
        logits: (2 P, T + 1, V) of the policy, with gradient. reference: (2 P, T) log-probabilities.
        order: (2 P,) the place of each sequence in ``rows``.
    """

    turns: TurnBatch
    rows: Rows
    ids: torch.Tensor
    logits: torch.Tensor
    reference: torch.Tensor
    order: np.ndarray

    @property
    def mask(self) -> torch.Tensor:
        """(2 P, T) bool."""
        return self.rows.mask[self.order].bool()

    @property
    def log_probs(self) -> torch.Tensor:
        """(2 P, T) of the policy."""
        return token_log_probs(self.logits, self.ids)

    def ratios(self, average: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """(P,) log-ratios of the winners and of the others."""
        return self.sums(self.log_probs - self.reference, average).chunk(2)

    def sums(self, per_token: torch.Tensor, average: bool = False) -> torch.Tensor:
        """(2 P,) sums or means over the tokens of each sequence."""
        total = torch.where(self.mask, per_token, 0.0).sum(dim=1)
        return total / self.mask.sum(dim=1) if average else total


def token_log_probs(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """(R, T) of all tokens but the first."""
    return logits[:, :-1].log_softmax(dim=-1).gather(-1, ids[:, 1:, None])[..., 0]


def random_pairs(seed: int) -> Pairs:
    generator = torch.Generator().manual_seed(seed)
    turns = random_turns(seed, SHAPE)
    turns.action_valid[:] = True
    won = np.array([name.endswith("/0") for name in turns.traj_id])
    turns.step_reward[:] = np.where(turns.terminated & won, 10.0, 0.0)
    turns.success = turns.terminated & won
    rows = by_trajectory(turns, turns.step_reward)
    order = np.lexsort((rows.index.astype(str), -rows.reward.sum(dim=1).numpy()))
    number, width = rows.mask.shape
    ids = torch.randint(VOCABULARY, (number, width + 1), generator=generator)
    policy, reference = torch.randn(2, number, width + 1, VOCABULARY, generator=generator, dtype=torch.float64)
    pairs = Pairs(turns, rows, ids, policy.requires_grad_(), token_log_probs(reference, ids), order)
    back = np.argsort(order)
    turns.old_log_probs = rows.back(pairs.log_probs.detach()[back], turns)
    turns.ref_log_probs = rows.back(pairs.reference[back], turns)
    return pairs


def gradient(loss: torch.Tensor, pairs: Pairs) -> torch.Tensor:
    """Of the loss, at the logits."""
    return torch.autograd.grad(loss, pairs.logits, retain_graph=True)[0]


def dpo_of_trl(trainer: type, pairs: Pairs, kind: str, beta: float, label_smoothing: float = 0.0, only: int | None = None) -> torch.Tensor:
    """The mean loss of the pairs, or the loss of the pair ``only``."""
    number = len(pairs.ids) // 2
    at = torch.arange(2 * number) if only is None else torch.tensor([only, number + only])
    reference = pairs.sums(pairs.reference)[at]
    completion = torch.nn.functional.pad(pairs.mask.long(), (1, 0))[at]
    inputs = {"input_ids": pairs.ids[at], "attention_mask": torch.ones_like(pairs.ids[at]), "completion_mask": completion}
    inputs["ref_chosen_logps"], inputs["ref_rejected_logps"] = reference.chunk(2)
    itself = SimpleNamespace(
        model=SimpleNamespace(training=False), accelerator=SimpleNamespace(device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x),
        _truncate_inputs=lambda *inputs: inputs, precompute_ref_logps=True, f_divergence_type="reverse_kl", ld_alpha=None, use_weighting=False,
        loss_types=[kind], loss_weights=[1.0], beta=beta, label_smoothing=label_smoothing, _total_train_tokens=0,
        _metrics={"eval": defaultdict(list)},
    )  # fmt: skip
    return trainer._compute_loss(itself, lambda **_: SimpleNamespace(logits=pairs.logits[at]), inputs, False)


def kto_of_trl(trainer: type, objective: Preference, pairs: Pairs, of_kl: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The losses of the winners and of the others, with the reference point from log-probabilities ``of_kl`` under the policy and the reference."""
    itself = SimpleNamespace(
        calculate_KL=True, accelerator=SimpleNamespace(device="cpu", gather_for_metrics=lambda x: x), loss_type="kto", beta=objective.beta,
        desirable_weight=objective.desirable_weight, undesirable_weight=objective.undesirable_weight,
    )  # fmt: skip
    policy, reference = pairs.sums(pairs.log_probs).chunk(2), pairs.sums(pairs.reference).chunk(2)
    losses, *_ = trainer.kto_loss(itself, *policy, of_kl[0], *reference, of_kl[1])
    return losses


def both(agree: Any, pairs: Pairs, ours: torch.Tensor, theirs: torch.Tensor, what: str) -> None:
    agree(ours, theirs, f"{what} loss")
    agree(gradient(ours, pairs), gradient(theirs, pairs), f"{what} gradient")


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("seed", SEEDS)
def test_dpo(dpo_trainer, agree, seed, beta):
    pairs = random_pairs(seed)
    ours = preference_losses(Preference(beta=beta), *pairs.ratios()).losses.mean()
    both(agree, pairs, ours, dpo_of_trl(dpo_trainer, pairs, "sigmoid", beta), "dpo")


@pytest.mark.parametrize("seed", SEEDS)
def test_label_smoothing(dpo_trainer, agree, seed):
    """For a single pair the ``aot_unpaired`` loss of TRL is cDPO: it sorts one value."""
    pairs = random_pairs(seed)
    ours = preference_losses(Preference(beta=0.3, label_smoothing=0.1), *pairs.ratios()).losses
    for pair in range(len(SHAPE)):
        both(agree, pairs, ours[pair], dpo_of_trl(dpo_trainer, pairs, "aot_unpaired", 0.3, 0.1, only=pair), f"cdpo {pair}")


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("seed", SEEDS)
def test_ipo(dpo_trainer, agree, seed, beta):
    """TRL divides by the number of tokens, as our option ``average_log_prob`` does; without the option, longer trajectories have larger margins."""
    pairs = random_pairs(seed)
    theirs = dpo_of_trl(dpo_trainer, pairs, "ipo", beta)
    objective = Preference(loss="ipo", beta=beta)
    both(agree, pairs, preference_losses(objective, *pairs.ratios(average=True)).losses.mean(), theirs, "ipo")
    assert abs(preference_losses(objective, *pairs.ratios()).losses.mean() - theirs) > 0.1


@pytest.mark.parametrize("seed", SEEDS)
def test_kto(kto_trainer, agree, seed):
    """Given the same responses to estimate the divergence from."""
    pairs = random_pairs(seed)
    objective = Preference(loss="kto", beta=0.2, desirable_weight=1.5, undesirable_weight=0.7)
    responses = pairs.sums(pairs.log_probs.detach()), pairs.sums(pairs.reference)
    ours = preference_losses(objective, *pairs.ratios()).losses
    theirs = kto_of_trl(kto_trainer, objective, pairs, responses)
    agree(ours, theirs, "kto losses")
    both(agree, pairs, ours.mean(), theirs.mean(), "kto")


@pytest.mark.parametrize("seed", SEEDS)
def test_the_reference_point_of_kto(kto_trainer, agree, seed):
    """TRL estimates it from responses to other prompts, which takes a second pass; ours from the responses themselves. Given the point, losses agree."""
    pairs = random_pairs(seed)
    objective = Preference(loss="kto", beta=0.2)
    others = torch.tensor([-3.0, -4.0]), torch.tensor([-3.5, -5.0])
    theirs = kto_of_trl(kto_trainer, objective, pairs, others)
    point = torch.tensor(0.75)
    agree(kto_losses(objective, *pairs.ratios(), point).losses, theirs, "kto losses")
    assert (preference_losses(objective, *pairs.ratios()).losses - theirs).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["dpo", "cdpo", "ipo", "kto"])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_credit_of_our_algorithms_is_the_gradient(dpo_trainer, kto_trainer, agree, name, seed):
    """Advantages of preferences are the weights that token log-probabilities have in the gradient of TRL's loss."""
    pairs = random_pairs(seed)
    overrides = {"ipo": ("objective.average_log_prob=true",), "kto": ()}.get(name, ())
    ours = algorithm(name, *overrides)
    objective, credit = ours.config.objective, ours.credit(pairs.turns)
    if name == "kto":
        responses = pairs.sums(pairs.log_probs.detach()), pairs.sums(pairs.reference)
        loss = kto_of_trl(kto_trainer, objective, pairs, responses).sum()
    elif name == "cdpo":
        assert objective.label_smoothing > 0
        loss = sum(dpo_of_trl(dpo_trainer, pairs, "aot_unpaired", objective.beta, objective.label_smoothing, only=pair) for pair in range(len(SHAPE)))
    else:
        loss = dpo_of_trl(dpo_trainer, pairs, {"dpo": "sigmoid"}.get(name, name), objective.beta) * len(SHAPE)
    advantages = pairs.rows.spread(credit.advantages)[pairs.order]
    surrogate = -torch.where(pairs.mask, advantages * pairs.log_probs, 0.0).sum()
    agree(gradient(surrogate, pairs), gradient(loss, pairs), f"{name} gradient")
