"""Our options in verl's words, checked by verl's own schema and dataclasses."""

from __future__ import annotations

import pytest

from threespo_bench.contracts.rollout import OwnSampling, Rollout, RolloutServer
from threespo_bench.errors import EngineError
from threespo_plugins.verl_engine import settings as translation
from threespo_plugins.verl_engine.config import VerlConfig


def servers(name):
    """A rollout as a user chooses it, with options of its plugin if that is there."""
    from threespo_plugins.vllm_rollout.config import VllmConfig

    return Rollout(name, VllmConfig(gpu_memory_utilization=0.3, max_num_seqs=77, prefix_caching=False, eager=False), RolloutServer)


CASES = {
    "cpu": (VerlConfig(), None),
    "own sampling on GPUs": (VerlConfig(device="cuda", ranks=2, dtype="bfloat16"), Rollout("hf", OwnSampling.Config(), OwnSampling)),
    "vllm": (VerlConfig(device="cuda", ranks=4, nodes=2, dtype="bfloat16", attention="flash_attention_2", tensor_parallel=2, offload="all"), servers("vllm")),
    "vllm on GPUs of its own": (VerlConfig(device="cuda", ranks=2, rollout_ranks=6, dtype="bfloat16", tensor_parallel=2, lora_rank=8), servers("vllm")),
    "own sampling on ranks of its own": (VerlConfig(rollout_ranks=2), None),
    "sglang with LoRA": (VerlConfig(device="cuda", lora_rank=8, lora_alpha=16, lora_targets=["q_proj", "v_proj"]), servers("sglang")),
}


@pytest.mark.parametrize("case", CASES)
def test_verl_accepts_what_we_say(rank, model, case):
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.config import FSDPEngineConfig

    config, rollout = CASES[case]
    whole = translation.verl_config(config, model, 256, rollout)
    part = whole.actor_rollout_ref
    if part.model.load_tokenizer:
        part.model.load_tokenizer = False  # it has no use for the tokenizer of the test's model
    actor, chosen, described = (omega_conf_to_dataclass(section) for section in (part.actor, part.rollout, part.model))
    assert actor.strategy == actor.engine.strategy == "fsdp2"
    assert actor.engine.mixed_precision["param_dtype"] == ("bf16" if config.dtype == "bfloat16" else "fp32")
    assert actor.engine.param_offload == (config.offload != "none") and actor.engine.optimizer_offload == (config.offload == "all")
    assert chosen.logprobs_mode == "raw_logprobs" and chosen.max_model_len == 256 and chosen.calculate_log_probs
    assert described.lora_rank == config.lora_rank and described.use_remove_padding == (config.attention == "flash_attention_2")
    assert described.target_modules == ("all-linear" if config.lora_targets == ["all-linear"] else config.lora_targets)
    assert FSDPEngineConfig(**translation.engine_settings(config)).use_dynamic_bsz
    assert chosen.nnodes * chosen.n_gpus_per_node == config.rollout_ranks
    assert part.hybrid_engine is not bool(config.rollout_ranks)
    transfer = ("nccl" if config.device == "cuda" else translation.GLOO_TRANSFER) if config.rollout_ranks else "naive"
    assert chosen.checkpoint_engine.backend == transfer
    assert bool(described.lora.get("merge")) == (config.lora_rank > 0 and config.rollout_ranks > 0)
    if rollout is None or rollout.name == "hf":
        assert chosen.name == translation.HF_ROLLOUT and chosen.tensor_model_parallel_size == 1 and not chosen.free_cache_engine
        return
    assert (chosen.name, chosen.gpu_memory_utilization, chosen.max_num_seqs) == (rollout.name, 0.3, 77)
    assert not chosen.enable_prefix_caching and not chosen.enforce_eager and chosen.free_cache_engine is not bool(config.rollout_ranks)
    assert chosen.tensor_model_parallel_size == config.tensor_parallel and whole.trainer.nnodes == config.nodes


def test_an_option_that_verl_has_no_more_is_named(rank, model, monkeypatch):
    monkeypatch.setattr(translation, "_rollout", lambda *_: {"actor_rollout_ref.rollout.speed": 1})
    with pytest.raises(EngineError, match=r"verl has no option actor_rollout_ref\.rollout\.speed"):
        translation.verl_config(VerlConfig(), model, 256, None)


def test_hydra_is_left_as_it_was(rank, model):
    from hydra import initialize_config_module
    from hydra.core.global_hydra import GlobalHydra

    with initialize_config_module("threespo_bench.conf", version_base="1.3"):
        before = GlobalHydra.instance().hydra
        translation.verl_config(VerlConfig(), model, 256, None)
        assert GlobalHydra.instance().hydra is before
