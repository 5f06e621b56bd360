"""Vectors of texts and prompts by the starting weights, which never move: equal ones have equal vectors throughout a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from threespo_bench.errors import EngineError
from threespo_plugins.embedded.forward import body_of
from threespo_plugins.embedded.loading import load_model
from threespo_plugins.embedded.policy import Policy


class Embedder:
    """Mean last hidden states of the starting weights.

    Computed in float64: in float32 the other texts of a batch would show in the sixth digit, and with them the order in which a run met its texts.

    Args:
        policy: tells the folder of the starting weights, the tokenizer, the device, and how the architecture is called.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._body: PreTrainedModel | None = None

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """See :meth:`Learner.embed`. Texts are tokenised as they stand, without a chat template; one without tokens has the vector 0.

        Raises:
            EngineError: a text does not fit the model's context.
        """
        encodings = self._policy.tokenizer.backend_tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return self._vectors([np.array(encoding.ids, np.int64) for encoding in encodings])

    def embed_prompts(self, prompts: Sequence[np.ndarray]) -> np.ndarray:
        """See :meth:`Learner.embed_prompts`. A prompt without tokens has the vector 0. Raises as :meth:`embed`."""
        return self._vectors([np.asarray(prompt, np.int64) for prompt in prompts])

    @torch.no_grad()
    def _vectors(self, texts: Sequence[np.ndarray]) -> np.ndarray:
        """(M, D) vectors of texts that are tokens already."""
        longest = max((len(ids) for ids in texts), default=0)
        if longest > self._policy.limit:
            raise EngineError(f"a text of {longest} tokens does not fit the model's context of {self._policy.limit} tokens")
        out = np.zeros((len(texts), self._policy.model.get_output_embeddings().weight.shape[1]))
        for part in _batches(texts, self._policy.config.micro_batch_tokens):
            out[part] = self._means([texts[i] for i in part])
        return out

    def _means(self, texts: Sequence[np.ndarray]) -> np.ndarray:
        """(B, D) means over each text's tokens. The padding comes last, so that causal attention never sees it."""
        device, lengths = self._policy.device, [len(ids) for ids in texts]
        ids = np.full((len(texts), max(lengths)), texts[0][0], np.int64)
        for row, tokens in zip(ids, texts, strict=True):
            row[: len(tokens)] = tokens
        hidden = self._policy.forward.hidden(self._frozen(), torch.from_numpy(ids).to(device), None, None)
        count = torch.tensor(lengths, device=device)[:, None]
        real = torch.arange(ids.shape[1], device=device) < count
        return (torch.where(real[..., None], hidden, 0.0).sum(dim=1) / count).cpu().numpy()

    def _frozen(self) -> PreTrainedModel:
        """Read from the model folder on first use: most algorithms never need the memory."""
        if self._body is None:
            self._body = body_of(load_model(self._policy.folder, self._policy.device)).requires_grad_(False).double()
        return self._body


def _batches(texts: Sequence[np.ndarray], max_tokens: int) -> Iterator[list[int]]:
    """Indices of the texts that have tokens, by length, in batches whose padded size stays within ``max_tokens``; a longer text stands alone."""
    part: list[int] = []
    for i in sorted((i for i, ids in enumerate(texts) if len(ids)), key=lambda i: (len(texts[i]), i)):
        if part and (len(part) + 1) * len(texts[i]) > max_tokens:
            yield part
            part = []
        part.append(i)
    if part:
        yield part
