"""Making household-tiny from nothing: supervised learning on demonstrations, first of an expert, then of an expert who hesitates.

The hesitation is deliberate. A model that copies a good expert well leaves reinforcement learning nothing to do; one that copies it badly
does not know the commands, and small updates break what little it knows. Taught in two stages, it knows what to do and wastes its turns.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen2ForCausalLM, Qwen2Tokenizer
from transformers.utils.logging import disable_progress_bar

from threespo_bench.errors import UsageError
from threespo_envs.alfred.vocabulary import vocabulary
from threespo_envs.household.demonstrations import demonstrations
from threespo_envs.household.environment import HouseholdConfig, HouseholdEnvironment
from threespo_plugins.models.household_tiny.architecture import make_model, make_tokenizer

Progress = Callable[[int, int, float], None]
Example = tuple[list[int], list[int]]
"""Tokens of a prompt and of the response, end mark included."""


@dataclass
class WarmStartOptions:
    """How household-tiny is made.

    Attributes:
        episodes: demonstrations of the first stage, each used once; they teach what the expert does.
        hesitant_episodes: demonstrations of the second stage; they teach to hesitate too. hesitation: how often an expert of the second stage does.
        detour: chance that a turn of a demonstration goes astray. expert: ``searcher`` or ``oracle``.
        max_turns: length limit of a demonstration.
        batch_turns: turns per optimiser step. learning_rate: peak of a linear warm-up and cosine decay.
        prompt_weight: weight of the loss on the tokens of the prompt, beside that on the response. A prompt repeats the names of things and places,
            so predicting it teaches to copy names exactly, from twenty times as many tokens.
        hidden, layers, heads, intermediate: the size of the model.
        threads: torch threads; another number can change the last bits of the weights.
    """

    episodes: int = 7500
    hesitant_episodes: int = 1500
    detour: float = 0.25
    hesitation: float = 0.6
    expert: str = "searcher"
    max_turns: int = 30
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
        if not 0 <= self.detour <= 1:
            raise UsageError(f"detour={self.detour} is out of range: must be in [0, 1]")
        for name in ("episodes", "hesitant_episodes", "max_turns", "batch_turns", "hidden", "layers", "heads", "intermediate", "threads"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)} is out of range: must be >= 1")
        if self.prompt_weight < 0:
            raise UsageError(f"prompt_weight={self.prompt_weight} is out of range: must be >= 0")
        if self.hidden % self.heads or (self.hidden // self.heads) < 32:
            raise UsageError(f"hidden={self.hidden} with heads={self.heads} gives no head size of 32 or more, which inference engines need")


def warm_start(out: Path, seed: int = 0, options: WarmStartOptions | None = None, progress: Progress = lambda *_: None) -> Path:
    """Make the model and write it to ``out`` as a Hugging Face folder. Equal arguments give equal weights on equal hardware.

    Args:
        progress: called with (optimiser steps made, steps in all, loss) after every step.
    """
    options = options or WarmStartOptions()
    options.validate()
    torch.set_num_threads(options.threads)
    tokenizer = make_tokenizer(vocabulary())
    model = make_model(tokenizer, options.hidden, options.layers, options.heads, options.intermediate, seed)
    stages = [encode(tokenizer, options, seed, hesitant) for hesitant in (False, True)]
    train(model, stages, options, seed, tokenizer.pad_token_id, progress)
    return save(model, tokenizer, out)


def encode(tokenizer: Qwen2Tokenizer, options: WarmStartOptions, seed: int, hesitant: bool) -> list[Example]:
    """All turns of one stage's demonstrations as tokens."""
    environment = HouseholdEnvironment(HouseholdConfig())
    count, hesitation = (options.hesitant_episodes, options.hesitation) if hesitant else (options.episodes, 0.0)
    turns = demonstrations(environment, count, 2 * seed + hesitant, options.detour, options.max_turns, hesitation, options.expert)
    examples: list[Example] = []
    while chunk := list(islice(turns, 1024)):
        prompts = [tokenizer.apply_chat_template(turn.messages, add_generation_prompt=True, tokenize=False) for turn in chunk]
        responses = [f" {turn.response}{tokenizer.eos_token}" for turn in chunk]
        examples += zip(tokenizer(prompts)["input_ids"], tokenizer(responses)["input_ids"], strict=True)
    return examples


def train(model: Qwen2ForCausalLM, stages: list[list[Example]], options: WarmStartOptions, seed: int, pad: int, progress: Progress) -> None:
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
