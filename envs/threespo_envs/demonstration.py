"""What a model is taught from: single turns, each a prompt and what to answer, whatever the environment."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from threespo_bench.contracts.environment import Message


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One turn to learn from.

    Attributes:
        messages: the prompt.
        response: what to answer.
        task_key: the task of the episode.
        turn: the number of the turn, from 0.
        wasted: what was carried out is not the expert's command.
    """

    messages: list[Message]
    response: str
    task_key: str
    turn: int
    wasted: bool


def with_thought(command: str) -> str:
    """The command in the form that the templates ``verl_agent`` ask for."""
    return f"<think>The next step is to {command}.</think><action>{command}</action>"


def episode_generator(seed: int, index: int) -> np.random.Generator:
    """The random stream of one episode of demonstrations."""
    digest = hashlib.blake2b(f"demonstrations\x1f{seed}\x1f{index}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "big")))
