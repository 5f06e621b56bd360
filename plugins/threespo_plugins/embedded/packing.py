"""Rows of turns to the tensors of a training forward pass.

Rows with equal prompts (the children of one state, the first turns of a group) share one copy of the prompt: a **pack** is the prompt
followed by the branches of its rows, and an attention mask keeps the branches apart::

    prompt prompt prompt | a1 a2 a3 | b1 b2        positions  0 1 2 | 3 4 5 | 3 4

Only the positions that predict a token under the response mask reach the output layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from threespo_bench.turns import TurnBatch, object_column


@dataclass(frozen=True, slots=True)
class Pack:
    """One sequence: ``prompt`` (P,) int32 and the ``rows`` (indices into the turns) whose responses branch off it.

    With ``ends`` the last token of each response is part of it: it predicts nothing, but something is read behind it.
    """

    prompt: np.ndarray
    rows: tuple[int, ...]
    length: int
    ends: bool = False


@dataclass(frozen=True)
class MicroBatch:
    """Tensors of one forward pass over B packs of L positions; M tokens are predicted.

    Attributes:
        ids: (B, L) int64, padded on the right.
        positions: (B, L) int64, or None where every pack is one plain sequence.
        attention: (B, 1, L, L) bool, or None where every pack is one plain sequence: causal attention then needs no mask, since the
            padding comes after all tokens.
        predicting: (M,) int64 into the flattened (B * L) positions, the position before each predicted token.
        tokens: (M,) int64, the predicted tokens.
        row: (M,) int64, the row of the turns each belongs to. column: (M,) int64, its column there.
        ends: (2 R,) int64 flattened positions of the R rows' last prompt tokens, then of their last response tokens; None unless the packs have
            ``ends``. ends_row: (R,) int64, the rows.
    """

    ids: torch.Tensor
    positions: torch.Tensor | None
    attention: torch.Tensor | None
    predicting: torch.Tensor
    tokens: torch.Tensor
    row: np.ndarray
    column: np.ndarray
    ends: torch.Tensor | None
    ends_row: np.ndarray


def response_lengths(mask: np.ndarray) -> np.ndarray:
    """(N,) columns up to and including the last true one of an (N, T) mask; 0 for a row without any."""
    return np.max(np.where(mask, np.arange(1, mask.shape[1] + 1), 0), axis=1, initial=0)


def make_packs(turns: TurnBatch, rows: np.ndarray, share_prompts: bool) -> list[Pack]:
    """Packs of the given rows, shortest first; rows without a token under the mask are left out.

    The branches of one pack are together no longer than its prompt: attention costs the square of the length, and beyond that
    sharing no longer pays.
    """
    lengths = response_lengths(turns.response_mask)
    members: dict[object, list[int]] = {}
    for row in rows.tolist():
        if lengths[row]:
            key = np.asarray(turns.prompt_ids[row], np.int32).tobytes() if share_prompts else row
            members.setdefault(key, []).append(row)
    packs = []
    for same in members.values():
        prompt = np.asarray(turns.prompt_ids[same[0]], np.int32)
        start, length = 0, len(prompt)
        for end, row in enumerate(same):
            branch = int(lengths[row]) - 1  # the last token is predicted, but predicts nothing
            if end > start and length + branch > 2 * len(prompt):
                packs.append(Pack(prompt, tuple(same[start:end]), length))
                start, length = end, len(prompt)
            length += branch
        packs.append(Pack(prompt, tuple(same[start:]), length))
    return sorted(packs, key=lambda pack: (pack.length, pack.rows))


def with_ends(packs: Sequence[Pack]) -> list[Pack]:
    """The packs with the last token of each response, shortest first."""
    longer = [replace(pack, length=pack.length + len(pack.rows), ends=True) for pack in packs]
    return sorted(longer, key=lambda pack: (pack.length, pack.rows))


def prompts_as_turns(prompts: Sequence[np.ndarray]) -> TurnBatch:
    """Turns of M prompts with one response token each, for what is read at the end of the prompt; that of an empty prompt is masked."""
    number = len(prompts)
    return TurnBatch(
        group_id=np.zeros(number, np.int64),
        traj_id=np.arange(number),
        step_id=np.zeros(number, np.int64),
        step_reward=np.zeros(number),
        response_mask=np.array([[len(prompt) > 0] for prompt in prompts], bool).reshape(number, 1),
        response_ids=np.zeros((number, 1), np.int32),
        prompt_ids=object_column(prompts),
    )


def split(packs: Sequence[Pack], max_tokens: int) -> Iterator[list[Pack]]:
    """Consecutive packs whose padded size stays within ``max_tokens``; a longer pack stands alone."""
    part: list[Pack] = []
    for pack in packs:  # sorted by length: the newest is the longest
        if part and (len(part) + 1) * pack.length > max_tokens:
            yield part
            part = []
        part.append(pack)
    if part:
        yield part


def micro_batch(turns: TurnBatch, packs: Sequence[Pack], device: torch.device) -> MicroBatch:
    """The tensors of some packs."""
    width = max(pack.length for pack in packs)
    ids = np.full((len(packs), width), packs[0].prompt[0], np.int64)  # any real token: some models warn of pad tokens without a mask
    positions = np.zeros((len(packs), width), np.int64)  # 0 on the padding: a pack may be longer than the model has positions
    branch = np.zeros((len(packs), width), np.int64)  # 0 on the prompt, then 1, 2 ... on the branches
    lengths = response_lengths(turns.response_mask)
    predicting, rows, columns = [], [], []
    before, after, ends_row = [], [], []
    for i, pack in enumerate(packs):
        prompt = len(pack.prompt)
        ids[i, :prompt], positions[i, :prompt] = pack.prompt, np.arange(prompt)
        start = prompt
        for number, row in enumerate(pack.rows, start=1):
            inputs = int(lengths[row]) - (not pack.ends)
            span = slice(start, start + inputs)
            ids[i, span] = turns.response_ids[row, :inputs]
            positions[i, span] = prompt + np.arange(inputs)
            branch[i, span] = number
            columns.append(np.flatnonzero(turns.response_mask[row]))
            predicting.append(i * width + np.where(columns[-1] == 0, prompt - 1, start + columns[-1] - 1))
            rows.append(np.full(len(columns[-1]), row))
            start += inputs
            if pack.ends:
                before.append(i * width + prompt - 1)
                after.append(i * width + start - 1)
                ends_row.append(row)
    token_row, token_column = np.concatenate(rows), np.concatenate(columns)
    branched = any(len(pack.rows) > 1 for pack in packs)
    return MicroBatch(
        ids=torch.from_numpy(ids).to(device),
        positions=torch.from_numpy(positions).to(device) if branched else None,
        attention=branch_attention(torch.from_numpy(branch).to(device)) if branched else None,
        predicting=torch.from_numpy(np.concatenate(predicting)).to(device),
        tokens=torch.from_numpy(turns.response_ids[token_row, token_column].astype(np.int64)).to(device),
        row=token_row,
        column=token_column,
        ends=torch.tensor(before + after, device=device) if ends_row else None,
        ends_row=np.array(ends_row, np.int64),
    )


def branch_attention(branch: torch.Tensor) -> torch.Tensor:
    """(B, 1, L, L): a position sees itself, and what came before it in the prompt and in its own branch."""
    width = branch.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool, device=branch.device).tril()
    visible = (branch[:, None, :] == 0) | (branch[:, None, :] == branch[:, :, None])
    return (causal & visible)[:, None]
