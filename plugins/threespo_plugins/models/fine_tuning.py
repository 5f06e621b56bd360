"""Supervised fine-tuning of a language model on episodes of an oracle: it learns the form of the answers and what to do with things.

The oracle knows where everything is and goes straight there, so a model taught by it does not learn to search; that is left to
reinforcement learning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from threespo_bench.contracts.environment import Environment, Message, Observation, PromptContext, Task, Turn
from threespo_bench.errors import DataError, UsageError, suggest
from threespo_bench.seeding import Streams
from threespo_envs.alfred.environment import AlfredEnvironment
from threespo_envs.household.demonstrations import as_response as household_answer
from threespo_envs.household.expert import oracle_plan as household_plan
from threespo_envs.webshop.demonstrations import as_response as webshop_answer
from threespo_envs.webshop.expert import oracle_plan as webshop_plan
from threespo_plugins.embedded.forward import Forward
from threespo_plugins.embedded.loading import context_limit, load_model, load_tokenizer
from threespo_plugins.embedded.prompts import PromptEncoder
from threespo_plugins.models.supervised import Progress, save

Example = tuple[np.ndarray, np.ndarray]
"""int32 tokens of a prompt and of the response, end mark included."""
ENVIRONMENTS = ("household", "alfworld", "webshop")


@dataclass
class WarmStartOptions:
    """How a model is fine-tuned on an oracle's episodes.

    Attributes:
        env: ``household``, ``alfworld`` or ``webshop``. games: where ALFWorld's games are; null means ``$ALFWORLD_DATA``. products: file with WebShop's
            products; null means generated ones. split: whose tasks are played.
        template: the form of the prompts, ``verl_agent`` or ``compact``; play and train the model with the same (env.template=).
        episodes: tasks that the oracle plays, drawn from the split; all of it if it has fewer.
        steps: optimiser steps; null for one pass over all turns, more than a pass begins again in another order.
        max_turns: length limit of an episode.
        batch_turns: turns per optimiser step. micro_batch_tokens: padded tokens of one forward pass; bounds the memory.
        learning_rate: peak of a linear warm-up and cosine decay.
        threads: torch threads; another number can change the last bits of the weights.
    """

    env: str = "household"
    games: str | None = None
    products: str | None = None
    split: str = "train"
    template: str = "verl_agent"
    episodes: int = 64
    steps: int | None = None
    max_turns: int = 30
    batch_turns: int = 8
    micro_batch_tokens: int = 4096
    learning_rate: float = 1e-5
    threads: int = 1

    def validate(self) -> None:
        """Raises UsageError naming the option for a value out of range."""
        if self.env not in ENVIRONMENTS:
            raise UsageError(f"there is no oracle for the environment {self.env!r}", fix=suggest(self.env, ENVIRONMENTS))
        for name in ("episodes", "steps", "max_turns", "batch_turns", "micro_batch_tokens", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name}={value} is out of range: must be >= 1")
        if not self.learning_rate > 0:
            raise UsageError(f"learning_rate={self.learning_rate} is out of range: must be > 0")


def fine_tune(model: Path, out: Path, seed: int = 0, options: WarmStartOptions | None = None, progress: Progress = lambda *_: None) -> Path:
    """Fine-tune the Hugging Face folder ``model`` and write the result to ``out``.

    Args:
        seed: decides which tasks are played and the order of the turns.
        progress: called with (optimiser steps made, steps in all, loss) after every step.

    Raises:
        DataError: the model or the games cannot be read, or no turn fits the model's context.
    """
    options = options or WarmStartOptions()
    options.validate()
    torch.set_num_threads(options.threads)
    tokenizer = load_tokenizer(model)
    policy = load_model(model, torch.device("cpu"))
    environment = make_environment(options)
    tasks = environment.tasks(options.split)
    chosen = Streams(seed).generator("fine_tuning.tasks").permutation(len(tasks))[: options.episodes]
    encoder = PromptEncoder(tokenizer)
    limit = context_limit(policy, None)
    examples = []
    for place in chosen:
        for messages, response in oracle_turns(environment, tasks[place], options.max_turns):
            prompt, answer = encoder.encode([messages])[0], encoder.encode_response(messages, response)
            if len(prompt) + len(answer) <= limit:
                examples.append((prompt, answer))
    if not examples:
        raise DataError(f"no turn of the {len(chosen)} episodes fits the model's context of {limit} tokens", fix="choose template=compact or another model")
    train(policy, examples, options, seed, progress)
    return save(policy, tokenizer, out)  # type: ignore[arg-type]


def make_environment(options: WarmStartOptions) -> Environment:
    """The environment whose tasks are played."""
    if options.env == "alfworld":
        from threespo_envs.alfworld.environment import AlfworldConfig, AlfworldEnvironment

        return AlfworldEnvironment(AlfworldConfig(template=options.template, games=options.games))
    if options.env == "webshop":
        from threespo_envs.webshop.environment import WebShopConfig, WebShopEnvironment

        return WebShopEnvironment(WebShopConfig(template=options.template, products=options.products))
    from threespo_envs.household.environment import HouseholdConfig, HouseholdEnvironment

    return HouseholdEnvironment(HouseholdConfig(template=options.template))


def oracle_turns(environment: Environment, task: Task, max_turns: int) -> Iterator[tuple[list[Message], str]]:
    """Prompt and answer of every turn of the oracle's episode, until it wins, or sees that nobody can win any more."""
    live = environment.spawn()
    observation = live.reset(task, seed=0)
    history: tuple[Turn, ...] = ()
    for _ in range(max_turns):
        plan = _oracle_plan(live)
        if not plan:
            return
        yield live.render(PromptContext(task, history, observation, max_turns)), _answer(live, plan[0], observation)
        history += (Turn(observation.text, plan[0]),)
        step = live.step(plan[0])
        if step.terminated:
            return
        observation = step.observation


