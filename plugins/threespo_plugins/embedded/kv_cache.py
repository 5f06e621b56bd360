"""Keys and values of a batch of growing sequences, in buffers allocated once.

transformers' DynamicCache copies everything it holds for every new token. Here the prompts are read in blocks, gathered into one buffer
with room for the responses, and every further token is written into its column.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers.cache_utils import Cache, DynamicLayer


class BufferLayer(DynamicLayer):
    """One layer. ``keys`` and ``values`` are (B, heads, columns, size) views of what is in use."""

    def __init__(self) -> None:
        super().__init__()
        self._buffers: tuple[torch.Tensor, torch.Tensor] | None = None  # None while the prompts are read

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object) -> tuple[torch.Tensor, torch.Tensor]:
        """Append new columns; returns all that are in use. Before :meth:`gather` there is one write, the prompts."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        used = self.get_seq_length()
        if self._buffers is None:
            return self._store(key_states, value_states)
        end = used + key_states.shape[-2]
        keys, values = self._buffers
        keys[:, :, used:end] = key_states
        values[:, :, used:end] = value_states
        return self._store(keys[:, :, :end], values[:, :, :end])

    def gather(self, blocks: Sequence[BufferLayer], rows: Sequence[torch.Tensor], room: int) -> None:
        """Take over the given ``rows`` of each block, one block after the other, with room for ``room`` more columns."""
        self.lazy_initialization(*blocks[0].in_use())
        columns = max(block.get_seq_length() for block in blocks)
        keys, values = (_gather(parts, rows, columns, room) for parts in zip(*(block.in_use() for block in blocks), strict=True))
        self._buffers = (keys, values)
        self._store(keys[:, :, :columns], values[:, :, :columns])

    def in_use(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of all columns in use."""
        assert self.keys is not None and self.values is not None
        return self.keys, self.values

    def keep(self, rows: torch.Tensor) -> None:
        """Drop all other rows."""
        used = self.get_seq_length()
        assert self._buffers is not None
        keys, values = (buffer[rows] for buffer in self._buffers)
        self._buffers = (keys, values)
        self._store(keys[:, :, :used], values[:, :, :used])

    def _store(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys, self.values = keys, values
        return keys, values


class BufferCache(Cache):
    """A cache of :class:`BufferLayer` for a model of ``layers`` layers."""

    def __init__(self, layers: int) -> None:
        self._own = [BufferLayer() for _ in range(layers)]
        super().__init__(layers=list(self._own))

    @staticmethod
    def gather(blocks: Sequence[BufferCache], rows: Sequence[torch.Tensor], room: int) -> BufferCache:
        """One cache of the given rows of each block (a row may be taken more than once), with room for ``room`` more columns."""
        cache = BufferCache(len(blocks[0]._own))
        for i, layer in enumerate(cache._own):
            layer.gather([block._own[i] for block in blocks], rows, room)
        return cache

    def keep(self, rows: torch.Tensor) -> None:
        """Drop all other rows."""
        for layer in self._own:
            layer.keep(rows)


def _gather(parts: Sequence[torch.Tensor], rows: Sequence[torch.Tensor], columns: int, room: int) -> torch.Tensor:
    first = parts[0]
    buffer = first.new_empty(sum(len(taken) for taken in rows), first.shape[1], columns + room, first.shape[3])
    start = 0
    for part, taken in zip(parts, rows, strict=True):
        here = buffer[start : start + len(taken)]
        whole = len(taken) == len(part)  # rows are taken in order and each at least once, so these are all of them as they are
        here[:, :, : part.shape[2]] = part if whole else part[taken]
        here[:, :, part.shape[2] : columns] = 0.0  # hidden by a mask, but 0 * NaN would be NaN
        start += len(taken)
    return buffer
