"""Rows of turns to the tensors that verl's workers take, and their answers back to the rows.

A tensor row is prompt and response without any padding. The rows are dealt out to the ranks so that each has equally many of similar length; where the
number does not divide, copies of the first row whose mask is empty fill up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils

from threespo_bench.turns import TurnBatch
from threespo_plugins.embedded.packing import response_lengths


@dataclass(frozen=True)
class Dealt:
    """``rows`` (M,) of the batch in the order in which they are sent, the fillers last of all among them: ``real`` (M,) is false there."""

    rows: np.ndarray
    real: np.ndarray


def deal(lengths: np.ndarray, rows: np.ndarray, ranks: int) -> Dealt:
    """Equal parts, one after the other, for each rank: the longest rows first, to and fro.

    Args:
        lengths: (R,) tokens of each of the ``rows`` (R,).
    """
    order = np.argsort(-lengths, kind="stable")
    filled = np.concatenate([order, np.full(-len(order) % ranks, order[-1])])
    real = np.arange(len(filled)) < len(order)
    rounds = np.arange(len(filled)).reshape(-1, ranks)
    rounds[1::2] = rounds[1::2, ::-1]
    sent = rounds.T.ravel()
    return Dealt(rows[filled[sent]], real[sent])


def tensors(turns: TurnBatch, dealt: Dealt, columns: Mapping[str, np.ndarray], max_tokens: int, **options: object) -> TensorDict:
    """One batch for the workers.

    Args:
        columns: (N, T) arrays of the whole batch, sent as float64 or bool.
        max_tokens: of a micro-batch; a longer row stands alone.
        options: further entries that are no tensors.
    """
    width = turns.response_mask.shape[1]
    lengths = np.maximum(response_lengths(turns.response_mask), 1)
    prompts, responses = [], []
    for row in dealt.rows.tolist():
        prompts.append(torch.from_numpy(np.asarray(turns.prompt_ids[row], np.int64)))
        responses.append(torch.from_numpy(turns.response_ids[row, : lengths[row]].astype(np.int64)))
    sequences = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
    fields = {
        "input_ids": _nested(sequences),
        "position_ids": _nested([torch.arange(len(sequence)) for sequence in sequences]),
        "prompts": _nested(prompts),
        "responses": _nested(responses),
        "mask": torch.from_numpy(turns.response_mask[dealt.rows] & dealt.real[:, None]),
    }
    fields["loss_mask"] = fields["mask"].long()  # verl counts its tokens
    fields |= {name: torch.from_numpy(np.ascontiguousarray(column[dealt.rows])) for name, column in columns.items()}
    batch = TensorDict(fields, batch_size=len(dealt.rows))
    longest = max(len(sequence) for sequence in sequences)
    tensordict_utils.assign_non_tensor(
        batch, temperature=1.0, max_response_len=width, max_token_len_per_gpu=max(max_tokens, longest), use_dynamic_bsz=True, **options
    )
    return batch


def read(answer: torch.Tensor, turns: TurnBatch, dealt: Dealt) -> np.ndarray:
    """(N, T) float64 of a nested answer with one number a token of prompt and response; 0 where nothing was asked.

    What belongs to a token stands at the position before it, which predicts it.
    """
    out = np.zeros(turns.response_mask.shape)
    lengths = np.maximum(response_lengths(turns.response_mask), 1)
    values, ends = answer.values().double().cpu().numpy(), answer.offsets()[1:].cpu().numpy()
    for row, real, end in zip(dealt.rows.tolist(), dealt.real.tolist(), ends.tolist(), strict=True):
        if real:
            part = values[end - lengths[row] - 1 : end - 1]
            keep = turns.response_mask[row, : len(part)]
            out[row, : len(part)][keep] = part[keep]
    return out


def _nested(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged)
