"""Small word-level models before any training: a tokenizer with one token a word, and a Qwen2 model of any size."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tokenizers import AddedToken, pre_tokenizers
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

PAD, END, USER, ASSISTANT = "<|endoftext|>", "<|im_end|>", "<|user|>", "<|assistant|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ ('" + USER + "' if message['role'] == 'user' else '" + ASSISTANT + "') + ' ' + message['content'] }}"
    "{{ '" + END + "\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '" + ASSISTANT + "' }}{% endif %}"
)


def make_tokenizer(words: Sequence[str]) -> Qwen2Tokenizer:
    """A tokenizer with one token per word of the domain, and single bytes for everything else.

    Every library that sees ``model_type: qwen2`` builds a :class:`Qwen2Tokenizer`, whatever the folder says, so this is one: a byte-level
    vocabulary without merges, and each word, with the space before it, as an added token. Nothing is learned and nothing is unknown.
    """
    alphabet = {byte: index for index, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Qwen2Tokenizer(
        vocab=alphabet, merges=[], pad_token=PAD, eos_token=END, unk_token=PAD, extra_special_tokens=[USER, ASSISTANT],
        model_max_length=4096, padding_side="left", clean_up_tokenization_spaces=False,
    )  # fmt: skip
    tokenizer.add_tokens([AddedToken(f" {word}", normalized=False, special=False) for word in words])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_model(tokenizer: Qwen2Tokenizer, hidden: int, layers: int, heads: int, intermediate: int, seed: int) -> Qwen2ForCausalLM:
    """A Qwen2 model with random weights that depend on ``seed`` only; head size is ``hidden / heads``."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads,
        intermediate_size=intermediate, max_position_embeddings=4096, tie_word_embeddings=True, initializer_range=0.05, attention_dropout=0.0,
        pad_token_id=tokenizer.pad_token_id, bos_token_id=None, eos_token_id=tokenizer.eos_token_id, use_cache=True, rope_theta=10000.0,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).float()
