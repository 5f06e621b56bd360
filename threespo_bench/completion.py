"""Columns that the learner adds to a batch before it is credited: log-probabilities, values, and vectors of observations.

Responses that no sampler of the run made have no ``old_log_probs``: they get those of the policy about to be updated, which is the present one. What
else is added follows from the algorithm's ``needs``:

* ``reference``: ``turns.ref_log_probs`` (N, T);
* ``critic``: ``turns.values`` (N, T), and ``next_value`` (N,), the value of the state after the turn where the sampler kept its prompt;
* ``value_tokens``: ``value_logit``, ``action_value_logit`` and ``next_value_logit``, (N,) each: the difference of the two reserved tokens' logits
  before the response, after it, and in the state after the turn;
* ``embeddings``: ``embedding``, (N,) vectors of the observations that the turns acted on;
* ``prompt_embeddings``: ``prompt_embedding``, (N,) vectors of the turns' prompts, which may show more than the observation: the task, what was done.
"""

from __future__ import annotations

import numpy as np

from threespo_bench.contracts.engine import Learner
from threespo_bench.turns import TurnBatch, object_column

VALUE_NEEDS = frozenset({"critic", "value_tokens"})
"""The needs that make samplers keep the prompt after a turn."""


def complete(turns: TurnBatch, needs: frozenset[str], learner: Learner) -> None:
    """Add the columns that ``needs`` call for to ``turns``, computed with the weights as they are now."""
    if turns.old_log_probs is None and turns.response_ids is not None:
        turns.old_log_probs = learner.score(turns)
    if "reference" in needs:
        turns.ref_log_probs = learner.score(turns, "reference")
    if "critic" in needs:
        turns.values = learner.values(turns)
        turns.extras["next_value"] = learner.prompt_values(_next_prompts(turns))
    if "value_tokens" in needs:
        logits = learner.value_logits(turns)
        turns.extras["value_logit"], turns.extras["action_value_logit"] = logits[:, 0], logits[:, 1]
        turns.extras["next_value_logit"] = learner.prompt_value_logits(_next_prompts(turns))
    if "embeddings" in needs:
        turns.extras["embedding"] = _embeddings(turns, learner)
    if "prompt_embeddings" in needs:
        turns.extras["prompt_embedding"] = _prompt_embeddings(turns, learner)


def _next_prompts(turns: TurnBatch) -> list[np.ndarray]:
    kept = turns.extras.get("next_prompt_ids")
    return [np.zeros(0, np.int32)] * len(turns) if kept is None else [np.asarray(prompt, np.int32) for prompt in kept]


def _embeddings(turns: TurnBatch, learner: Learner) -> np.ndarray:
    """(N,) vectors; equal texts are computed once."""
    texts = turns.extras["observation"].tolist()
    distinct = sorted(set(texts))
    vectors = dict(zip(distinct, learner.embed(distinct), strict=True))
    return object_column([vectors[text] for text in texts])


def _prompt_embeddings(turns: TurnBatch, learner: Learner) -> np.ndarray:
    """(N,) vectors; equal prompts are computed once."""
    turns.require(("prompt_ids",), "embedding prompts")
    prompts = [tuple(np.asarray(prompt).tolist()) for prompt in turns.prompt_ids]
    distinct = sorted(set(prompts))
    vectors = dict(zip(distinct, learner.embed_prompts([np.array(prompt, np.int32) for prompt in distinct]), strict=True))
    return object_column([vectors[prompt] for prompt in prompts])
