"""How an SGLang server is set up, and what is asked of it."""

from __future__ import annotations

from typing import Any

from threespo_bench.contracts.rollout import ServedModel
from threespo_plugins.sglang_rollout.config import SglangConfig

UNLIMITED = 2**31
"""What :attr:`ServedModel.max_context` is for a model without a limit."""
SPARE = 8
"""Tokens by which SGLang's context must exceed what is used: it refuses prompts that end 7 tokens before its limit, and cuts responses 2 before it."""
SERVER_ENVIRONMENT = {
    "SGLANG_RETURN_ORIGINAL_LOGPROB": "1",  # before temperature
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",  # for SPARE, which is never used
}
"""Variables without which answers are wrong."""
GREEDY = 2e-6
"""What is asked for temperature 0. Below 1e-6 SGLang takes the highest by top-k, and then numbers the noise of all requests of the batch by the rank of a
token instead of its id, so that their seeds give other responses. The highest wins here too, unless another is within about 4e-5 nats of it."""
SERVER_OPTIONS = ("--skip-tokenizer-init", "--enable-deterministic-inference")
"""Tokens in, tokens out; and a seed for each request, which SGLang ignores in silence otherwise."""


def server_options(config: SglangConfig, model: ServedModel) -> list[str]:
    """Options of the command line, host, port and label of the weights apart."""
    options = ["--model-path", str(model.folder), "--dtype", model.dtype, "--device", model.device, "--random-seed", str(model.seed % UNLIMITED)]
    options += ["--max-running-requests", str(config.max_num_seqs), "--grammar-backend", "none", "--log-level-http", "warning", *SERVER_OPTIONS]
    if model.max_context < UNLIMITED:
        options += ["--context-length", str(model.max_context + SPARE)]
    if not config.prefix_caching:
        options.append("--disable-radix-cache")
    if model.device == "cpu":
        tokens = config.kv_cache_tokens if model.max_context >= UNLIMITED else max(config.kv_cache_tokens, model.max_context + 2 * SPARE)
        return [*options, "--max-total-tokens", str(tokens), "--attention-backend", "torch_native", "--disable-overlap-schedule"]
    options += ["--mem-fraction-static", str(config.gpu_memory_utilization)]
    if config.attention_backend is not None:
        options += ["--attention-backend", config.attention_backend]
    if config.eager:
        options.append("--disable-cuda-graph")
    return options


def environment(model: ServedModel) -> dict[str, str]:
    """Variables of the server's process."""
    variables = {**SERVER_ENVIRONMENT, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if model.device == "cpu":
        # Its sampler is compiled otherwise, which needs a compiler and takes longer than it saves on the CPU.
        variables |= {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": str(model.threads), "TORCHDYNAMO_DISABLE": "1"}
    return variables


def sampling_parameters(stop_ids: tuple[int, ...], seed: int, temperature: float, max_new_tokens: int) -> dict[str, Any]:
    """Of one request. Those that would cut the distribution are given too: a server may have others of its own as defaults."""
    return {
        "temperature": float(temperature) or GREEDY,
        "max_new_tokens": max_new_tokens,
        "sampling_seed": seed if temperature else 0,
        "stop_token_ids": list(stop_ids),
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_new_tokens": 0,
        "ignore_eos": False,  # it would ignore stop_token_ids too
    }
