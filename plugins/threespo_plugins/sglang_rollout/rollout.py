"""The rollout ``sglang``: by a server that it starts, or by one that runs already. Importing this module does not import SGLang."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from threespo_bench.contracts.rollout import Completion, RolloutOptions, RolloutServer, ServedModel, Weights
from threespo_plugins.sglang_rollout import compatibility
from threespo_plugins.sglang_rollout.config import SglangConfig


class SglangRollout(RolloutServer):
    """SGLang with the learner's weights.

    Log-probabilities are those of the raw softmax, whatever the temperature. Requests under way when weights are published are given up and asked again
    under the new ones, so that one policy made a whole response.
    """

    Config: ClassVar[type[RolloutOptions]] = SglangConfig

    def __init__(self, config: SglangConfig, model: ServedModel) -> None:
        super().__init__(config, model)
        self._inner = _inner(config, model)

    @classmethod
    def check(cls, config: SglangConfig, folder: Path) -> None:
        """See :meth:`RolloutServer.check`: asks the interpreter for versions, or the server for its version, its set-up and its vocabulary."""
        if config.url is None:
            compatibility.check_installation(config.python)
        else:
            from threespo_plugins.sglang_rollout.setup import check_server

            check_server(config, folder)

    def start(self) -> None:
        """See :meth:`RolloutServer.start`."""
        if self.config.url is None:
            compatibility.check_device(self.model.device, self.config.python)
        self._inner.start()

    async def complete(self, prompt_ids: np.ndarray, seed: int, temperature: float, max_new_tokens: int) -> Completion:
        """See :meth:`RolloutServer.complete`."""
        return await self._inner.complete(prompt_ids, seed, temperature, max_new_tokens)

    def publish(self, weights: Weights, version: int) -> None:
        """See :meth:`RolloutServer.publish`."""
        self._inner.publish(weights, version)

    def restart(self, weights: Weights, version: int) -> None:
        """See :meth:`RolloutServer.restart`."""
        self._inner.restart(weights, version)

    def close(self) -> None:
        """See :meth:`RolloutServer.close`."""
        self._inner.close()

    @property
    def processes(self) -> list[int]:
        """Ids of the processes of a server that was started here, its main process first."""
        return getattr(self._inner, "processes", [])


def _inner(config: SglangConfig, model: ServedModel) -> RolloutServer:
    from threespo_plugins.sglang_rollout.remote import OwnServer, RunningServer

    return OwnServer(config, model) if config.url is None else RunningServer(config, model)
