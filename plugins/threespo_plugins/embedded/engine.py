"""The embedded engine. Importing this module does not import torch; constructing the engine does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

from threespo_bench.contracts.engine import Engine
from threespo_bench.errors import DataError
from threespo_plugins.embedded.config import EmbeddedConfig


class EmbeddedEngine(Engine):
    """Rollout and learning with torch and transformers in this process.

    On the CPU equal runs are equal bit for bit, at the same number of threads; on a GPU they are not.
    """

    Config: ClassVar[type] = EmbeddedConfig
    capabilities: ClassVar[frozenset[str]] = frozenset({"reference", "preference", "critic", "value_tokens", "embeddings", "prefix"})
    deterministic: ClassVar[bool] = True

    def __init__(self, config: EmbeddedConfig, model: str, seed: int) -> None:
        config.validate()
        super().__init__(config, model, seed)
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a folder is all that is ever read; nothing may wait for a network
        try:
            import torch
            import transformers  # noqa: F401
        except ImportError as error:
            raise DataError(f"the embedded engine needs torch and transformers: {error}", fix="pip install torch transformers") from error
        from threespo_plugins.embedded.learner import EmbeddedLearner
        from threespo_plugins.embedded.policy import Policy
        from threespo_plugins.embedded.rollout import EmbeddedRollout

        torch.set_num_threads(config.threads)
        self._policy = Policy(Path(model).expanduser(), config)
        self.deterministic = self._policy.device.type == "cpu"  # type: ignore[misc]
        self.rollout = EmbeddedRollout(self._policy)
        self.learner = EmbeddedLearner(self._policy, seed)

    def prepare(self, needs: frozenset[str]) -> None:
        """See :meth:`Engine.prepare`. The critic takes memory, and value tokens change log-probabilities, so both are made on demand only."""
        if "value_tokens" in needs:
            import torch

            from threespo_plugins.embedded.value_tokens import reserved_ids

            self._policy.value_tokens = torch.tensor(reserved_ids(self._policy, self.config.value_tokens), device=self._policy.device)
        if "critic" in needs:
            self.learner.add_critic()

    def publish(self) -> int:
        """See :meth:`Engine.publish`. The module is shared, so nothing is copied."""
        return self._policy.publish()

    def digest(self) -> str:
        """See :meth:`Engine.digest`."""
        from threespo_plugins.embedded.policy import weights_digest

        return weights_digest(self._policy.model)
