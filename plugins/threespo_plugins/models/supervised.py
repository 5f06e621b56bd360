"""Supervised learning of a small model from nothing: next-token prediction on the turns of demonstrations, in stages."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen2ForCausalLM, Qwen2Tokenizer
from transformers.utils.logging import disable_progress_bar

from threespo_bench.contracts.environment import Message
from threespo_bench.errors import UsageError
from threespo_plugins.models.word_level import make_model, make_tokenizer

Progress = Callable[[int, int, float], None]
Lesson = tuple[list[Message], str]
"""A prompt and what to answer."""
Example = tuple[list[int], list[int]]
"""Tokens of a prompt and of the response, end mark included."""


@dataclass
class SmallModelOptions:
    """How a small model is made, whatever it learns from.

    Attributes:
        batch_turns: turns per optimiser step. learning_rate: peak of a linear warm-up and cosine decay.
        prompt_weight: weight of the loss on the tokens of the prompt, beside that on the response. A prompt repeats the names of things,
            so predicting it teaches to copy names exactly, from twenty times as many tokens.
        hidden, layers, heads, intermediate: the size of the model.
        threads: torch threads; another number can change the last bits of the weights.
    """

    batch_turns: int = 64
    learning_rate: float = 3e-3
    prompt_weight: float = 1.0
    hidden: int = 128
    layers: int = 3
    heads: int = 4
    intermediate: int = 320
    threads: int = 1

    def validate(self) -> None:
        """Raises UsageError naming the option for a value out of range."""
        self.at_least_one("batch_turns", "hidden", "layers", "heads", "intermediate", "threads")
        if self.prompt_weight < 0:
            raise UsageError(f"prompt_weight={self.prompt_weight} is out of range: must be >= 0")
        if self.hidden % self.heads or (self.hidden // self.heads) < 32:
            raise UsageError(f"hidden={self.hidden} with heads={self.heads} gives no head size of 32 or more, which inference engines need")

    def at_least_one(self, *names: str) -> None:
        """Raises UsageError for the first of the named options that is below 1."""
        for name in names:
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)} is out of range: must be >= 1")


def make_small_model(out: Path, words: Sequence[str], stages: Sequence[Iterable[Lesson]], options: SmallModelOptions, seed: int, progress: Progress) -> Path:
    """Make a word-level model from nothing, teach it the stages one after the other, and write it to ``out``. Equal arguments give equal weights on equal
    hardware.

    Args:
        words: its vocabulary. seed: of the weights and the order of the turns.
        progress: called with (optimiser steps made, steps in all, loss) after every step.
    """
    torch.set_num_threads(options.threads)
    tokenizer = make_tokenizer(words)
    model = make_model(tokenizer, options.hidden, options.layers, options.heads, options.intermediate, seed)
    train(model, [encode(tokenizer, stage) for stage in stages], options, seed, tokenizer.pad_token_id, progress)
    return save(model, tokenizer, out)


def encode(tokenizer: Qwen2Tokenizer, lessons: Iterable[Lesson]) -> list[Example]:
    """Prompts and responses as tokens."""
    turns, examples = iter(lessons), []
    while chunk := list(islice(turns, 1024)):
        prompts = [tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False) for messages, _ in chunk]
        responses = [f" {response}{tokenizer.eos_token}" for _, response in chunk]
        examples += zip(tokenizer(prompts)["input_ids"], tokenizer(responses)["input_ids"], strict=True)
    return examples


def train(model: Qwen2ForCausalLM, stages: list[list[Example]], options: SmallModelOptions, seed: int, pad: int, progress: Progress) -> None:
    """One pass over each stage: next-token prediction, AdamW with warm-up and one cosine decay over all stages."""
    rng = np.random.Generator(np.random.PCG64(seed))
    batches = [[stage[i] for i in batch] for stage in stages for batch in _batches(stage, options.batch_turns, rng)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    warm_up = max(1, len(batches) // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / warm_up, 0.5 * (1 + np.cos(np.pi * step / len(batches))) + 0.02))
    model.train()
    for number, batch in enumerate(batches):
        loss = _loss(model, batch, pad, options.prompt_weight)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        progress(number + 1, len(batches), float(loss.detach()))
    model.eval()


def save(model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer, out: Path) -> Path:
    """Write weights and tokenizer to a fresh folder that then takes the place of ``out``."""
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    disable_progress_bar()  # a bar for one small file
    model.save_pretrained(fresh)
    tokenizer.save_pretrained(fresh)
    if out.exists():
        shutil.rmtree(out)
    os.replace(fresh, out)
    out.chmod(0o755)
    for file in out.iterdir():
        file.chmod(0o644)
    return out


def _batches(examples: list[Example], size: int, rng: np.random.Generator) -> Iterator[list[int]]:
    """Batches of turns of similar length, in random order."""
    order = rng.permutation(len(examples))
    for start in range(0, len(order), 32 * size):
        block = sorted(order[start : start + 32 * size].tolist(), key=lambda i: len(examples[i][0]))
        batches = [block[i : i + size] for i in range(0, len(block), size)]
        for place in rng.permutation(len(batches)):
            yield batches[place]


def _loss(model: Qwen2ForCausalLM, batch: list[Example], pad: int, prompt_weight: float) -> torch.Tensor:
    """Mean cross-entropy of the response tokens, plus ``prompt_weight`` times that of the prompt tokens."""
    width = max(len(prompt) + len(response) for prompt, response in batch)
    tokens = torch.full((len(batch), width), pad)
    mask = torch.zeros((len(batch), width), dtype=torch.long)
    in_response = torch.zeros((len(batch), width), dtype=torch.bool)
    for row, (prompt, response) in enumerate(batch):
        length = len(prompt) + len(response)
        tokens[row, :length] = torch.tensor(prompt + response)
        mask[row, :length] = 1
        in_response[row, len(prompt) : length] = True
    hidden = model.model(input_ids=tokens, attention_mask=mask).last_hidden_state[:, :-1]
    targets, of_response = tokens[:, 1:], in_response[:, 1:]
    of_prompt = mask[:, 1:].bool() & ~of_response

    def cross_entropy(chosen: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model.lm_head(hidden[chosen]), targets[chosen])

    loss = cross_entropy(of_response)
    return loss + prompt_weight * cross_entropy(of_prompt) if prompt_weight else loss