def _oracle_plan(live: Environment) -> list[str]:
    return household_plan(live.world) if isinstance(live, AlfredEnvironment) else webshop_plan(live.visit)  # type: ignore[attr-defined]


def _answer(live: Environment, command: str, observation: Observation) -> str:
    template = live.config.template
    return household_answer(command, template) if isinstance(live, AlfredEnvironment) else webshop_answer(command, observation, template)


def train(model: PreTrainedModel, examples: Sequence[Example], options: WarmStartOptions, seed: int, progress: Progress) -> None:
    """Next-token prediction on the responses: AdamW with warm-up and cosine decay. The model stays in evaluation mode, as it is trained later."""
    rng = Streams(seed).generator("fine_tuning.order")
    steps = options.steps or -(-len(examples) // options.batch_turns)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    warm_up = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / warm_up, 0.5 * (1 + np.cos(np.pi * step / steps)) + 0.02))
    forward = Forward(model)
    for number, batch in enumerate(islice(_batches(examples, options.batch_turns, rng), steps)):
        optimizer.zero_grad(set_to_none=True)
        loss = _accumulate(model, forward, batch, options.micro_batch_tokens)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        progress(number + 1, steps, loss)


def _batches(examples: Sequence[Example], size: int, rng: np.random.Generator) -> Iterator[list[Example]]:
    """Batches without end, every turn once in each pass."""
    while True:
        order = rng.permutation(len(examples))
        for start in range(0, len(order), size):
            yield [examples[i] for i in order[start : start + size]]


def _accumulate(model: PreTrainedModel, forward: Forward, batch: list[Example], most: int) -> float:
    """Add the gradient of the mean cross-entropy over the batch's response tokens; returns that mean."""
    tokens = sum(len(answer) for _, answer in batch)
    total = 0.0
    for part in _micro_batches(sorted(batch, key=lambda example: len(example[0]) + len(example[1])), most):
        width = max(len(prompt) + len(answer) for prompt, answer in part)
        ids = np.full((len(part), width), part[0][0][0], np.int64)  # padding comes last, where causal attention never sees it
        predicting, targets = [], []
        for row, (prompt, answer) in enumerate(part):
            ids[row, : len(prompt) + len(answer)] = np.concatenate([prompt, answer])
            predicting.append(row * width + len(prompt) - 1 + np.arange(len(answer)))
            targets.append(answer)
        with forward.only_positions(model, torch.from_numpy(np.concatenate(predicting))):
            logits = forward.score(model, torch.from_numpy(ids), None, None)[0]
        loss = torch.nn.functional.cross_entropy(logits.float(), torch.from_numpy(np.concatenate(targets)).long(), reduction="sum") / tokens
        loss.backward()
        total += float(loss.detach())
    return total


def _micro_batches(batch: list[Example], most: int) -> Iterator[list[Example]]:
    """Consecutive examples, in the order of length, whose padded size stays within ``most`` tokens."""
    part: list[Example] = []
    for example in batch:
        if part and (len(part) + 1) * (len(example[0]) + len(example[1])) > most:
            yield part
            part = []
        part.append(example)
    yield part
