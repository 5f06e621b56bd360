"""Whether a model with one token a word knows the words of an environment. Nothing here imports a tokenizer: the folder's files say enough."""

from __future__ import annotations

import json
from pathlib import Path

from threespo_bench.contracts.environment import Environment, PromptContext, Task

_TOO_MANY = 0.5
"""The share of unknown words that no vocabulary of the environment itself has: measured 0, and 0.6 or more for that of another environment or template."""


def unknown_words(model: Path, environment: Environment, task: Task, max_turns: int) -> str:
    """A warning if most words of the first prompt are unknown to the model, whose tokenizer has a token for each word that it knows; else empty."""
    known = _words(model)
    if not known:
        return ""
    live = environment.spawn()
    try:
        prompt = environment.render(PromptContext(task, (), live.reset(task, 0), max_turns))
    finally:
        live.close()
    words = dict.fromkeys(word for message in prompt for word in message["content"].split())
    unknown = [word for word in words if word not in known]
    if len(unknown) <= _TOO_MANY * len(words):
        return ""
    return (
        f"the model in {model} has a token for each word that it knows, and {len(unknown)} of the {len(words)} words of a prompt are unknown to it"
        f" ({', '.join(unknown[:3])} ...): it was made for another environment or env.template"
    )


def _words(model: Path) -> frozenset[str]:
    """The words that a word-level tokenizer knows; empty for one that makes words of pieces, or that cannot be read."""
    try:
        tokenizer = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
        kind = tokenizer["model"]
        if kind.get("type") == "WordLevel":
            return frozenset(word.strip() for word in kind["vocab"])
        if kind.get("type") != "BPE" or kind.get("merges"):
            return frozenset()
        return frozenset(token["content"].strip() for token in tokenizer["added_tokens"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return frozenset()
