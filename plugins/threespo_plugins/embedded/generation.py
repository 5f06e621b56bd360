"""Sampling token sequences from the model, many prompts at a time, each with random numbers of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from threespo_plugins.embedded.kv_cache import BufferCache
from threespo_plugins.embedded.policy import Policy

# Prompts are read in blocks of about this many tokens: their activations then stay in the processor's cache.
BLOCK_TOKENS = {"cpu": 2048, "cuda": 65536}
# Rows that have ended are dropped once no more than this share still goes on: dropping copies the keys and values of the others.
DROP_BELOW = 0.6


@dataclass(frozen=True, slots=True)
class Request:
    """One response to generate.

    Attributes:
        prompt_ids: (P,) int32.
        seed: of the row's own random numbers; what else is in the batch has no influence on them.
        temperature: of the sampling distribution; 0 takes the most probable token.
        max_new_tokens: the length limit.
    """

    prompt_ids: np.ndarray
    seed: int
    temperature: float
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class Response:
    """(T,) int32 ``token_ids``, (T,) float32 ``log_probs`` under the untempered softmax, and whether it ``finished`` by a stop token."""

    token_ids: np.ndarray
    log_probs: np.ndarray
    finished: bool


@torch.inference_mode()
def generate(policy: Policy, requests: Sequence[Request]) -> list[Response]:
    """The responses to one batch of requests.

    Equal prompts are read once: their rows start from copies of the same keys and values.
    """
    order = _by_prompt(requests)
    responses = _generate(policy, [requests[i] for i in order])
    return [response for _, response in sorted(zip(order, responses, strict=True), key=lambda pair: pair[0])]


def _generate(policy: Policy, requests: Sequence[Request]) -> list[Response]:
    """Responses to requests that stand in the order of :func:`_by_prompt`."""
    device = policy.device
    longest = max(request.max_new_tokens for request in requests)
    sequences, logits = read_prompts(policy, [request.prompt_ids for request in requests], room=longest)
    uniform = torch.from_numpy(np.stack([_uniform(request, longest) for request in requests])).to(device)
    temperature = torch.tensor([request.temperature for request in requests], dtype=torch.float64, device=device)
    limit = np.array([request.max_new_tokens for request in requests])
    tokens = np.zeros((len(requests), longest), np.int32)
    log_probs = np.zeros((len(requests), longest), np.float32)
    length, finished = limit.copy(), np.zeros(len(requests), bool)

    row = np.arange(len(requests))  # row i of the tensors is request row[i]
    going = np.ones(len(requests), bool)  # per row of the tensors; a row that has ended may stay a while, its tokens are not read
    for step in range(longest):
        chosen, chosen_log_probs = sample(policy.allowed(logits), temperature, uniform[:, step])
        chosen_ids = chosen.cpu().numpy()
        tokens[row[going], step] = chosen_ids[going]
        log_probs[row[going], step] = chosen_log_probs.cpu().numpy()[going]
        stopped = going & np.isin(chosen_ids, policy.stops)
        finished[row[stopped]] = True
        length[row[stopped]] = step + 1
        going &= ~stopped & (limit[row] > step + 1)
        if not going.any():
            break
        if going.mean() <= DROP_BELOW:
            keep = torch.from_numpy(np.flatnonzero(going)).to(device)
            sequences.keep(keep)
            chosen, temperature, uniform, row, going = chosen[keep], temperature[keep], uniform[keep], row[going], going[going]
        logits = sequences.extend(policy, chosen)
    return [Response(tokens[i, : length[i]], log_probs[i, : length[i]], bool(finished[i])) for i in range(len(requests))]


def sample(logits: torch.Tensor, temperature: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One token per row by inversion of the tempered distribution's cumulative sum.

    Args:
        logits: (B, V).
        temperature: (B,) float64; 0 is greedy.
        uniform: (B,) float64 in [0, 1).

    Returns:
        (B,) int64 tokens and (B,) float32 log-probabilities under the untempered softmax.
    """
    log_probs = torch.log_softmax(logits.float(), dim=-1)
    greedy = temperature == 0
    heat = torch.where(greedy, 1.0, temperature)
    cumulative = torch.softmax(log_probs.double() / heat[:, None], dim=-1).cumsum(dim=-1)
    # Scaled by the sum as computed, so that rounding cannot point past the last token.
    target = uniform * cumulative[:, -1]
    token = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)
    token = torch.where(greedy, log_probs.argmax(dim=-1), token)
    return token, log_probs.gather(1, token[:, None])[:, 0]


