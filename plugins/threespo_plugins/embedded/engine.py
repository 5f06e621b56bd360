"""The embedded engine. Importing this module does not import torch; constructing the engine does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from threespo_bench.contracts.engine import Engine
from threespo_bench.contracts.rollout import ROLLOUT_CAPABILITIES, OwnSampling, Rollout, RolloutServer, ServedModel
from threespo_bench.errors import DataError
from threespo_plugins.embedded.config import EmbeddedConfig
from threespo_plugins.model_folder import check_model_folder

if TYPE_CHECKING:
    from threespo_plugins.embedded.served import ServedRollout


class EmbeddedEngine(Engine):
    """Rollout and learning with torch and transformers in this process.

    On the CPU equal runs are equal bit for bit, at the same number of threads; on a GPU they are not.
    """

    Config: ClassVar[type] = EmbeddedConfig
    capabilities: ClassVar[frozenset[str]] = frozenset({"reference", "preference", "critic", "value_tokens", "embeddings", "prompt_embeddings", "prefix"})
    deterministic: ClassVar[bool] = True

    def __init__(self, config: EmbeddedConfig, model: str, seed: int, rollout: Rollout | None = None) -> None:
        config.validate()
        super().__init__(config, model, seed, rollout)
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
        self.learner = EmbeddedLearner(self._policy, seed)
        self._served = None
        if rollout is None or issubclass(rollout.target, OwnSampling):
            self.rollout = EmbeddedRollout(self._policy)
        else:
            self.rollout = self._served = self._start(rollout)

    @classmethod
    def works_with(cls, rollout: Rollout) -> bool:
        """See :meth:`Engine.works_with`: its own sampling, and every rollout server."""
        return issubclass(rollout.target, (OwnSampling, RolloutServer))

    @classmethod
    def check(cls, config: EmbeddedConfig, model: Path, rollout: Rollout) -> None:
        """See :meth:`Engine.check`: looks at the model's folder too."""
        check_model_folder(model)
        super().check(config, model, rollout)

    def prepare(self, needs: frozenset[str]) -> None:
        """See :meth:`Engine.prepare`. The critic takes memory, and value tokens change log-probabilities, so both are made on demand only."""
        if "value_tokens" in needs:
            import torch

            from threespo_plugins.embedded.value_tokens import reserved_ids

            self._policy.value_tokens = torch.tensor(reserved_ids(self._policy, self.config.value_tokens), device=self._policy.device)
        if "critic" in needs:
            self.learner.add_critic()

    def publish(self) -> int:
        """See :meth:`Engine.publish`. With its own sampling the module is shared, and nothing is copied."""
        version = self._policy.publish()
        if self._served is not None:
            self._served.hand_over()
        return version

    def digest(self) -> str:
        """See :meth:`Engine.digest`."""
        from threespo_plugins.embedded.policy import weights_digest

        return weights_digest(self._policy.model)

    def close(self) -> None:
        """See :meth:`Engine.close`: stops the rollout server, if there is one."""
        if self._served is not None:
            self._served.close()

    def _start(self, rollout: Rollout) -> ServedRollout:
        """Start the server that was chosen; from now on it gets every new version of the weights, a loaded checkpoint's too."""
        from threespo_plugins.embedded.served import ServedRollout

        policy = self._policy
        model = ServedModel(policy.folder, self.config.dtype, policy.device.type, policy.limit, policy.stops, self.seed, self.config.threads)
        server = rollout.target(rollout.options, model)
        try:
            server.start()
        except BaseException:  # Ctrl-C included: no process stays behind
            server.close()
            raise
        self.deterministic = self.deterministic and server.deterministic  # type: ignore[misc]
        self.capabilities = self.capabilities - (ROLLOUT_CAPABILITIES - server.capabilities)  # type: ignore[misc]
        served = ServedRollout(policy, server)
        self.learner.serve(served.hand_over)
        return served
