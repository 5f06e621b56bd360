"""Everything of one engine that runs in other processes: workers, rollout servers, and what this process has of them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from threespo_bench.contracts.rollout import Rollout
from threespo_plugins.verl_engine import cluster
from threespo_plugins.verl_engine.config import VerlConfig


def deploy(config: VerlConfig, model: Path, seed: int, rollout: Rollout) -> Deployment:
    """Start it all. Raises EngineError if something does not come up; nothing stays behind then."""
    cluster.prepare_process(config)
    deployment = Deployment(config, model, seed, rollout)  # reads the tokenizer, which may be refused before anything starts
    cluster.connect(config)
    try:
        with cluster.quiet():
            deployment.start()
    except BaseException:  # Ctrl-C included
        deployment.close()
        raise
    return deployment


class Deployment:
    """The processes of one engine.

    Attributes:
        learner, rollout: the two parts of the engine.
    """

    def __init__(self, config: VerlConfig, model: Path, seed: int, rollout: Rollout) -> None:
        from threespo_plugins.verl_engine.policy import RemotePolicy

        self._config, self._model, self._seed, self._kind = config, model, seed, rollout
        self._name = uuid4().hex[:8]
        self._groups: list[Any] = []
        self._manager: Any = None
        self._transfer: Any = None
        self._pool: Any = None
        self._asleep = False
        self._closed = False
        self._policy = RemotePolicy(model, config)

    def start(self) -> None:
        """Workers first, then the servers, which get the starting weights as version 0."""
        import ray
        from verl.checkpoint_engine import CheckpointEngineManager
        from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool
        from verl.utils.config import omega_conf_to_dataclass
        from verl.workers.rollout.llm_server import LLMServerManager

        from threespo_plugins.verl_engine import hf_server, workers
        from threespo_plugins.verl_engine.groups import RayWorkers, worker_errors
        from threespo_plugins.verl_engine.learner import VerlLearner
        from threespo_plugins.verl_engine.rollout import VerlRollout
        from threespo_plugins.verl_engine.settings import HF_ROLLOUT, verl_config

        config = self._config
        whole = verl_config(config, self._model, self._policy.limit, self._kind)
        own = whole.actor_rollout_ref.rollout.name == HF_ROLLOUT
        if own:
            hf_server.configure(whole, self._name, config, self._model)
        cluster.wait_for_room(config)
        self._pool = RayResourcePool(
            [config.ranks] * config.nodes, use_gpu=config.device == "cuda", max_colocate_count=cluster.COLOCATED, name_prefix=f"threespo_{self._name}"
        )
        role = "actor" if config.rollout_ranks else "actor_rollout"
        made = RayClassWithInitArgs(cls=ray.remote(workers.Policy), config=whole.actor_rollout_ref, role=role, seed=self._seed)
        group = self._grouped(RayWorkers(made, self._pool, config, "policy"))
        group.start("init_model", config.start_seconds)
        with worker_errors("rollout"):
            self._manager = _apart(lambda: LLMServerManager.create(config=whole, worker_group=None if config.rollout_ranks else group.group))
            ray.get(self._manager.global_load_balancer.require_acquire_fields.remote())  # it is up
        self._policy_workers = group
        self._sleeps = config.free_rollout_memory and not own and not config.rollout_ranks
        if config.rollout_ranks:
            settings = omega_conf_to_dataclass(whole.actor_rollout_ref.rollout.checkpoint_engine)
            self._transfer = CheckpointEngineManager(config=settings, actor_wg=group.group, replicas=self._replicas())
        self.learner = VerlLearner(self._policy, group, self._seed, self._hand_over, self._sleep if self._sleeps else lambda: None)
        self.rollout = VerlRollout(self._policy, self._manager.get_client(), self._kind.name)
        self._hand_over()

    def add_critic(self) -> None:
        """Start workers that hold a value function."""
        import ray
        from verl.single_controller.ray import RayClassWithInitArgs

        from threespo_plugins.verl_engine import workers
        from threespo_plugins.verl_engine.critic import ValueFunction
        from threespo_plugins.verl_engine.groups import RayWorkers
        from threespo_plugins.verl_engine.settings import engine_settings, model_settings

        config = self._config
        model = model_settings(config, self._model, load_tokenizer=False) | {"lora_rank": 0}
        made = RayClassWithInitArgs(cls=ray.remote(workers.Value), model=model, engine=engine_settings(config))
        group = self._grouped(RayWorkers(made, self._pool, config, "critic"))
        group.start("ready", config.start_seconds)
        self.learner.add_critic(ValueFunction(self._policy, group, self._seed))

    def publish(self) -> int:
        """See :meth:`VerlEngine.publish`."""
        policy = self._policy
        policy.version += 1
        policy.unpublished = False
        self._hand_over()
        return policy.version

    def digest(self) -> str:
        """See :meth:`VerlEngine.digest`."""
        return self._policy_workers.all("digest")[0]

    def close(self) -> None:
        """End all processes, and Ray with the last engine. May be called more than once."""
        if self._closed:
            return
        self._closed = True
        import ray

        with contextlib.suppress(Exception):  # what is gone already cannot be ended
            for group in self._groups:
                group.kill()
        with contextlib.suppress(Exception):
            for server in (*(each for replica in self._replicas() for each in replica.servers), self._manager.global_load_balancer):
                ray.kill(server)
        if self._config.rollout_ranks:
            for worker in (each for replica in self._replicas() for each in replica.workers):
                with contextlib.suppress(Exception):
                    ray.kill(worker)
        with contextlib.suppress(Exception):
            for pool in (self._pool, *(replica.resource_pool for replica in self._replicas())):
                for group in pool.pgs or () if pool is not None else ():
                    ray.util.remove_placement_group(group)
        cluster.disconnect()

    def _replicas(self) -> list[Any]:
        """The rollout servers that were started."""
        return self._manager.get_replicas() if self._manager is not None else []

    def _grouped(self, group: Any) -> Any:
        self._groups.append(group)
        return group

    def _hand_over(self) -> None:
        """Give the servers the present weights under the policy's version. Colocated servers get them from the workers directly, and while they sleep."""
        if self._transfer is not None:
            from threespo_plugins.verl_engine.groups import worker_errors

            with worker_errors("rollout"):
                _apart(lambda: self._transfer.update_weights(self._policy.version))
            return
        if self._sleeps:
            self._sleep()
        self._policy_workers.all("update_weights", self._policy.version, "naive")
        self._asleep = False

    def _sleep(self) -> None:
        """Let the servers give up their memory."""
        if not self._asleep:
            for replica in self._replicas():
                _apart(lambda replica=replica: asyncio.run(replica.sleep()))
            self._asleep = True


def _apart(function: Callable[[], Any]) -> Any:
    """Run something that starts an event loop of its own, whether or not one is running here."""
    answer: list[Any] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            answer.append(function())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return answer[0]
