"""Our options in verl's own words. verl's schema is asked at every step: an option that verl does not have any more is an error here and not in a worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from threespo_bench.contracts.rollout import Rollout
from threespo_bench.errors import EngineError
from threespo_plugins.verl_engine.config import VerlConfig

HF_ROLLOUT = "threespo_hf"
"""The name under which verl's registries know our own rollout server."""
GLOO_TRANSFER = "threespo_gloo"
"""The name under which verl knows our own way of handing weights to servers with ranks of their own."""
SERVER_OPTIONS = {
    "gpu_memory_utilization": "gpu_memory_utilization", "max_num_seqs": "max_num_seqs", "prefix_caching": "enable_prefix_caching", "eager": "enforce_eager",
}  # fmt: skip
"""Options of a rollout server under ``rollout.``, and what verl calls them."""
_DROPOUTS = (
    "attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "classifier_dropout", "dropout", "embd_pdrop", "embedding_dropout", "hidden_dropout",
    "hidden_dropout_prob", "resid_pdrop",
)  # fmt: skip


def verl_config(config: VerlConfig, model: Path, limit: int, rollout: Rollout | None) -> DictConfig:
    """verl's whole configuration for its trainer ``ppo``, with ours in it and all references resolved.

    Args:
        limit: tokens of prompt and response together.

    Raises:
        EngineError: verl has no such option.
    """
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("verl.trainer.config", version_base=None):
            whole = compose("ppo_trainer")
    finally:
        GlobalHydra.instance().hydra = outer
    for key, value in (_training(config) | _model(config, model) | _rollout(config, limit, rollout) | _places(config)).items():
        try:
            OmegaConf.update(whole, key, value, force_add=key in _NEW)
        except OmegaConfBaseException as error:
            raise EngineError(f"verl has no option {key}: {str(error).splitlines()[0]}", fix="install the version of verl that docs/verl.md names") from error
    OmegaConf.resolve(whole)
    return whole


_ACTOR, _MODEL, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.model", "actor_rollout_ref.rollout"
_NEW = frozenset({f"{_MODEL}.load_tokenizer", f"{_MODEL}.override_config", f"{_ACTOR}.fsdp_config.mixed_precision"})
"""Fields of verl's dataclasses that its YAML files do not mention, or leave empty."""


def engine_settings(config: VerlConfig) -> dict[str, Any]:
    """Fields of verl's ``FSDPEngineConfig`` that every model has."""
    precision = "fp32" if config.dtype == "float32" else "bf16"
    return {
        "strategy": "fsdp2",
        "model_dtype": "fp32",
        # Without it verl computes in bfloat16, whatever the other options say.
        "mixed_precision": {"param_dtype": precision, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
        "use_torch_compile": config.device == "cuda",
        "param_offload": config.offload != "none",
        "optimizer_offload": config.offload == "all",
        "use_dynamic_bsz": True,
        "max_token_len_per_gpu": config.micro_batch_tokens,
        "infer_max_token_len_per_gpu": config.micro_batch_tokens,
    }


def model_settings(config: VerlConfig, model: Path, load_tokenizer: bool) -> dict[str, Any]:
    """Fields of verl's ``HFModelConfig``."""
    targets = "all-linear" if config.lora_targets == ["all-linear"] else list(config.lora_targets)
    return {
        "path": str(model),
        # verl loads a tokenizer by the model's type and would rebuild one that is of another kind, so it gets none where it needs none.
        "load_tokenizer": load_tokenizer,
        "override_config": {"attn_implementation": config.attention} | _without_dropout(model),
        "use_remove_padding": config.attention == "flash_attention_2",
        "enable_gradient_checkpointing": config.gradient_checkpointing,
        "lora_rank": config.lora_rank,
        "lora_alpha": config.lora_alpha,
        "target_modules": targets,
    }


def _training(config: VerlConfig) -> dict[str, Any]:
    fields = {name: value for name, value in engine_settings(config).items() if name not in _FILLED_IN}
    return {f"{_ACTOR}.fsdp_config.{name}": value for name, value in fields.items()} | {
        f"{_ACTOR}.strategy": fields["strategy"],
        f"{_ACTOR}.use_torch_compile": fields["use_torch_compile"],
        f"{_ACTOR}.use_dynamic_bsz": True,
        f"{_ACTOR}.ppo_max_token_len_per_gpu": config.micro_batch_tokens,
        "trainer.n_gpus_per_node": config.ranks,
        "trainer.nnodes": config.nodes,
    }


_FILLED_IN = ("use_dynamic_bsz", "max_token_len_per_gpu", "infer_max_token_len_per_gpu")
"""Fields that verl's worker fills in from those of the actor."""


def _model(config: VerlConfig, model: Path) -> dict[str, Any]:
    return {f"{_MODEL}.{name}": value for name, value in model_settings(config, model, load_tokenizer=False).items()}


def _rollout(config: VerlConfig, limit: int, rollout: Rollout | None) -> dict[str, Any]:
    own = rollout is None or rollout.name == "hf"
    settings: dict[str, Any] = {
        f"{_ROLLOUT}.name": HF_ROLLOUT if own else rollout.name,
        f"{_ROLLOUT}.dtype": config.dtype,
        f"{_ROLLOUT}.tensor_model_parallel_size": 1 if own else config.tensor_parallel,
        f"{_ROLLOUT}.free_cache_engine": config.free_rollout_memory and not own,
        f"{_ROLLOUT}.load_format": "auto",
        f"{_ROLLOUT}.calculate_log_probs": True,
        f"{_ROLLOUT}.logprobs_mode": "raw_logprobs",  # of the distribution at temperature 1, whatever the temperature is
        f"{_ROLLOUT}.prompt_length": limit - 1,
        f"{_ROLLOUT}.response_length": 1,
        f"{_ROLLOUT}.max_model_len": limit,
        f"{_ROLLOUT}.max_num_seqs": config.max_batch,
    }
    if rollout is not None and not own:
        settings |= {f"{_ROLLOUT}.{theirs}": getattr(rollout.options, ours) for ours, theirs in SERVER_OPTIONS.items() if hasattr(rollout.options, ours)}
        settings[f"{_MODEL}.load_tokenizer"] = True  # these servers are made with one
    return settings


def _places(config: VerlConfig) -> dict[str, Any]:
    """Where the servers run, and how they get new weights."""
    if not config.rollout_ranks:
        return {}
    return {
        "actor_rollout_ref.hybrid_engine": False,
        # verl makes servers until they are so many GPUs, each of which Ray places on a node with room for it.
        f"{_ROLLOUT}.nnodes": 1,
        f"{_ROLLOUT}.n_gpus_per_node": config.rollout_ranks,
        f"{_ROLLOUT}.free_cache_engine": False,
        f"{_ROLLOUT}.checkpoint_engine.backend": GLOO_TRANSFER if config.transfer == "gloo" else config.transfer,
        f"{_ROLLOUT}.checkpoint_engine.custom_backend_module": "threespo_plugins.verl_engine.transfer",
        f"{_MODEL}.lora.merge": config.lora_rank > 0,
    }


def _without_dropout(model: Path) -> dict[str, float]:
    """verl trains in training mode: with dropout, the learner's log-probabilities would not be the sampler's."""
    fields = json.loads((model / "config.json").read_text())
    return {name: 0.0 for name in _DROPOUTS if fields.get(name)}
