"""A tiny model, and a batch of turns that it generated: several tasks, trajectories of several turns, and prompts that some rows share."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from threespo_bench.turns import TurnBatch, object_column, pad_tokens

TASKS, TRAJECTORIES, STEPS, WIDTH = 3, 4, 3, 6


def write_model(folder: Path, architecture: str = "qwen2") -> Path:
    """Random weights and a word-level tokenizer."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = 120
    if architecture == "qwen2":
        config = transformers.Qwen2Config(
            hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=vocabulary,
            max_position_embeddings=256, tie_word_embeddings=True,
        )  # fmt: skip
    else:
        config = transformers.LlamaConfig(
            hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, vocab_size=vocabulary,
            max_position_embeddings=256, tie_word_embeddings=False,
        )  # fmt: skip
    config.initializer_range, config.eos_token_id, config.pad_token_id, config.bos_token_id = 0.1, 1, 0, None
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.generation_config.eos_token_id = 1
    model.save_pretrained(folder)
    special = ["<pad>", "<eos>", "<unk>", "<user>", "<assistant>"]
    words = [*special, *(f"w{i}" for i in range(vocabulary - len(special)))]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} <eos> {% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    tokenizer.save_pretrained(folder)
    return folder


def recorded_turns(score: object, padding: int = 2, seed: int = 0) -> TurnBatch:
    """Turns of random tokens, with the log-probabilities that ``score`` gives them; the last rows are padding.

    Old log-probabilities are a little off the present ones, so that ratios are not all one and some tokens are clipped.
    """
    rng = np.random.default_rng(seed)
    number = TASKS * TRAJECTORIES * STEPS
    task, trajectory, step = (part.ravel() for part in np.meshgrid(range(TASKS), range(TRAJECTORIES), range(STEPS), indexing="ij"))
    prompts = []
    for i in range(number):
        start = np.random.default_rng(1000 + task[i]).integers(5, 120, size=4 + task[i])
        history = rng.integers(5, 120, size=3 * step[i])
        prompts.append(np.concatenate([start, history]).astype(np.int32))
    lengths = rng.integers(1, WIDTH + 1, size=number)
    ids = [rng.integers(5, 120, size=length) for length in lengths]
    reward = np.where(step == STEPS - 1, rng.integers(0, 2, size=number) * 10.0, -0.1)
    rows = np.concatenate([np.arange(number), np.zeros(padding, int)])
    turns = TurnBatch(
        group_id=task[rows],
        traj_id=(task * TRAJECTORIES + trajectory)[rows],
        step_id=step[rows],
        task_key=task[rows],
        anchor_obs=object_column([f"state {step[i]} of {task[i]}" for i in rows]),
        next_anchor_obs=object_column([f"state {step[i] + 1} of {task[i]}" for i in rows]),
        step_reward=reward[rows],
        action_valid=(rng.random(number) > 0.2)[rows],
        terminated=(step == STEPS - 1)[rows],
        truncated=np.zeros(len(rows), bool),
        success=(reward > 0)[rows],
        response_mask=pad_tokens([np.ones(length, bool) for length in lengths[rows]], WIDTH, bool),
        response_ids=pad_tokens([ids[i] for i in rows], WIDTH, np.int32),
        prompt_ids=object_column([prompts[i] for i in rows]),
        padding=np.arange(len(rows)) >= number,
    )
    noise = np.random.default_rng(seed + 1).normal(scale=0.15, size=turns.response_mask.shape)
    turns.old_log_probs = np.where(turns.response_mask, score(turns) + noise, 0.0)
    turns.rollout_log_probs = np.where(turns.response_mask, turns.old_log_probs + 0.3 * noise, 0.0)
    return turns
