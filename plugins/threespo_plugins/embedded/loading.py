"""A model and its tokenizer from a local Hugging Face folder, with an error that says what is wrong with the folder."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from threespo_bench.errors import DataError, EngineError
from threespo_plugins.embedded.forward import sliding_window
from threespo_plugins.messages import first_line
from threespo_plugins.model_folder import check_tokenizer


def load_model(folder: Path, device: torch.device) -> PreTrainedModel:
    """The causal language model in ``folder``, in float32 and in evaluation mode.

    Evaluation mode is kept in training too: with dropout, the learner's log-probabilities would not be the sampler's.
    """
    _check_folder(folder)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (ValueError, OSError, KeyError) as error:
        raise DataError(
            f"model folder {folder}: config.json cannot be used: {first_line(error)}", fix="use a causal language model that this transformers version knows"
        ) from error
    transformers_logging.disable_progress_bar()
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # what is missing is an error with one line, not a table
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True, output_loading_info=True
        )
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"model folder {folder}: weights cannot be read: {first_line(error)}", fix="the folder needs model.safetensors (save_pretrained writes it)"
        ) from error
    except (ValueError, RuntimeError, ImportError) as error:
        raise DataError(
            f"model folder {folder}: {type(config).__name__[:-6]} cannot be loaded as a causal language model: {first_line(error)}",
            fix="use a causal language model that this transformers version knows, with the config.json that its weights were saved with",
        ) from error
    finally:
        transformers_logging.set_verbosity(verbosity)
    if report["missing_keys"]:  # transformers would go on with random values
        missing = sorted(report["missing_keys"])
        raise DataError(f"model folder {folder}: the weights lack {missing[0]} (missing in all: {len(missing)})", fix="copy or fetch the folder again")
    kinds = set(getattr(config.get_text_config(), "layer_types", None) or ())
    if model.get_output_embeddings() is None or getattr(model, "_is_stateful", False) or not kinds <= {"full_attention", "sliding_attention"}:
        raise EngineError(f"model folder {folder}: {type(model).__name__} is not supported", fix="use a causal language model whose layers all attend")
    return model.eval().requires_grad_(True).to(device)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer in ``folder``, exactly as tokenizer.json describes it, with a chat template.

    AutoTokenizer chooses a class by the model type and may rebuild the tokenizer as that class understands it (a word-level
    tokenizer beside a Qwen2 model becomes a byte-level one), so tokenizer.json is loaded as it stands where there is one.
    """
    _check_folder(folder)
    loader = PreTrainedTokenizerFast if (folder / "tokenizer.json").is_file() else AutoTokenizer
    advice = f"save one there: tokenizer.save_pretrained({str(folder)!r})"
    check_tokenizer(folder)
    try:
        tokenizer = loader.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers raises whatever its tokenizer backends raise
        raise DataError(f"model folder {folder} has no usable tokenizer: {first_line(error)}", fix=advice) from error
    if not getattr(tokenizer, "is_fast", False):
        raise DataError(f"model folder {folder} has no tokenizer.json", fix="convert the tokenizer to a fast one and save it there")
    if not tokenizer.chat_template:
        raise DataError(f"the tokenizer in {folder} has no chat template", fix="set tokenizer.chat_template and save it again, or add chat_template.jinja")
    if tokenizer.eos_token_id is None:
        raise DataError(f"the tokenizer in {folder} has no end-of-sequence token", fix="set tokenizer.eos_token and save it again")
    return tokenizer


def stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The ids that end a response: the tokenizer's end-of-sequence and those of the generation configuration."""
    declared = model.generation_config.eos_token_id if model.generation_config is not None else None
    extra = [] if declared is None else declared if isinstance(declared, list) else [declared]
    return tuple(sorted({tokenizer.eos_token_id, *extra}))


def context_limit(model: PreTrainedModel, asked: int | None) -> int:
    """Tokens that fit: the model's own limit, or a smaller one that was asked for.

    A sliding window is a limit too: within it, sliding and full attention are the same, beyond it padding would count as context.
    """
    config = model.config.get_text_config()
    own = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    limits = [limit for limit in (own, asked, sliding_window(model)) if limit is not None]
    return min(limits) if limits else 2**31


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise DataError(f"model folder {folder} does not exist", fix="give the path of a local Hugging Face folder")
    if not (folder / "config.json").is_file():
        raise DataError(f"model folder {folder} has no config.json", fix="give the folder that save_pretrained wrote")
