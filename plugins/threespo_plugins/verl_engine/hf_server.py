"""The rollout ``hf`` as a server of verl: a Ray actor that samples with transformers, and the part in the workers that hands it new weights.

Sampling is that of the embedded engine. Requests that arrive in close succession share forward passes; which ones do depends on the clock, so that answers
can differ in their last digits from run to run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ray
import torch
from omegaconf import DictConfig, OmegaConf
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.workers.rollout import replica as replicas
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
from verl.workers.rollout.replica import RolloutMode, RolloutReplica, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator

from threespo_bench.errors import EngineError
from threespo_plugins.verl_engine.cluster import COLOCATED, environment
from threespo_plugins.verl_engine.config import VerlConfig
from threespo_plugins.verl_engine.settings import HF_ROLLOUT

QUIET_SECONDS = 0.004
"""A batch starts once no request came for so long."""


class HFServer:
    """Holds a copy of the published weights.

    Args:
        folder: of the starting weights and the tokenizer. device: cpu or cuda. dtype, max_batch, max_context, threads: as the engine's options.
    """

    def __init__(self, folder: str, device: str, dtype: str, max_batch: int, max_context: int, threads: int) -> None:
        from threespo_plugins.embedded.config import EmbeddedConfig
        from threespo_plugins.embedded.policy import Policy

        torch.set_num_threads(threads)
        self._policy = Policy(Path(folder), EmbeddedConfig(device=device, dtype=dtype, max_batch=max_batch, max_context=max_context, threads=threads))
        self._base: dict[str, torch.Tensor] = {}
        self._version: int | None = None
        self._waiting: list[tuple[Any, asyncio.Future]] = []
        self._arrivals = 0
        self._worker: asyncio.Task | None = None

    async def generate(self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **unused: Any) -> TokenOutput:
        """Continue a prompt; ``sampling_params`` has seed, temperature and max_tokens."""
        import numpy as np

        from threespo_plugins.embedded.generation import Request

        request = Request(np.array(prompt_ids, np.int32), sampling_params["seed"], sampling_params["temperature"], sampling_params["max_tokens"])
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        self._arrivals += 1
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        answer = await future
        tokens, log_probs = answer.token_ids.tolist(), answer.log_probs.tolist()
        stop = "completed" if answer.finished else "length"
        return TokenOutput(token_ids=tokens, log_probs=log_probs, stop_reason=stop, num_preempted=0, extra_fields={"global_steps": self._version})

    async def load(self, weights: dict[str, torch.Tensor], scale: float, version: int | None) -> None:
        """Take over weights: whole ones by their names, or those of LoRA adapters, which are merged into the starting weights."""
        own = self._policy.model.state_dict()
        with torch.no_grad():
            for name, tensor in _plain(weights, scale, own, self._base, self._policy.model):
                if name not in own:
                    raise EngineError(f"the learner has a weight {name}, which the rollout server's model has not")
                own[name].copy_(tensor)
        self._version = version

    async def ready(self) -> bool:
        """The model is loaded."""
        return True

    async def _work(self) -> None:
        """Answer batch after batch until nothing waits."""
        from threespo_plugins.embedded.generation import generate

        while self._waiting:
            seen = -1
            while seen != self._arrivals:
                seen = self._arrivals
                await asyncio.sleep(QUIET_SECONDS)
            batch = sorted(self._waiting, key=lambda pair: (len(pair[0].prompt_ids), pair[0].prompt_ids.tobytes(), pair[0].seed))
            self._waiting = []
            for start in range(0, len(batch), self._policy.config.max_batch):
                part = [pair for pair in batch[start : start + self._policy.config.max_batch] if not pair[1].done()]
                if not part:
                    continue
                try:
                    answers = await asyncio.to_thread(generate, self._policy, [request for request, _ in part])
                except Exception as error:
                    for _, future in part:
                        if not future.done():
                            future.set_exception(error)
                    continue
                for (_, future), answer in zip(part, answers, strict=True):
                    if not future.done():
                        future.set_result(answer)

    async def sleep(self, *_: Any, **__: Any) -> None:
        """There is nothing to give up."""

    wake_up = abort_all_requests = resume_generation = clear_kv_cache = release_kv_cache = resume_kv_cache = start_profile = stop_profile = sleep


def _plain(
    weights: dict[str, torch.Tensor], scale: float, own: dict[str, torch.Tensor], base: dict[str, torch.Tensor], model: torch.nn.Module
) -> Iterable[Any]:
    """(name, tensor) as the plain model names them. ``base`` keeps the weights that adapters were merged into, as they were before."""
    from threespo_plugins.verl_engine.model_state import adapter_delta

    for name, tensor in weights.items():
        if ".lora_B" in name:
            continue
        if ".lora_A" not in name:
            yield name, tensor
            continue
        plain = name.removeprefix("base_model.model.").split(".lora_A")[0]
        before = base.setdefault(f"{plain}.weight", own[f"{plain}.weight"].clone())
        delta = adapter_delta(tensor, weights[name.replace(".lora_A", ".lora_B")], scale, model.get_submodule(plain))
        yield f"{plain}.weight", before + delta.to(before.device)


def configure(whole: DictConfig, engine: str, config: VerlConfig, model: Path) -> None:
    """Tell the replicas what verl's own configuration has no words for, where it leaves room for that."""
    custom = {"engine": engine, "folder": str(model), "device": config.device, "threads": config.threads, "environment": environment(config)}
    OmegaConf.update(whole, "actor_rollout_ref.rollout.custom", custom, force_add=True)


