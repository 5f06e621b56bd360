"""Options of ``rollout=vllm``."""

from __future__ import annotations

from dataclasses import dataclass

from threespo_bench.contracts.rollout import require
from threespo_plugins.serving.config import ServerOptions


@dataclass
class VllmConfig(ServerOptions):
    """Options of vLLM. Where neither ``url`` nor ``python`` is given, vLLM works in this process and has to be installed here.

    Attributes:
        python: the interpreter of an environment that has vLLM; a server is started with it and stopped at the end.
        kv_cache_gib: on the CPU, GiB for keys and values.
        block_size: tokens that share a place in the cache; a prefix is reused in whole blocks. On the CPU a multiple of 32.
    """

    kv_cache_gib: int = 1
    block_size: int = 32

    def validate(self) -> None:
        """Raises UsageError naming the key for a value out of range."""
        super().validate()
        require(self.kv_cache_gib >= 1, "kv_cache_gib", self.kv_cache_gib, ">= 1")
        require(self.block_size >= 1, "block_size", self.block_size, ">= 1")
