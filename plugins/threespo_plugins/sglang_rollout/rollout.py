"""The rollout ``sglang``: by a server that it starts, or by one that runs already. Importing this module does not import SGLang."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from threespo_bench.contracts.rollout import RolloutOptions, RolloutServer
from threespo_plugins.serving.rollout import ChosenServer
from threespo_plugins.sglang_rollout import compatibility
from threespo_plugins.sglang_rollout.config import SglangConfig


class SglangRollout(ChosenServer):
    """SGLang with the learner's weights.

    Log-probabilities are those of the raw softmax, whatever the temperature. Requests under way when weights are published are given up and asked again
    under the new ones, so that one policy made a whole response.
    """

    Config: ClassVar[type[RolloutOptions]] = SglangConfig

    @classmethod
    def check(cls, config: SglangConfig, folder: Path) -> None:
        """See :meth:`RolloutServer.check`: looks for a GPU, and asks the interpreter for versions, or the server for version, set-up and vocabulary."""
        if config.url is None:
            compatibility.check_installation(config.python)
            if not compatibility.has_gpu():
                compatibility.check_device("cpu", config.python)
        else:
            from threespo_plugins.sglang_rollout.setup import check_server

            check_server(config, folder)

    def start(self) -> None:
        """See :meth:`RolloutServer.start`."""
        if self.config.url is None:
            compatibility.check_device(self.model.device, self.config.python)
        super().start()

    def _choose(self) -> RolloutServer:
        from threespo_plugins.sglang_rollout.remote import OwnServer, RunningServer

        return OwnServer(self.config, self.model) if self.config.url is None else RunningServer(self.config, self.model)
