"""A rollout that is one of several servers, as its options say. Importing this module imports none of them."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from threespo_bench.contracts.rollout import Completion, RolloutServer, ServedModel, Weights
from threespo_plugins.serving.config import ServerOptions


class ChosenServer(RolloutServer):
    """Hands everything on to the server that :meth:`_choose` makes."""

    def __init__(self, config: ServerOptions, model: ServedModel) -> None:
        super().__init__(config, model)
        self._inner = self._choose()
        self.gathers = self._inner.gathers

    @abstractmethod
    def _choose(self) -> RolloutServer:
        """The server that the options ask for, not yet started."""

    def start(self) -> None:
        """See :meth:`RolloutServer.start`."""
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
