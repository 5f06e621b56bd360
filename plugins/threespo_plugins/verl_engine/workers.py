"""The workers: verl's own, with what our loop needs beyond its trainer. One process a rank; every method is called on all ranks."""

from __future__ import annotations

import os
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from verl.checkpoint_engine import CheckpointEngineWorker
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.trainer.config import CheckpointConfig
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.device import get_device_name
from verl.utils.distributed import initialize_global_process_group_ray
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig, TrainingWorkerConfig
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from threespo_bench.contracts.objective import Optimization
from threespo_bench.seeding import Streams
from threespo_plugins.verl_engine import hf_server, model_state
from threespo_plugins.verl_engine.training_engines import VALUE_MODEL

hf_server.register()
_DISPATCH = {"actor": make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"), "train": make_nd_compute_dataproto_dispatch_fn(mesh_name="train")}
_ALL = Dispatch.ONE_TO_ALL
_WEIGHTS_ONLY = {"save_contents": ["model"], "load_contents": ["model"]}


def _join_ranks() -> None:
    """verl asks for gloo on the CPU twice, which torch refuses, unless there is a process group already."""
    if get_device_name() == "cpu":
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        initialize_global_process_group_ray(backend="gloo")


class Trainee(TrainingWorker):
    """A model that is trained. A step happens whole or not at all, and steps can be taken back."""

    def __init__(self, config: TrainingWorkerConfig) -> None:
        _join_ranks()
        super().__init__(config)
        self._snapshot: model_state.Snapshot | None = None

    @register(dispatch_mode=_ALL)
    def use(self, optimization: Optimization) -> None:
        """The settings of the next steps."""
        self.engine.optimizer_config.clip_grad = optimization.gradient_clip
        for group in self.engine.optimizer.param_groups:
            group["lr"], group["weight_decay"] = optimization.learning_rate, optimization.weight_decay
            group["betas"] = (optimization.beta1, optimization.beta2)

    @register(dispatch_mode=_DISPATCH["train"])
    def step(self, data: TensorDict) -> TensorDict:
        """One optimiser step on one mini-batch. verl makes none if the gradient is not finite; the metrics tell."""
        return self.train_batch(data)

    @register(dispatch_mode=_DISPATCH["train"])
    def infer(self, data: TensorDict) -> TensorDict:
        """What the model says of the rows."""
        return self.infer_batch(data)

    @register(dispatch_mode=_ALL)
    def keep(self) -> None:
        """Remember weights and optimiser as they are."""
        self._snapshot = model_state.Snapshot(self.engine)

    @register(dispatch_mode=_ALL)
    def forget(self, take_back: bool) -> None:
        """Drop what was remembered; ``take_back``: put it back first."""
        if take_back and self._snapshot is not None:
            self._snapshot.restore(self.engine)
        self._snapshot = None

    @register(dispatch_mode=_ALL)
    def digest(self) -> str:
        """Of all weights, the same on every rank."""
        return model_state.digest(self.engine)


class Policy(ActorRolloutRefWorker):
    """The policy, the reference policy once it is asked for, and the part of verl's rollout that hands over new weights.

    Args:
        config: verl's, of policy, rollout and reference. role: verl's word for what is made of it. seed: of the run; adapters start at random values.
    """

    actor_worker_cls = Trainee
    ref_worker_cls = Trainee

    def __init__(self, config: Any, role: str, seed: int = 0) -> None:
        super().__init__(config=config, role=role)
        self._seed = seed
        _join_ranks()

    @register(dispatch_mode=_ALL)
    def init_model(self) -> None:
        """See verl. A run that is resumed must start from the adapters that it had."""
        torch.manual_seed(Streams(self._seed).integer("engine/adapters"))
        super().init_model()

    @register(dispatch_mode=_ALL)
    def use(self, optimization: Optimization) -> None:
        """See :meth:`Trainee.use`."""
        self.actor.use(optimization)

    @register(dispatch_mode=_DISPATCH["actor"])
    def step(self, data: TensorDict) -> TensorDict:
        """See :meth:`Trainee.step`."""
        return self.actor.step(data)

    @register(dispatch_mode=_ALL)
    def keep(self) -> None:
        """See :meth:`Trainee.keep`."""
        self.actor.keep()

    @register(dispatch_mode=_ALL)
    def forget(self, take_back: bool) -> None:
        """See :meth:`Trainee.forget`."""
        self.actor.forget(take_back)

    @register(dispatch_mode=_ALL)
    def digest(self) -> str:
        """See :meth:`Trainee.digest`."""
        return self.actor.digest()

    @register(dispatch_mode=_ALL, blocking=False)
    async def update_weights(self, global_steps: int | None = None, mode: str = "auto") -> Any:
        """See verl, which sends merged adapters in bfloat16 whatever the precision is, where servers have ranks of their own."""
        if mode != "naive" and self.actor.engine.model_config.lora_rank:
            return await self.checkpoint_engine.send_weights(model_state.served_tensors(self.actor.engine), global_steps=global_steps)
        return await super().update_weights(global_steps=global_steps, mode=mode)

    @register(dispatch_mode=_ALL)
    def process_id(self) -> int:
        """Of the worker, on its node."""
        return os.getpid()

    @register(dispatch_mode=_ALL)
    def build_reference(self) -> None:
        """Load the starting weights as the reference policy, if that was not done yet."""
        if self.ref is not None:
            return
        model = deepcopy(omega_conf_to_dataclass(self.config.model))
        object.__setattr__(model, "lora_rank", 0)
        engine = deepcopy(self.actor.engine_config)
        # On a GPU verl keeps a model that is never trained in the memory of the CPU, which it asks to be pinned; without a GPU nothing can be.
        engine.forward_only = get_device_name() != "cpu"
        config = TrainingWorkerConfig(
            model_type="language_model",
            model_config=model,
            engine_config=engine,
            optimizer_config=FSDPOptimizerConfig(lr=0.0, total_training_steps=1),
            checkpoint_config=CheckpointConfig(**_WEIGHTS_ONLY),
            profiler_config=None,
        )
        self.ref = self.ref_worker_cls(config=config)
        self.ref.reset()
        self.set_dispatch_collect(mesh_name="ref", **self.ref.get_dispatch_collect())

    @register(dispatch_mode=_ALL)
    def refresh_reference(self) -> None:
        """Make the present weights the reference policy."""
        self.build_reference()
        model_state.copy(self.actor.engine, self.ref.engine)

    @register(dispatch_mode=_ALL)
    def save_reference(self, folder: str) -> None:
        """Write the reference policy's weights, each rank its own part."""
        self.ref.save_checkpoint(folder)

    @register(dispatch_mode=_ALL)
    def load_reference(self, folder: str) -> None:
        """Continue from :meth:`save_reference`."""
        self.build_reference()
        self.ref.load_checkpoint(folder)

    @register(dispatch_mode=_ALL)
    def reset_reference(self) -> None:
        """Back to the starting weights."""
        if self.ref is not None:
            self.ref.reset()

    @register(dispatch_mode=_ALL)
    def export(self, folder: str) -> None:
        """Write the policy as an ordinary Hugging Face folder, without the tokenizer; adapters are merged."""
        model_state.export(self.actor.engine, Path(folder))


class Receiver(CheckpointEngineWorker):
    """verl's worker beside a server with ranks of its own, which takes over new weights; where this module is imported, our server is known."""


class Value(Trainee):
    """A critic.

    Args:
        model, engine: fields of verl's ``HFModelConfig`` and ``FSDPEngineConfig``.
    """

    def __init__(self, model: dict[str, Any], engine: dict[str, Any]) -> None:
        _join_ranks()
        config = TrainingWorkerConfig(
            model_type=VALUE_MODEL,
            model_config=HFModelConfig(**model),
            engine_config=FSDPEngineConfig(**engine),
            optimizer_config=FSDPOptimizerConfig(lr=0.0, total_training_steps=1),
            checkpoint_config=CheckpointConfig(),
            profiler_config=None,
        )
        super().__init__(config)
        self.reset()

    @register(dispatch_mode=_ALL)
    def ready(self) -> bool:
        """The model is loaded."""
        return True
