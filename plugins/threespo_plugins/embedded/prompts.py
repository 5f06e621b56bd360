"""Chat messages to token ids: the tokenizer's own chat template, without the overhead of a call per prompt."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase

from threespo_bench.contracts.environment import Message


class PromptEncoder:
    """Renders and encodes chat prompts; equal prompts of one call are rendered once.

    Args:
        tokenizer: a fast tokenizer with a chat template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_padding()
        self._backend.no_truncation()

    def encode(self, prompts: Sequence[list[Message]]) -> list[np.ndarray]:
        """int32 vectors, one per prompt; equal prompts share one vector object."""
        keys = [tuple((message["role"], message["content"]) for message in prompt) for prompt in prompts]
        unique = dict(zip(keys, prompts, strict=True))
        texts = [self._tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False) for prompt in unique.values()]
        # The template writes the special tokens itself, so none is added here.
        encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        ids = {key: np.array(encoding.ids, np.int32) for key, encoding in zip(unique, encodings, strict=True)}
        return [ids[key] for key in keys]

    def encode_response(self, messages: list[Message], response: str) -> np.ndarray:
        """int32 tokens of an assistant's answer with the end mark, as the template writes it behind the prompt."""
        prompt = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        answer: Message = {"role": "assistant", "content": response}
        whole = self._tokenizer.apply_chat_template([*messages, answer], tokenize=False)
        end = self._tokenizer.eos_token
        written = whole[len(prompt) :].split(end)[0] if whole.startswith(prompt) else response
        gap = written.removesuffix(response)
        if gap.isspace() and response.startswith(gap):  # generated text has the space that the template writes already
            written = response
        return np.array(self._backend.encode(written + end, add_special_tokens=False).ids, np.int32)
