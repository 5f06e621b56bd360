"""The learner: scores turns and moves the weights, by verl's workers. What it computes is what the embedded engine computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensordict import TensorDict

from threespo_bench.contracts.algorithm import Credit
from threespo_bench.contracts.engine import Learner
from threespo_bench.contracts.objective import Critic, Objective, Optimization, PolicyGradient, Preference
from threespo_bench.errors import UsageError
from threespo_bench.objectives.policy_gradient import LossReport
from threespo_bench.seeding import Streams
from threespo_bench.turns import TurnBatch
from threespo_plugins.embedded import checks, preference
from threespo_plugins.embedded.gradient import mini_batch_large_covariance, mini_batch_weights
from threespo_plugins.embedded.packing import response_lengths
from threespo_plugins.embedded.rows import SPOT_CHECK, compute_rows, mini_batches, nothing_moves, selected_rows, selected_tokens
from threespo_plugins.verl_engine import checkpoint
from threespo_plugins.verl_engine.critic import ValueFunction
from threespo_plugins.verl_engine.groups import Workers
from threespo_plugins.verl_engine.losses import PolicyGradientLoss, SlopeLoss
from threespo_plugins.verl_engine.policy import RemotePolicy
from threespo_plugins.verl_engine.rows import Dealt, deal, read, tensors
from threespo_plugins.verl_engine.training import Steps, added

_NEEDED = ("response_ids", "prompt_ids")
_READER = "the verl engine"


class VerlLearner(Learner):
    """Trains the weights that the workers hold.

    Args:
        policy: shared with the rollout engine.
        workers: hold the policy.
        seed: the run's seed; the order of mini-batches comes from it and the number of the update.
        publish: gives the rollout servers the present weights under the policy's version; called after loading a checkpoint.
        before_update: called before weights move.
    """

    def __init__(
        self, policy: RemotePolicy, workers: Workers, seed: int, publish: Callable[[], None] = lambda: None, before_update: Callable[[], None] = lambda: None
    ) -> None:
        self._policy, self._workers, self._publish, self._before_update = policy, workers, publish, before_update
        self._streams = Streams(seed)
        self._steps = Steps(workers)
        self._critic: ValueFunction | None = None
        self._refreshed = False
        self._updates = 0
        self._verified = False

    def score(self, turns: TurnBatch, policy: str = "actor") -> np.ndarray:
        """See :meth:`Learner.score`; float64. ``reference`` is the model as the run found it, or as it was when last refreshed."""
        if policy not in ("actor", "reference"):
            raise UsageError(f"policy {policy!r} is unknown", fix="actor or reference")
        turns.require(_NEEDED, _READER)
        return self._score(turns, np.flatnonzero(turns.real), policy)

    def update(self, turns: TurnBatch, credit: Credit, objective: Objective, optimization: Optimization) -> dict[str, float]:
        """See :meth:`Learner.update`. A batch with some mini-batches already stepped is taken back whole if a later one fails."""
        turns.require((*_NEEDED, "old_log_probs"), _READER)
        checks.check_versions(turns, self._policy.version, self._policy.config.max_staleness)
        self._before_update()
        turns = selected_tokens(turns, credit)
        if isinstance(objective, Preference):
            return self._update_by_preferences(turns, credit, objective, optimization)
        return self._update_by_advantages(turns, credit, objective, optimization)

    def verify(self, turns: TurnBatch) -> None:
        """See :meth:`Learner.verify`."""
        checks.check_versions(turns, self._policy.version, self._policy.config.max_staleness)
        self._compare(turns, np.flatnonzero(turns.real))

    def refresh_reference(self) -> None:
        """See :meth:`Learner.refresh_reference`."""
        self._workers.all("refresh_reference")
        self._refreshed = True

    def add_critic(self, critic: ValueFunction) -> None:
        """The value function, made of workers of its own."""
        self._critic = critic

    @property
    def critic(self) -> ValueFunction:
        """The value function. Raises UsageError if there is none."""
        if self._critic is None:
            raise UsageError("there is no critic", fix="call engine.prepare(frozenset({'critic'})) first, or let the algorithm name it in needs")
        return self._critic

    def values(self, turns: TurnBatch) -> np.ndarray:
        """See :meth:`Learner.values`."""
        return self.critic.values(turns)

    def prompt_values(self, prompts: Sequence[np.ndarray]) -> np.ndarray:
        """See :meth:`Learner.prompt_values`."""
        return self.critic.prompt_values(prompts)

    def update_critic(self, turns: TurnBatch, credit: Credit, critic: Critic) -> dict[str, float]:
        """See :meth:`Learner.update_critic`."""
        self._before_update()
        return self.critic.update(turns, credit, critic)

    def save(self, folder: Path) -> None:
        """See :meth:`Learner.save`: verl's shards, one a rank, and beside them configuration and tokenizer as verl's merger reads them."""
        state = {"version": self._policy.version, "unpublished": self._policy.unpublished, "updates": self._updates, "refreshed": self._refreshed}
        checkpoint.save(folder, checkpoint.ACTOR, self._workers, self._policy, state)
        if self._critic is not None:
            self._critic.save(folder)

    def load(self, folder: Path) -> None:
        """See :meth:`Learner.load`."""
        state = checkpoint.load(folder, checkpoint.ACTOR, self._workers, self._refreshed)
        self._refreshed = bool(state["refreshed"])
        if self._critic is not None:
            self._critic.load(folder)
        self._policy.version, self._policy.unpublished = int(state["version"]), bool(state["unpublished"])
        self._updates = int(state["updates"])
        self._publish()

    def export(self, folder: Path) -> None:
        """See :meth:`Learner.export`; LoRA adapters are merged."""
        self._workers.all("export", str(folder))
        self._policy.tokenizer.save_pretrained(folder)

    def _update_by_advantages(self, turns: TurnBatch, credit: Credit, objective: PolicyGradient, optimization: Optimization) -> dict[str, float]:
        rows = selected_rows(turns, credit, objective)
        metrics = {"rows": float(len(rows)), "tokens": float(turns.response_mask[rows].sum()), "optimizer_steps": 0.0}
        if not len(rows):
            return metrics
        checks.check_finite("advantages", credit.advantages, turns.response_mask, rows)
        checks.check_finite("old_log_probs", turns.old_log_probs, turns.response_mask, rows)
        columns = {"old_log_probs": turns.old_log_probs, "advantages": credit.advantages}
        if objective.rollout_ratio_cap is not None:
            turns.require(("rollout_log_probs",), "objective.rollout_ratio_cap")
            checks.check_finite("rollout_log_probs", turns.rollout_log_probs, turns.response_mask, rows)
            columns["rollout"] = turns.rollout_log_probs
        if objective.kl_coef > 0:
            columns["reference"] = self._reference_log_probs(turns, rows)
        self._verify(turns, rows)
        if nothing_moves(rows, credit, turns, objective):
            return metrics

        def backward(number: int, batch: np.ndarray) -> tuple[Any, TensorDict]:
            own = columns | {"weights": mini_batch_weights(turns, credit, objective, batch)}
            if objective.loss in ("clip_cov", "kl_cov"):
                own["large_covariance"] = mini_batch_large_covariance(turns, credit, objective, batch)
            used = compute_rows(batch, credit, turns, objective)
            used = used if len(used) else batch[:1]  # nothing moves in this mini-batch, but it is a step
            return PolicyGradientLoss(objective, gap=number == 0), self._tensors(turns, used, own, calculate_entropy=True)

        reports, norms = self._stepped(list(mini_batches(rows, optimization, self._streams, self._updates)), backward, optimization)
        metrics["optimizer_steps"] = float(len(norms))
        return metrics | _metrics(added(reports), norms, objective)

    def _update_by_preferences(self, turns: TurnBatch, credit: Credit, objective: Preference, optimization: Optimization) -> dict[str, float]:
        comparisons = preference.comparisons(credit.preferences, objective, turns)
        rows = preference.used_rows(comparisons)
        tokens = float(turns.response_mask[rows].sum())
        metrics = {"rows": float(len(rows)), "tokens": tokens, "pairs": float(len(comparisons)), "optimizer_steps": 0.0}
        if not comparisons:
            return metrics
        checks.check_finite("old_log_probs", turns.old_log_probs, turns.response_mask, rows)
        reference = self._reference_log_probs(turns, rows)
        self._verify(turns, rows)
        report, gap = preference.Report(objective.beta), checks.LogProbGap()

        def backward(number: int, batch: list[preference.Comparison]) -> tuple[Any, TensorDict]:
            used = preference.used_rows(batch)
            own = self._score(turns, used, "actor")
            if number == 0:
                mask = turns.response_mask[used]
                gap.add(own[used][mask], turns.old_log_probs[used][mask])
            slopes = preference.slopes(objective, batch, own - reference, turns.response_mask, credit.scale)
            report.add(slopes)
            weights = np.where(turns.response_mask, slopes.rows[:, None], 0.0)
            moving = np.flatnonzero(slopes.rows)
            return SlopeLoss(), self._tensors(turns, moving if len(moving) else used[:1], {"weights": weights}, calculate_entropy=False)

        batches = list(preference.mini_batches(comparisons, optimization, self._streams, self._updates))
        _, norms = self._stepped(batches, backward, optimization)
        metrics["optimizer_steps"] = float(len(norms))
        return metrics | report.metrics() | {"grad_norm": float(np.mean(norms))} | gap.metrics()

    def _stepped(self, batches: Sequence[Any], backward: Any, optimization: Optimization) -> tuple[list[dict[str, float]], list[float]]:
        answer = self._steps.run(batches, backward, optimization)
        self._updates += 1
        self._policy.unpublished = True
        return answer

    def _verify(self, turns: TurnBatch, rows: np.ndarray) -> None:
        """Require that the learner's log-probabilities are those that the sampler reported: on the first update of all rows, later of some.

        The sampler has weights of its own, and may have missed some and still report its version.
        """
        if turns.policy_version is None:
            return
        fresh = rows[turns.policy_version[rows] == self._policy.version]
        fresh = fresh[:SPOT_CHECK] if self._verified else fresh
        if len(fresh):
            self._compare(turns, fresh)
            self._verified = True

    def _compare(self, turns: TurnBatch, rows: np.ndarray) -> None:
        """Raises EngineError if the sampler's log-probabilities are not the learner's."""
        own = self._score(turns, rows, "actor")
        checks.check_log_probs(own, turns, rows, self._policy.config.log_prob_tolerance, agreed=self._verified)

    def _score(self, turns: TurnBatch, rows: np.ndarray, policy: str) -> np.ndarray:
        """(N, T) log-probabilities of the given rows, 0 elsewhere."""
        rows = rows[turns.response_mask[rows].any(axis=1)]
        if not len(rows):
            return np.zeros(turns.response_mask.shape)
        if policy == "reference":
            self._workers.all("build_reference")
        dealt = self._deal(turns, rows)
        batch = tensors(turns, dealt, {}, self._policy.config.micro_batch_tokens, compute_loss=False, calculate_entropy=False)
        answer = self._workers.rows("compute_log_prob" if policy == "actor" else "compute_ref_log_prob", batch)
        return read(answer["log_probs"], turns, dealt)

    def _reference_log_probs(self, turns: TurnBatch, rows: np.ndarray) -> np.ndarray:
        reference = turns.ref_log_probs if turns.ref_log_probs is not None else self._score(turns, rows, "reference")
        checks.check_finite("ref_log_probs", reference, turns.response_mask, rows)
        return reference

    def _tensors(self, turns: TurnBatch, rows: np.ndarray, columns: dict[str, np.ndarray], **options: object) -> TensorDict:
        return tensors(turns, self._deal(turns, rows), columns, self._policy.config.micro_batch_tokens, **options)

    def _deal(self, turns: TurnBatch, rows: np.ndarray) -> Dealt:
        lengths = np.array([len(turns.prompt_ids[row]) for row in rows]) + response_lengths(turns.response_mask[rows])
        return deal(lengths, rows, self._workers.ranks)


def _metrics(sums: dict[str, float], norms: list[float], objective: PolicyGradient) -> dict[str, float]:
    """Losses per optimiser step, the rest per token."""
    names = ("loss", "policy_loss", "kl") if objective.kl_coef > 0 else ("loss", "policy_loss")
    losses = {name: sums.get(name, 0.0) / len(norms) for name in names}
    gap = {"logprob_gap_max": sums["gap_max"], "logprob_gap_mean": sums["gap_sum"] / sums["gap_tokens"]} if sums.get("gap_tokens") else {}
    return losses | LossReport(sums, sums["ratio_max"]).means() | {"grad_norm": float(np.mean(norms))} | gap
