"""Does an engine do what it declares to be capable of?"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from threespo_bench.contracts.algorithm import Credit, Item, Preferences
from threespo_bench.contracts.engine import Engine
from threespo_bench.contracts.objective import Critic, PolicyGradient, Preference, ValueTokens
from threespo_bench.errors import UsageError
from threespo_bench.testing.engines import SAMPLING, STEP, chat, credit_of, generate, largest_gap, same_tokens, turns_of

_EMPTY = np.zeros(0, np.int32)


def check_capabilities(make: Callable[[], Engine], texts: Sequence[str], tolerance: float) -> None:
    """Each declared capability on a fresh engine that was prepared for it; what is not declared is refused. Raises AssertionError."""
    bare = make()
    declared = bare.capabilities
    _check_refusals(bare, declared)
    bare.close()
    for name, check in _CHECKS.items():
        if name in declared:
            engine = make()
            engine.prepare(frozenset({name}))
            check(engine, make, texts, tolerance)
            engine.close()


def _check_refusals(engine: Engine, declared: frozenset[str]) -> None:
    learner = engine.learner
    calls = {
        "reference": learner.refresh_reference,
        "critic": lambda: learner.prompt_values([]),
        "value_tokens": lambda: learner.prompt_value_logits([]),
        "embeddings": lambda: learner.embed(["look"]),
        "prompt_embeddings": lambda: learner.embed_prompts([]),
    }
    for name, call in calls.items():
        if name not in declared:
            try:
                call()
            except UsageError:
                continue
            raise AssertionError(f"{type(engine).__name__} does {name}, but does not declare it")


def _check_reference(engine: Engine, make: Callable[[], Engine], texts: Sequence[str], tolerance: float) -> None:
    turns = turns_of(generate(engine, texts))
    start = engine.learner.score(turns)
    for _ in range(2):
        engine.learner.update(replace(turns, policy_version=None), credit_of(turns), PolicyGradient(kl_coef=0.1), STEP)  # type: ignore[arg-type]
        engine.publish()
    moved, mask = engine.learner.score(turns), turns.response_mask
    assert largest_gap(engine.learner.score(turns, "reference"), start, mask) <= tolerance, "updates moved the reference policy"
    engine.learner.refresh_reference()
    assert largest_gap(engine.learner.score(turns, "reference"), moved, mask) <= tolerance, "refresh_reference() did not take the present weights"
    other = _reloaded(engine, make, "reference")
    assert largest_gap(other.learner.score(turns, "reference"), moved, mask) <= tolerance, "the refreshed reference is not part of the checkpoint"


def _check_preference(engine: Engine, make: Callable[[], Engine], texts: Sequence[str], tolerance: float) -> None:
    answers = generate(engine, [texts[0]] * 16)
    other = next((i for i, answer in enumerate(answers) if not same_tokens(answer, answers[0])), None)
    assert other is not None, "16 seeds gave the same response: are seeds used?"
    turns = turns_of([answers[0], answers[other]])
    preferences = Preferences([Item(np.array([0]), np.ones(1))], [Item(np.array([1]), np.ones(1))])
    credit = Credit(np.zeros(turns.response_mask.shape), preferences=preferences)

    def margin() -> float:
        sums = engine.learner.score(turns).sum(axis=1)
        return float(sums[0] - sums[1])

    before = margin()
    metrics = engine.learner.update(turns, credit, Preference(), STEP)
    assert all(np.isfinite(value) for value in metrics.values()), f"a metric of an update is not finite: {metrics}"
    engine.publish()
    assert margin() > before, "an update by a preference did not make the chosen response more probable than the rejected one"


def _check_critic(engine: Engine, make: Callable[[], Engine], texts: Sequence[str], tolerance: float) -> None:
    turns = turns_of(generate(engine, texts))
    digest, mask = engine.digest(), turns.response_mask
    turns.values = engine.learner.values(turns)
    assert turns.values.shape == mask.shape, f"values have shape {turns.values.shape}, expected {mask.shape}"
    assert turns.values.dtype == np.float64, "values are not float64"
    targets = np.where([[text == texts[0]] for text in texts], 1.0, -1.0) * np.ones(mask.shape)  # equal prompts have equal targets
    credit, settings = Credit(np.zeros(mask.shape), returns=targets), Critic(learning_rate=1e-3, value_clip=None)
    losses = [engine.learner.update_critic(turns, credit, settings)["value_loss"] for _ in range(8)]
    assert losses[-1] < losses[0], f"eight updates of the critic did not bring its values nearer to their targets: {losses}"
    assert engine.digest() == digest, "updates of the critic changed the policy"
    values = engine.learner.values(turns)
    assert (values[~mask] == 0).all(), "a value under a false response mask is not 0"
    read = engine.learner.prompt_values([*turns.prompt_ids, _EMPTY])
    assert np.abs(read[:-1] - values[:, 0]).max() <= tolerance, "prompt_values() differs from the first column of values()"
    assert read[-1] == 0, "the value of an empty prompt is not 0"
    one = turns.take(np.array([1]))
    assert largest_gap(engine.learner.values(one), values[1:2], one.response_mask) <= tolerance, "the other turns of a batch changed a value"
    other = _reloaded(engine, make, "critic")
    assert largest_gap(other.learner.values(turns), values, mask) <= tolerance, "the critic is not part of the checkpoint"


def _check_value_tokens(engine: Engine, make: Callable[[], Engine], texts: Sequence[str], tolerance: float) -> None:
    turns = turns_of(generate(engine, texts))
    gap = largest_gap(engine.learner.score(turns), turns.old_log_probs, turns.response_mask)
    assert gap <= tolerance, f"with reserved tokens the learner's log-probabilities differ from the sampler's by {gap:.2e}"
    logits = engine.learner.value_logits(turns)
    assert logits.shape == (len(turns), 2), f"value logits have shape {logits.shape}, expected {(len(turns), 2)}"
    assert np.isfinite(logits).all(), "a value logit is not finite: they are read before the reserved tokens are masked"
    read = engine.learner.prompt_value_logits([*turns.prompt_ids, _EMPTY])
    assert np.abs(read[:-1] - logits[:, 0]).max() <= tolerance, "prompt_value_logits() differs from the first column of value_logits()"
    assert read[-1] == 0, "the value logit of an empty prompt is not 0"
    turns.extras |= {"value_logit": logits[:, 0], "action_value_logit": logits[:, 1]}
    targets: dict[str, Any] = {"returns": np.full(len(turns), 4.0), "action_returns": np.full(len(turns), -4.0)}
    credit, objective = Credit(np.zeros(turns.response_mask.shape), **targets), ValueTokens(value_clip=100.0)
    metrics = [engine.learner.update(replace(turns, policy_version=None), credit, objective, STEP) for _ in range(4)]  # type: ignore[arg-type]
    for name in ("value_loss", "action_value_loss"):
        assert metrics[-1][name] < metrics[0][name], f"four updates did not lower {name}: {[metric[name] for metric in metrics]}"
    engine.publish()
    moved = turns_of(generate(engine, texts))
    gap = largest_gap(engine.learner.score(moved), moved.old_log_probs, moved.response_mask)
    assert gap <= tolerance, f"after value losses the learner's log-probabilities differ from the sampler's by {gap:.2e}"


def _check_embeddings(engine: Engine, make: Callable[[], Engine], texts: Sequence[str], tolerance: float) -> None:
    _check_vectors(engine, texts, engine.learner.embed, list(texts), "embed")


def _check_prompt_embeddings(engine: Engine, make: Callable[[], Engine], texts: Sequence[str], tolerance: float) -> None:
    _check_vectors(engine, texts, engine.learner.embed_prompts, [engine.rollout.encode(chat(text)) for text in texts], "embed_prompts")


def _check_vectors(engine: Engine, texts: Sequence[str], embed: Callable[[Sequence[Any]], np.ndarray], inputs: Sequence[Any], name: str) -> None:
    together = embed(inputs)
    assert together.ndim == 2, f"{name}() gives no (texts, dimensions) array"
    assert together.dtype == np.float64, f"the vectors of {name}() are not float64"
    assert len(together) == len(inputs), f"{name}() gave {len(together)} vectors for {len(inputs)} texts"
    for i in (0, 2):
        gap = np.abs(embed([inputs[i]])[0] - together[i]).max()
        assert gap <= 1e-6, f"the other texts of a batch changed a vector by {gap:.2e}"
    assert np.abs(together[1] - together[2]).max() > 1e-3, "different texts have equal vectors"
    turns = turns_of(generate(engine, texts))
    engine.learner.update(turns, credit_of(turns), PolicyGradient(), STEP)
    assert np.array_equal(embed(inputs), together), "an update changed the vectors, which are those of the starting weights"


def _check_prefix(engine: Engine, make: Callable[[], Engine], texts: Sequence[str], tolerance: float) -> None:
    prompt, written = engine.rollout.encode(chat(texts[0])), engine.rollout.encode(chat(texts[0]), texts[2])[:-1]
    prefixes = [written[:length].tolist() for length in (1, 2, 3)]
    answers = generate(engine, [texts[0]] * 3, prefixes=prefixes)
    for answer, prefix in zip(answers, prefixes, strict=True):
        assert np.array_equal(answer.prompt_ids, [*prompt, *prefix]), "prompt_ids of a continued response are not those of prompt and prefix"
        assert len(prefix) + len(answer.token_ids) <= SAMPLING.max_new_tokens, "the length limit does not count the prefix"
    turns = turns_of(answers)
    gap = largest_gap(engine.learner.score(turns), turns.old_log_probs, turns.response_mask)
    assert gap <= tolerance, f"log-probabilities after a prefix differ from the learner's by {gap:.2e}"
    greedy = replace(SAMPLING, temperature=0.0)
    whole = generate(engine, [texts[0]], sampling=greedy)[0]
    if engine.deterministic and len(whole.token_ids) > 1:
        rest = generate(engine, [texts[0]], prefixes=[whole.token_ids[:1].tolist()], sampling=greedy)[0]
        assert np.array_equal(rest.token_ids, whole.token_ids[1:]), "the most probable response goes on otherwise from its own first token"
        assert rest.text == whole.text, f"the text of a continued response is {rest.text!r}, not that of prefix and new tokens, {whole.text!r}"


_CHECKS = {
    "reference": _check_reference,
    "preference": _check_preference,
    "critic": _check_critic,
    "value_tokens": _check_value_tokens,
    "embeddings": _check_embeddings,
    "prompt_embeddings": _check_prompt_embeddings,
    "prefix": _check_prefix,
}


def _reloaded(engine: Engine, make: Callable[[], Engine], need: str) -> Engine:
    """A fresh engine at the state of ``engine``."""
    other = make()
    other.prepare(frozenset({need}))
    with tempfile.TemporaryDirectory() as folder:
        engine.learner.save(Path(folder))
        other.learner.load(Path(folder))
    return other