def server_name(engine: str, rank: int) -> str:
    """The name by which the workers find the server of a replica."""
    return f"threespo_hf_{engine}_{rank}"


class HFReplica(RolloutReplica):
    """Starts the server of one worker, on its node and with its device: a worker that trains, or one that only receives weights."""

    async def init_standalone(self) -> None:
        """A place and a worker of its own. verl's own way counts GPUs alone, and gives the workers of several engines the same names."""
        options = self.config.custom
        self.rollout_mode = RolloutMode.STANDALONE
        name, on_gpu = server_name(options["engine"], self.replica_rank), options["device"] == "cuda"
        self.resource_pool = RayResourcePool([1], use_gpu=on_gpu, max_colocate_count=COLOCATED, name_prefix=name)
        group = RayWorkerGroup(
            resource_pool=self.resource_pool,
            ray_cls_with_init=self.get_ray_class_with_init_args(),
            name_prefix=f"{name}_",
            use_gpu=on_gpu,
            device_name=options["device"],
            worker_env=dict(options["environment"]),
        )
        self.workers = group.workers
        await self.launch_servers()

    def get_ray_class_with_init_args(self) -> RayClassWithInitArgs:
        from threespo_plugins.verl_engine.workers import Receiver

        return RayClassWithInitArgs(cls=ray.remote(Receiver), rollout_config=self.config, model_config=self.model_config, replica_rank=self.replica_rank)

    async def launch_servers(self) -> None:
        options = self.config.custom
        worker = self.workers[0]
        node, devices = await asyncio.gather(worker.__ray_call__.remote(_node), worker.get_cuda_visible_devices.remote())
        variables = dict(options["environment"])
        if options["device"] == "cuda":
            variables |= {"CUDA_VISIBLE_DEVICES": devices, "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
        server = (
            ray.remote(HFServer)
            .options(
                name=server_name(options["engine"], self.replica_rank),
                num_cpus=0,
                max_concurrency=self.max_concurrency,
                runtime_env={"env_vars": variables},
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False),
            )
            .remote(options["folder"], options["device"], self.config.dtype, self.config.max_num_seqs, self.config.max_model_len, options["threads"])
        )
        await server.ready.remote()
        self.servers = [server]
        self._server_handle, self._server_address = server, server_name(options["engine"], self.replica_rank)


def _node(_: Any) -> str:
    return ray.get_runtime_context().get_node_id()


class HFServerAdapter(BaseRollout):
    """In a worker: hands its server the weights that verl's engine gathers, or that arrive from the workers that train."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int | None = None, **unused: Any) -> None:
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = torch.distributed.get_rank() if replica_rank is None else replica_rank
        self.is_leader_rank = True

    async def update_weights(self, weights: Any, wire_format: str = "named_tensors", **options: Any) -> None:
        """See verl. Every rank must go through all weights, since gathering one needs them all."""
        answer = gathered([pair async for pair in ensure_async_iterator(weights)], options.get("peft_config"))
        server = ray.get_actor(server_name(self.config.custom["engine"], self.replica_rank))
        await server.load.remote(*answer, options.get("global_steps"))

    async def resume(self, tags: list[str]) -> None:
        """There is nothing to resume."""

    async def release(self) -> None:
        """There is nothing to release."""


def gathered(weights: Iterable[tuple[str, torch.Tensor]], adapter: dict[str, Any] | None) -> tuple[dict[str, torch.Tensor], float]:
    """The weights as :meth:`HFServer.load` takes them, and the scale of adapters.

    Args:
        weights: as verl's engine gives them. adapter: peft's configuration, if they are those of adapters.
    """
    scale = adapter["lora_alpha"] / adapter["r"] if adapter else 1.0
    return {name: tensor.detach().float().cpu() for name, tensor in weights}, scale


def register() -> None:
    """Make the server known to verl under :data:`HF_ROLLOUT`."""
    replicas.RolloutReplicaRegistry.register(HF_ROLLOUT, lambda: HFReplica)
    _ROLLOUT_REGISTRY[HF_ROLLOUT, "async"] = f"{__name__}.{HFServerAdapter.__name__}"
