"""The learner's tensors in the form in which vLLM has to get them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from threespo_bench.contracts.rollout import Weights
from threespo_plugins.model_folder import read_config

_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
_OUTPUT = "lm_head.weight"


def for_vllm(weights: Weights, folder: Path) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of the model in ``folder``; the output layer is among them even where it is the embedding.

    On the CPU vLLM keeps a packed copy of a tied output layer, which new weights of the embedding alone would leave as it is.
    """
    embedding, named = None, False
    for name, tensor in weights.tensors():
        if name.endswith(_EMBEDDINGS):
            embedding = tensor
        named = named or name == _OUTPUT
        yield name, tensor
    if _tied(folder) and embedding is not None and not named:
        yield _OUTPUT, embedding


def _tied(folder: Path) -> bool:
    config = read_config(folder)
    return bool(config.get("tie_word_embeddings", (config.get("text_config") or {}).get("tie_word_embeddings", True)))  # transformers' default
