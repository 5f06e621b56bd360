"""What this process knows of the policy: its tokenizer, its limits and its version. The weights are elsewhere."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from transformers import AutoConfig, GenerationConfig

from threespo_bench.errors import DataError
from threespo_plugins.embedded.loading import context_limit, load_tokenizer, stop_ids
from threespo_plugins.verl_engine.config import VerlConfig


class RemotePolicy:
    """A policy that workers hold.

    Attributes:
        folder: of the starting weights. config: the engine's options.
        tokenizer: as loaded.
        limit: tokens of prompt and response together.
        stops: ids that end a response.
        version: number of the published weights.
        unpublished: the weights moved since they were published.
    """

    def __init__(self, folder: Path, config: VerlConfig) -> None:
        self.folder, self.config = folder, config
        self.tokenizer = load_tokenizer(folder)
        described = describe(folder)
        self.limit = context_limit(described, config.max_context)
        self.stops = stop_ids(described, self.tokenizer)
        self.version = 0
        self.unpublished = False
        embeddings = described.config.get_text_config().vocab_size
        if len(self.tokenizer) > embeddings:
            raise DataError(
                f"the tokenizer in {folder} has {len(self.tokenizer)} tokens, but the model embeds {embeddings}",
                fix="give the model the tokenizer that it was trained with",
            )


def describe(folder: Path) -> SimpleNamespace:
    """The ``config`` and ``generation_config`` of a model folder, without its weights. Raises DataError if they cannot be read."""
    if not (folder / "config.json").is_file():
        raise DataError(f"model folder {folder} has no config.json", fix="give the folder that save_pretrained wrote")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        has = (folder / "generation_config.json").is_file()
        generation = GenerationConfig.from_pretrained(folder, local_files_only=True) if has else GenerationConfig.from_model_config(config)
    except (ValueError, OSError, KeyError) as error:
        raise DataError(f"model folder {folder} cannot be used: {str(error).splitlines()[0]}") from error
    return SimpleNamespace(config=config, generation_config=generation)
