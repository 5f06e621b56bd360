"""Options of ``rollout=sglang``."""

from __future__ import annotations

from dataclasses import dataclass

from threespo_bench.contracts.rollout import require
from threespo_plugins.serving.config import ServerOptions


@dataclass
class SglangConfig(ServerOptions):
    """Options of SGLang, which always is a server in a process of its own. Where ``url`` is not given, one is started and stopped at the end.

    Attributes:
        python: the interpreter of an environment that has SGLang; null takes the one of this run.
        kv_cache_tokens: on the CPU, tokens whose keys and values are kept.
        attention_backend: on a GPU, one of SGLang's that can repeat a response; null lets SGLang choose. Not each of them reuses prefixes.
    """

    kv_cache_tokens: int = 65536
    attention_backend: str | None = None

    def validate(self) -> None:
        """Raises UsageError naming the key for a value out of range."""
        super().validate()
        require(self.kv_cache_tokens >= 1, "kv_cache_tokens", self.kv_cache_tokens, ">= 1")
