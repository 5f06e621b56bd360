"""Everything of verl that the adapter touches is still there, by name and by the arguments that it takes."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest

HOOKS = [
    # module, attribute, arguments that we pass by name
    ("verl", "DataProto", ()),
    ("verl.plugin.platform", "PlatformRegistry.register", ("platform",)),
    ("verl.plugin.platform", "get_platform", ()),
    ("verl.plugin.platform", "set_platform", ("platform",)),
    ("verl.checkpoint_engine", "CheckpointEngine", ()),
    ("verl.checkpoint_engine", "CheckpointEngineManager", ("config", "actor_wg", "replicas")),
    ("verl.checkpoint_engine", "CheckpointEngineManager.update_weights", ("global_steps",)),
    ("verl.checkpoint_engine", "CheckpointEngineRegistry.register", ("backend",)),
    ("verl.checkpoint_engine", "CheckpointEngineWorker", ("rollout_config", "model_config", "replica_rank")),
    ("verl.trainer.ppo.core_algos", "register_adv_est", ("name_or_enum",)),
    ("verl.trainer.ppo.core_algos", "get_adv_estimator_fn", ()),
    ("verl.trainer.config", "CheckpointConfig", ("save_contents", "load_contents")),
    ("verl.utils.config", "omega_conf_to_dataclass", ()),
    ("verl.utils.device", "get_device_name", ()),
    ("verl.utils.device", "get_device_id", ()),
    ("verl.utils.distributed", "initialize_global_process_group_ray", ("backend",)),
    ("verl.utils.fsdp_utils", "get_init_weight_context_manager", ("use_meta_tensor", "mesh")),
    ("verl.utils.model", "convert_weight_keys", ("state_dict", "model")),
    ("verl.utils.tensordict_utils", "assign_non_tensor", ()),
    ("verl.utils.tensordict_utils", "get", ()),
    ("verl.utils.tensordict_utils", "chunk_tensordict", ()),
    ("verl.single_controller.base.decorator", "Dispatch.ONE_TO_ALL", ()),
    ("verl.single_controller.base.decorator", "make_nd_compute_dataproto_dispatch_fn", ("mesh_name",)),
    ("verl.single_controller.base.decorator", "register", ("dispatch_mode",)),
    ("verl.single_controller.ray", "RayClassWithInitArgs", ()),
    ("verl.single_controller.ray", "RayResourcePool", ("use_gpu", "max_colocate_count", "name_prefix")),
    ("verl.single_controller.ray", "RayWorkerGroup", ("resource_pool", "ray_cls_with_init", "name_prefix")),
    ("verl.single_controller.ray", "RayWorkerGroup.execute_all_async", ("method_name",)),
    ("verl.single_controller.ray", "RayWorkerGroup.workers", ()),
    ("verl.workers.config", "HFModelConfig", ("path", "load_tokenizer", "override_config", "use_remove_padding", "lora_rank", "lora_alpha", "target_modules")),
    ("verl.workers.config", "FSDPEngineConfig", ("strategy", "model_dtype", "mixed_precision", "param_offload", "use_dynamic_bsz", "max_token_len_per_gpu")),
    ("verl.workers.config", "FSDPOptimizerConfig", ("lr", "total_training_steps")),
    (
        "verl.workers.config",
        "TrainingWorkerConfig",
        ("model_type", "model_config", "engine_config", "optimizer_config", "checkpoint_config", "profiler_config"),
    ),
    ("verl.workers.engine", "EngineRegistry.register", ("model_type", "backend", "device")),
    ("verl.workers.engine.fsdp.transformer_impl", "FSDPEngineWithLMHead", ()),
    ("verl.workers.engine.fsdp.transformer_impl", "FSDPEngineWithValueHead._build_module", ()),
    ("verl.workers.engine_workers", "TrainingWorker.train_batch", ("data",)),
    ("verl.workers.engine_workers", "TrainingWorker.infer_batch", ("data",)),
    ("verl.workers.engine_workers", "TrainingWorker.set_loss_fn", ("loss_fn",)),
    ("verl.workers.engine_workers", "TrainingWorker.reset", ()),
    ("verl.workers.engine_workers", "TrainingWorker.save_checkpoint", ("local_path",)),
    ("verl.workers.engine_workers", "TrainingWorker.load_checkpoint", ("local_path",)),
    ("verl.workers.engine_workers", "ActorRolloutRefWorker", ("config", "role")),
    ("verl.workers.engine_workers", "ActorRolloutRefWorker.actor_worker_cls", ()),
    ("verl.workers.engine_workers", "ActorRolloutRefWorker.ref_worker_cls", ()),
    ("verl.workers.engine_workers", "ActorRolloutRefWorker.init_model", ()),
    ("verl.workers.engine_workers", "ActorRolloutRefWorker.compute_log_prob", ("data",)),
    ("verl.workers.engine_workers", "ActorRolloutRefWorker.compute_ref_log_prob", ("data",)),
    ("verl.workers.engine_workers", "ActorRolloutRefWorker.set_loss_fn", ("loss_fn",)),
    ("verl.workers.engine_workers", "ActorRolloutRefWorker.set_dispatch_collect", ("mesh_name",)),
    ("verl.workers.engine_workers", "ActorRolloutRefWorker.update_weights", ("global_steps", "mode")),
    ("verl.workers.rollout.base", "_ROLLOUT_REGISTRY", ()),
    ("verl.workers.rollout.base", "BaseRollout.update_weights", ("wire_format",)),
    ("verl.workers.rollout.llm_server", "LLMServerManager.create", ()),
    ("verl.workers.rollout.llm_server", "LLMServerManager.get_client", ()),
    ("verl.workers.rollout.llm_server", "LLMServerManager.get_replicas", ()),
    ("verl.workers.rollout.llm_server", "LLMServerClient.generate", ("request_id", "prompt_ids", "sampling_params")),
    ("verl.workers.rollout.replica", "RolloutReplicaRegistry.register", ("name", "loader")),
    ("verl.workers.rollout.replica", "RolloutMode.STANDALONE", ()),
    ("verl.workers.rollout.replica", "RolloutReplica.get_ray_class_with_init_args", ()),
    ("verl.workers.rollout.replica", "RolloutReplica.init_standalone", ()),
    ("verl.workers.rollout.replica", "RolloutReplica.launch_servers", ()),
    ("verl.workers.rollout.replica", "RolloutReplica.sleep", ()),
    ("verl.workers.rollout.replica", "TokenOutput", ("token_ids", "log_probs", "stop_reason", "num_preempted", "extra_fields")),
    ("verl.workers.rollout.utils", "ensure_async_iterator", ("iterable",)),
    ("verl.workers.utils.padding", "no_padding_2_padding", ("tensor", "data")),
    ("verl.model_merger", "__path__", ()),
]


@pytest.mark.parametrize(("module", "attribute", "arguments"), HOOKS, ids=[f"{module}.{attribute}" for module, attribute, _ in HOOKS])
def test_verl_still_has(rank, module, attribute, arguments):
    found = import_module(module)
    for part in attribute.split("."):
        assert hasattr(found, part), f"{module} has no {attribute}"
        found = getattr(found, part)
    if arguments:
        known = inspect.signature(found).parameters
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
        for name in arguments:
            assert name in known or takes_any, f"{module}.{attribute} takes no {name}"


def test_the_platform_answers_all_that_verl_asks(rank):
    """A method that verl adds to its platforms has to be written for ours."""
    from threespo_plugins.verl_engine.platform_cpu import PlatformCPU

    assert not PlatformCPU.__abstractmethods__
    assert PlatformCPU().device_name == "cpu"


def test_the_package_is_the_pinned_one():
    from importlib.metadata import version

    from threespo_plugins.verl_engine.config import VERSION

    assert version("verl") == VERSION
