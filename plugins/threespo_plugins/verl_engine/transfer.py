"""New weights to rollout servers that have ranks of their own: a checkpoint engine of verl that goes through the CPU's memory, by gloo.

verl's other ones need GPUs. In every synchronisation the first worker opens a store, all take part in a process group around it, and both are dropped
afterwards: a server that is gone is an error of the next one, not a group that waits for it.
"""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from typing import Any

import ray
import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry
from verl.utils.device import get_device_id
from verl.workers.rollout.utils import ensure_async_iterator

from threespo_plugins.verl_engine.settings import GLOO_TRANSFER

_BUCKET_BYTES = 1 << 28
"""Weights are sent together until they are so many."""
_TIMEOUT = timedelta(minutes=10)

Weights = list[tuple[str, torch.Tensor]]


@CheckpointEngineRegistry.register(GLOO_TRANSFER)
class GlooTransfer(CheckpointEngine):
    """Broadcasts weights, whole and in their own precision, from the first worker to every rank of every server.

    Args:
        bucket_size: most bytes that are sent together. is_master: this is the first worker.
    """

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self._bucket_bytes, self._is_master = min(bucket_size, _BUCKET_BYTES), is_master
        self._store: TCPStore | None = None
        self._group: ProcessGroupGloo | None = None

    def prepare(self) -> tuple[str, int] | None:
        """The first worker: where the others find its store."""
        if not self._is_master:
            return None
        host = ray.util.get_node_ip_address()
        self._store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=_TIMEOUT)
        return host, self._store.port

    @classmethod
    def build_topology(cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Any]) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """See verl. The first worker is rank 0; the other workers are no part of the group."""
        size = 1 + rollout_world_size
        actor = {"rank": [0] + [-1] * (actor_wg_world_size - 1), "size": [size] * actor_wg_world_size, "store": [metadata[0]] * actor_wg_world_size}
        rollout = {"rank": list(range(1, size)), "size": [size] * rollout_world_size, "store": [metadata[0]] * rollout_world_size}
        return actor, rollout

    def init_process_group(self, rank: int, size: int, store: tuple[str, int]) -> None:
        """Connect to the others; ``rank`` -1 has no part in it."""
        if rank < 0:
            return
        if self._store is None:
            self._store = TCPStore(*store, is_master=False, timeout=_TIMEOUT)
        self._group = ProcessGroupGloo(PrefixStore("weights", self._store), rank, size, _TIMEOUT)

    def finalize(self) -> None:
        """Drop the connections."""
        self._group = self._store = None

    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None) -> None:
        """Send all weights. Every worker must go through them, since gathering one needs all workers."""
        bucket: Weights = []
        async for name, tensor in ensure_async_iterator(weights):
            if self._group is None:
                continue
            tensor = tensor.detach().cpu().contiguous()
            if bucket and sum(each.nbytes for _, each in bucket) + tensor.nbytes > self._bucket_bytes:
                self._send(bucket)
                bucket = []
            bucket.append((name, tensor))
        if self._group is not None:
            self._send(bucket)
            self._send([])

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """(name, tensor) as they arrive, on this rank's device."""
        while bucket := self._receive():
            for name, tensor in bucket:
                yield name, tensor.to(get_device_id())

    def _send(self, bucket: Weights) -> None:
        """Sizes, then what is in the bucket, then its bytes; an empty one is the end."""
        about = pickle.dumps([(name, tensor.dtype, tensor.shape) for name, tensor in bucket])
        parts = [tensor.reshape(-1).view(torch.uint8) for _, tensor in bucket]
        data = torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)
        self._broadcast(torch.tensor([len(about), len(data)]))
        self._broadcast(torch.frombuffer(bytearray(about), dtype=torch.uint8))
        if parts:
            self._broadcast(data)

    def _receive(self) -> Weights:
        sizes = torch.empty(2, dtype=torch.int64)
        self._broadcast(sizes)
        described, data = (torch.empty(int(size), dtype=torch.uint8) for size in sizes)
        self._broadcast(described)
        about = pickle.loads(described.numpy().tobytes())
        if not about:
            return []
        self._broadcast(data)
        parts = data.split([shape.numel() * dtype.itemsize for _, dtype, shape in about])
        return [(name, part.clone().view(dtype).view(shape)) for (name, dtype, shape), part in zip(about, parts, strict=True)]

    def _broadcast(self, tensor: torch.Tensor) -> None:
        assert self._group is not None
        self._group.broadcast(tensor, 0).wait()
