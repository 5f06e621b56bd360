"""Tiny random models of three architectures with a word-level tokenizer, written as ordinary Hugging Face folders."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from threespo_bench.contracts.algorithm import Credit
from threespo_bench.contracts.engine import Generation, Sampling
from threespo_bench.turns import TurnBatch, pad_tokens
from threespo_plugins.embedded.config import EmbeddedConfig
from threespo_plugins.embedded.engine import EmbeddedEngine

SPECIAL = ("<pad>", "<eos>", "<unk>", "<system>", "<user>", "<assistant>")
CHAT_TEMPLATE = "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} <eos> {% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    """A word-level tokenizer of the words w0, w1 ... with a chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = [*SPECIAL, *(f"w{i}" for i in range(vocabulary - len(SPECIAL)))]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", additional_special_tokens=list(SPECIAL[3:])
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)


def write_model(folder: Path, architecture: str, vocabulary: int = 400, seed: int = 0, **options: object) -> Path:
    """Random weights of ``architecture`` (qwen2, llama, gpt2) and the tokenizer, in ``folder``."""
    shape = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    if architecture == "qwen2":
        config = transformers.Qwen2Config(**shape, vocab_size=vocabulary, max_position_embeddings=1024, tie_word_embeddings=True, **options)
    elif architecture == "llama":
        config = transformers.LlamaConfig(**shape, vocab_size=vocabulary, max_position_embeddings=1024, **options)
    else:
        config = transformers.GPT2Config(n_embd=128, n_layer=2, n_head=4, vocab_size=vocabulary, **options)
    config.initializer_range = 0.08  # wide enough for log-probabilities that differ between tokens
    config.eos_token_id, config.pad_token_id, config.bos_token_id = 1, 0, None
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    write_tokenizer(folder, vocabulary)
    return folder


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folder of each tiny architecture."""
    root = tmp_path_factory.mktemp("models")
    return {name: write_model(root / name, name) for name in ("qwen2", "llama", "gpt2")}


@pytest.fixture
def make_engine(models: dict[str, Path]):
    """Builds an engine on a tiny architecture; keyword arguments are options of its configuration."""

    def make(architecture: str = "qwen2", seed: int = 0, **options: object) -> EmbeddedEngine:
        return EmbeddedEngine(EmbeddedConfig(**options), str(models[architecture]), seed)

    return make


class Bench:
    """Short ways to generate and to make batches of turns."""

    @staticmethod
    def chat(text: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": text}]

    @staticmethod
    def generate(engine: EmbeddedEngine, texts: list[str], seeds: list[int] | None = None, **sampling: object) -> list[Generation]:
        """Responses to the texts, all asked at once."""

        async def all_of_them() -> list[Generation]:
            options = Sampling(**{"temperature": 1.0, "max_new_tokens": 6} | sampling)
            return await asyncio.gather(
                *(engine.rollout.generate(Bench.chat(text), seed, options) for text, seed in zip(texts, seeds or range(len(texts)), strict=True))
            )

        return asyncio.run(all_of_them())

    @staticmethod
    def turns(generations: list[Generation], group_id: np.ndarray | None = None) -> TurnBatch:
        """One row per generation."""
        n, width = len(generations), max(len(g.token_ids) for g in generations)
        prompts = np.empty(n, object)
        prompts[:] = [g.prompt_ids for g in generations]
        return TurnBatch(
            group_id=np.zeros(n, int) if group_id is None else group_id,
            traj_id=np.arange(n),
            step_id=np.zeros(n, int),
            step_reward=np.zeros(n),
            response_mask=pad_tokens([np.ones(len(g.token_ids), bool) for g in generations], width, bool),
            response_ids=pad_tokens([g.token_ids for g in generations], width, np.int32),
            old_log_probs=pad_tokens([g.log_probs for g in generations], width, np.float64),
            policy_version=np.array([g.policy_version for g in generations]),
            prompt_ids=prompts,
        )

    @staticmethod
    def texts(count: int, seed: int = 0, longest: int = 40) -> list[str]:
        """Texts of different lengths, from one word on."""
        rng = np.random.default_rng(seed)
        return [" ".join(f"w{i}" for i in rng.integers(0, 390, size=rng.integers(1, longest + 1))) for _ in range(count)]

    @staticmethod
    def credit(turns: TurnBatch, seed: int = 0, **columns: object) -> Credit:
        """Random advantages, one per row."""
        advantages = np.random.default_rng(seed).normal(size=(len(turns), 1)) * turns.response_mask
        return Credit(advantages, **columns)


@pytest.fixture(scope="session")
def bench() -> type[Bench]:
    return Bench


@pytest.fixture(scope="session")
def short_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with 16 learned positions."""
    return write_model(tmp_path_factory.mktemp("short"), "gpt2", n_positions=16)
