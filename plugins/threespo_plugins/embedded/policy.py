"""The policy: one model, its tokenizer, and the version of its weights; rollout and learner share it."""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from threespo_bench.errors import DataError, EngineError, UsageError
from threespo_plugins.embedded.config import EmbeddedConfig
from threespo_plugins.embedded.forward import Forward
from threespo_plugins.embedded.loading import context_limit, load_model, load_tokenizer, stop_ids


class Policy:
    """A causal language model on one device.

    Attributes:
        model, tokenizer: as loaded.
        forward: how the model is called.
        version: number of the published weights.
        unpublished: the weights moved since they were published.
        limit: tokens of prompt and response together.
        stops: ids that end a response.
        value_tokens: ids of the reserved tokens for a high and for a low value, (2,) int64, or None. They are never sampled, and their probability is 0.
    """

    def __init__(self, folder: Path, config: EmbeddedConfig) -> None:
        self.folder, self.config = folder, config
        self.device = _device(config)
        self.tokenizer = load_tokenizer(folder)
        self.model = load_model(folder, self.device)
        self.forward = Forward(self.model)
        self.limit = context_limit(self.model, config.max_context)
        self.stops = stop_ids(self.model, self.tokenizer)
        self.value_tokens: torch.Tensor | None = None
        self.version = 0
        self.unpublished = False
        embeddings = self.model.get_input_embeddings().num_embeddings
        if len(self.tokenizer) > embeddings:
            raise DataError(
                f"the tokenizer in {folder} has {len(self.tokenizer)} tokens, but the model embeds {embeddings}",
                fix="give the model the tokenizer that it was trained with",
            )

    def allowed(self, logits: torch.Tensor) -> torch.Tensor:
        """(..., V) logits as sampling and log-probabilities see them: renormalised without the reserved tokens."""
        return logits if self.value_tokens is None else logits.index_fill(-1, self.value_tokens, -torch.inf)

    def autocast(self) -> AbstractContextManager:
        """Computes in bfloat16 where that was asked for; the weights stay float32, so that small updates are not lost."""
        if self.config.dtype == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def ready_mask(self, visible: torch.Tensor) -> torch.Tensor:
        """A boolean attention mask in the form that attention adds to its scores, so that not every layer converts it again."""
        dtype = torch.float32 if self.config.dtype == "float32" else torch.bfloat16
        return torch.zeros_like(visible, dtype=dtype).masked_fill_(~visible, torch.finfo(dtype).min)

    def publish(self) -> int:
        """Give the present weights the next version number."""
        self.version += 1
        self.unpublished = False
        return self.version


def weights_digest(model: torch.nn.Module) -> str:
    """Digest of every parameter and buffer that is saved, in the order of their names."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _device(config: EmbeddedConfig) -> torch.device:
    if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
        if config.dtype != "float32":
            raise UsageError(f"engine.dtype={config.dtype} needs a GPU, and there is none")
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise EngineError("engine.device=cuda, but torch finds no CUDA device", fix="set engine.device=cpu, or install a CUDA build of torch")
    return torch.device("cuda")
