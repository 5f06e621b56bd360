"""Workers without Ray: this process is one of the ranks, and all ranks run the same program."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

from threespo_bench.contracts.engine import Engine
from threespo_plugins.verl_engine.config import VerlConfig
from threespo_plugins.verl_engine.engine import VerlEngine


def prepare(rank: int = 0, ranks: int = 1, port: int = 0) -> None:
    """Make this process a rank."""
    from threespo_plugins.verl_engine.cluster import prepare_process

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port or free_port())}
    prepare_process(VerlConfig())


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class LocalWorkers:
    """Calls the worker of this rank; answers about rows are put together from all ranks."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker
        self.ranks = int(os.environ["WORLD_SIZE"])
        self.calls: list[str] = []

    def all(self, method: str, *arguments: Any) -> list[Any]:
        self.calls.append(method)
        return [getattr(self.worker, method)(*arguments)]

    def rows(self, method: str, batch: Any) -> Any:
        import torch
        from verl.utils import tensordict_utils

        self.calls.append(method)
        part = tensordict_utils.chunk_tensordict(batch, self.ranks)[int(os.environ["RANK"])] if self.ranks > 1 else batch
        answer = getattr(self.worker, method)(part)
        if self.ranks == 1:
            return answer
        answers: list[Any] = [None] * self.ranks
        torch.distributed.all_gather_object(answers, answer)
        return tensordict_utils.concat_tensordict(answers)


def policy_workers(folder: Path, seed: int = 0, **options: Any) -> tuple[Any, LocalWorkers]:
    """A policy's description and its workers."""
    from threespo_plugins.verl_engine import workers
    from threespo_plugins.verl_engine.policy import RemotePolicy
    from threespo_plugins.verl_engine.settings import verl_config

    config = VerlConfig(**options)
    policy = RemotePolicy(Path(folder), config)
    worker = workers.Policy(config=verl_config(config, Path(folder), policy.limit, None).actor_rollout_ref, role="actor", seed=seed)
    worker.init_model()
    return policy, LocalWorkers(worker)


def make_learner(folder: Path, seed: int = 0, critic: bool = False, **options: Any) -> Any:
    """A learner of the engine verl, with the workers in this process."""
    from threespo_plugins.verl_engine.learner import VerlLearner

    policy, workers = policy_workers(folder, seed, **options)
    learner = VerlLearner(policy, workers, seed)
    if critic:
        learner.add_critic(make_critic(folder, policy, seed, **options))
    return learner


def make_critic(folder: Path, policy: Any, seed: int, **options: Any) -> Any:
    from threespo_plugins.verl_engine import workers
    from threespo_plugins.verl_engine.critic import ValueFunction
    from threespo_plugins.verl_engine.settings import engine_settings, model_settings

    config = VerlConfig(**options)
    value = workers.Value(model=model_settings(config, Path(folder), False) | {"lora_rank": 0}, engine=engine_settings(config))
    return ValueFunction(policy, LocalWorkers(value), seed)


class LocalEngine(Engine):
    """The engine verl with its workers and its rollout server in this process: everything but Ray."""

    Config = VerlConfig
    capabilities = VerlEngine.capabilities

    def __init__(self, model: Path, seed: int = 0, **options: Any) -> None:
        from threespo_plugins.verl_engine.hf_server import HFServer
        from threespo_plugins.verl_engine.learner import VerlLearner
        from threespo_plugins.verl_engine.rollout import VerlRollout

        super().__init__(VerlConfig(**options), str(model), seed)
        self._options = options
        self._policy, self._workers = policy_workers(model, seed, **options)
        config = self.config
        self._server = HFServer(str(model), config.device, config.dtype, config.max_batch, self._policy.limit, config.threads)
        self.learner = VerlLearner(self._policy, self._workers, seed, self._hand_over)
        self.rollout = VerlRollout(self._policy, self, "hf")
        self._hand_over()

    async def generate(self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        """What verl's client does: hand the request to a server."""
        return await self._server.generate(prompt_ids, sampling_params, request_id)

    def prepare(self, needs: frozenset[str]) -> None:
        if "critic" in needs:
            self.learner.add_critic(make_critic(Path(self.model), self._policy, self.seed, **self._options))

    def publish(self) -> int:
        self._policy.version += 1
        self._policy.unpublished = False
        self._hand_over()
        return self._policy.version

    def digest(self) -> str:
        return self._workers.all("digest")[0]

    def _hand_over(self) -> None:
        from threespo_plugins.verl_engine.hf_server import gathered

        weights, adapter = self._workers.worker.actor.engine.get_per_tensor_param(base_sync_done=True)
        asyncio.run(self._server.load(*gathered(weights, adapter), self._policy.version))