@dataclass
class Sequences:
    """Sequences under generation: prompts padded on the right to a common column, then one column for each new token.

    Attributes:
        cache: keys and values of all columns.
        lengths: (B,) int64 tokens of each row so far; the position of its next token, whatever column that has.
        hidden: (B, columns + room) bool, true on the columns of padding.
        columns: columns in use.
    """

    cache: BufferCache
    lengths: torch.Tensor
    hidden: torch.Tensor
    columns: int

    def keep(self, rows: torch.Tensor) -> None:
        """Drop all other rows."""
        self.cache.keep(rows)
        self.lengths, self.hidden = self.lengths[rows], self.hidden[rows]

    def extend(self, policy: Policy, chosen: torch.Tensor) -> torch.Tensor:
        """Append (B,) tokens; returns the (B, V) logits of the next."""
        self.columns += 1
        mask = ~self.hidden[:, : self.columns]
        if policy.forward.takes_masks:  # a ready mask saves building one in every forward pass
            mask = policy.ready_mask(mask[:, None, None])
        positions = self.lengths.clamp(max=policy.limit - 1)  # a row that has ended, but was not dropped, must not run off the model's end
        with policy.autocast():
            logits = policy.forward.extend(policy.model, chosen[:, None], self.cache, mask, positions[:, None])
        self.lengths = self.lengths + 1
        return logits[:, -1]


def read_prompts(policy: Policy, prompts: Sequence[np.ndarray], room: int) -> tuple[Sequences, torch.Tensor]:
    """Run the model over the prompts; room for ``room`` tokens is reserved behind each.

    Args:
        prompts: shortest first, equal ones next to one another.

    Returns:
        The sequences and the (B, V) logits of each one's first new token.
    """
    caches, logits, taken = [], [], []
    for distinct, rows in _blocks(prompts, BLOCK_TOKENS[policy.device.type]):
        caches.append(BufferCache(policy.forward.layers))
        taken.append(torch.tensor(rows, device=policy.device))
        logits.append(_read_block(policy, distinct, caches[-1])[taken[-1]])
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=policy.device)
    columns = len(prompts[-1])
    column = torch.arange(columns + room, device=policy.device)
    hidden = (column >= lengths[:, None]) & (column < columns)
    return Sequences(BufferCache.gather(caches, taken, room), lengths, hidden, columns), torch.cat(logits)


def _read_block(policy: Policy, prompts: Sequence[np.ndarray], cache: BufferCache) -> torch.Tensor:
    """(B, V) logits after each prompt. The padding comes last, so that causal attention never sees it and no mask is needed."""
    width = max(len(prompt) for prompt in prompts)
    ids = np.full((len(prompts), width), prompts[0][0], np.int64)  # any real token: some models warn of pad tokens without a mask
    for row, prompt in zip(ids, prompts, strict=True):
        row[: len(prompt)] = prompt
    last = np.array([i * width + len(prompt) - 1 for i, prompt in enumerate(prompts)])
    with policy.autocast(), policy.forward.only_positions(policy.model, torch.from_numpy(last).to(policy.device)):
        return policy.forward.extend(policy.model, torch.from_numpy(ids).to(policy.device), cache, None, None)[0]


def _blocks(prompts: Sequence[np.ndarray], max_tokens: int) -> list[tuple[list[np.ndarray], list[int]]]:
    """Consecutive prompts whose padded size stays within ``max_tokens``: the different ones of each block, and for each prompt its index there."""
    blocks: list[tuple[list[np.ndarray], list[int]]] = [([], [])]
    for prompt in prompts:
        distinct, rows = blocks[-1]
        if not distinct or not np.array_equal(prompt, distinct[-1]):
            if (len(distinct) + 1) * len(prompt) > max_tokens and distinct:
                distinct, rows = [], []
                blocks.append((distinct, rows))
            distinct.append(prompt)
        rows.append(len(distinct) - 1)
    return blocks


def _by_prompt(requests: Sequence[Request]) -> list[int]:
    """The order of the requests by length of the prompt, so that little is padding, with equal prompts together."""
    first: dict[bytes, int] = {}
    place = [(len(request.prompt_ids), first.setdefault(request.prompt_ids.tobytes(), i)) for i, request in enumerate(requests)]
    return sorted(range(len(requests)), key=place.__getitem__)


def _uniform(request: Request, count: int) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(request.seed)).random(count)
