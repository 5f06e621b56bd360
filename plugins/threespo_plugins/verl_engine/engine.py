"""The engine verl. Importing this module imports neither torch nor Ray nor verl; constructing the engine does."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from threespo_bench.contracts.engine import Engine
from threespo_bench.contracts.rollout import OwnSampling, Rollout
from threespo_plugins.verl_engine import checkpoint, requirements
from threespo_plugins.verl_engine.config import VerlConfig

if TYPE_CHECKING:
    from threespo_plugins.verl_engine.deployment import Deployment

_HF = Rollout("hf", OwnSampling.Config(), OwnSampling)


class VerlEngine(Engine):
    """Rollout and learning by verl's workers: FSDP2 for policy, reference and critic, and rollout servers that get every new version of the weights.

    The loop, the environments and the algorithms stay in this process. Equal runs are not equal bit for bit: which requests share a forward pass of a
    server depends on the clock.
    """

    Config: ClassVar[type] = VerlConfig
    capabilities: ClassVar[frozenset[str]] = frozenset({"reference", "preference", "critic", "prefix"})
    deterministic: ClassVar[bool] = False

    def __init__(self, config: VerlConfig, model: str, seed: int, rollout: Rollout | None = None) -> None:
        folder = Path(model).expanduser().resolve()
        requirements.check(config, folder, rollout or _HF)
        super().__init__(config, model, seed, rollout)
        from threespo_plugins.verl_engine.deployment import deploy

        self._deployment: Deployment | None = deploy(config, folder, seed, rollout or _HF)
        self.learner, self.rollout = self._deployment.learner, self._deployment.rollout

    @classmethod
    def works_with(cls, rollout: Rollout) -> bool:
        """See :meth:`Engine.works_with`: own sampling, and the servers of vllm and sglang as verl runs them."""
        return requirements.works_with(rollout)

    @classmethod
    def check(cls, config: VerlConfig, model: Path, rollout: Rollout) -> None:
        """See :meth:`Engine.check`."""
        requirements.check(config, model, rollout)

    @classmethod
    def gpus(cls, config: VerlConfig) -> int:
        """See :meth:`Engine.gpus`: one for each rank."""
        return config.all_ranks if config.device == "cuda" else 0

    @classmethod
    def check_checkpoint(cls, config: VerlConfig, folder: Path) -> None:
        """See :meth:`Engine.check_checkpoint`: shards fit the number of ranks that wrote them only."""
        checkpoint.check_ranks(folder, checkpoint.ACTOR, config.world_size)

    def prepare(self, needs: frozenset[str]) -> None:
        """See :meth:`Engine.prepare`. A critic is a group of workers of its own, made on demand only."""
        if "critic" in needs:
            self._running.add_critic()

    def publish(self) -> int:
        """See :meth:`Engine.publish`: the workers gather the weights and hand them to every rollout server."""
        return self._running.publish()

    def digest(self) -> str:
        """See :meth:`Engine.digest`."""
        return self._running.digest()

    def close(self) -> None:
        """See :meth:`Engine.close`: ends the workers and servers, and Ray if it was started here."""
        if self._deployment is not None:
            deployment, self._deployment = self._deployment, None
            deployment.close()

    @property
    def _running(self) -> Deployment:
        if self._deployment is None:
            raise RuntimeError("the engine is closed")
        return self._deployment

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()
