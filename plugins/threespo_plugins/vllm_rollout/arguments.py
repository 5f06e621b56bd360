"""How vLLM is set up, by whatever way it is started."""

from __future__ import annotations

from typing import Any

from threespo_bench.contracts.rollout import ServedModel
from threespo_plugins.vllm_rollout.config import VllmConfig

UNLIMITED = 2**31
"""What :attr:`ServedModel.max_context` is for a model without a limit."""


def engine_arguments(config: VllmConfig, model: ServedModel) -> dict[str, Any]:
    """Arguments of vLLM's engine, as ``vllm.LLM`` names them; the server has an option for each."""
    arguments: dict[str, Any] = {
        "model": str(model.folder),
        "dtype": model.dtype,
        "seed": model.seed % UNLIMITED,
        "block_size": config.block_size,
        "max_num_seqs": config.max_num_seqs,
        "enable_prefix_caching": config.prefix_caching,
        "enforce_eager": config.eager,
        "logprobs_mode": "raw_logprobs",  # before temperature
        "generation_config": "vllm",  # the model's own top_p and the like would cut the distribution
        "skip_tokenizer_init": True,  # tokens come in and tokens go out
        "disable_log_stats": True,
    }
    if model.max_context < UNLIMITED:
        arguments["max_model_len"] = model.max_context
    if model.device == "cuda":
        arguments["gpu_memory_utilization"] = config.gpu_memory_utilization
    elif model.max_context < UNLIMITED:
        # A prompt that is read in pieces ends a server on the CPU if its request has a seed ("CPU Generator does not use offset").
        arguments |= {"enable_chunked_prefill": False, "max_num_batched_tokens": max(model.max_context, 8192)}
    return arguments


def command_options(arguments: dict[str, Any]) -> list[str]:
    """The same as options of the server's command line."""
    options = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            options.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            options += [f"--{flag}", str(value)]
    return options


def environment(config: VllmConfig, model: ServedModel) -> dict[str, str]:
    """Variables that vLLM reads when it is imported."""
    variables = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if config.eager:
        variables["TORCHDYNAMO_DISABLE"] = "1"  # it compiles parts of its sampler even so
    if model.device == "cpu":
        variables |= {
            "VLLM_CPU_KVCACHE_SPACE": str(config.kv_cache_gib),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # otherwise runs on one machine are all bound to the same cores
            "OMP_NUM_THREADS": str(model.threads),
        }
    return variables


def sampling_parameters(model: ServedModel, seed: int, temperature: float, max_new_tokens: int) -> dict[str, Any]:
    """Of one request, as ``vllm.SamplingParams`` names them. ``logprobs`` 0 is the sampled token's."""
    return {
        "temperature": temperature,
        "max_tokens": max_new_tokens,
        "seed": seed,
        "logprobs": 0,
        "stop_token_ids": list(model.stop_ids),
        "ignore_eos": True,  # only the given tokens end a response
        "detokenize": False,
    }
