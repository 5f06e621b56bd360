"""Merging a LoRA adapter into its base model, with peft, and proof that the result is what the adapter computes."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

from threespo_bench.errors import DataError, EngineError
from threespo_plugins.messages import first_line
from threespo_plugins.model_folder import check_adapter
from threespo_plugins.weights import loading

_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "chat_template.jinja",
)  # fmt: skip
_PROBE_TOKENS = 32
_TOLERANCE = 1e-3
"""How far log-probabilities of the sum may be from those of base and adapter, both in float32, where only the order of additions differs.

Measured: up to 1.5e-4 with SmolLM2-135M and random adapters.
"""


UNCHANGED_FIX = "it is untrained (all zero), or too small for the base's precision"


def merge_adapter(adapter: Path, base: str | None, out: Path, *, refuse_unchanged: bool = True) -> bool:
    """Write base and adapter as one Hugging Face folder, in the base's precision; the sum is computed in float32.

    Args:
        adapter: a folder with adapter_config.json, as peft writes it.
        base: the base model's folder; None for the one that the adapter's configuration names.
        out: does not exist, or is an empty folder.
        refuse_unchanged: an adapter that changes nothing is an error.

    Returns:
        Whether the adapter changes anything.

    Raises:
        DataError: adapter or base cannot be read, the base lacks weights, the adapter's lora_alpha is 0, or it changes nothing.
        EngineError: the sum does not compute what base and adapter compute, or what was written is not the sum.
    """
    check_adapter(adapter)
    if scale_is_lost(adapter):
        raise DataError(f"the adapter in {adapter} has lora_alpha 0: its scale is lost", fix="write the lora_alpha of its training to adapter_config.json")
    try:
        import peft  # noqa: F401
    except ImportError as error:
        raise DataError(f"merging a LoRA adapter needs peft: {error}", fix="pip install 'threespo-bench[lora]'") from error
    import torch
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    base_folder = _base_folder(adapter, base)
    dtype = _dtype(base_folder)
    if missing := loading(base_folder).missing:
        raise DataError(f"the base of the adapter, {base_folder}, lacks {len(missing)} of its weights, first {missing[0]}", fix="copy or fetch the base again")
    before = _load(base_folder).state_dict()
    combined = _with_adapter(adapter, base_folder)
    with torch.no_grad():
        probe = torch.arange(_PROBE_TOKENS)[None] * 37 % combined.get_input_embeddings().num_embeddings
        expected = combined(input_ids=probe).logits.log_softmax(-1)
        merged = combined.merge_and_unload(safe_merge=True)
        gap = float((merged(input_ids=probe).logits.log_softmax(-1) - expected).abs().max())
    if not gap <= _TOLERANCE:
        raise EngineError(f"the merged model is not base and adapter: log-probabilities differ by {gap:.2e}, allowed {_TOLERANCE:.0e}")
    merged = merged.to(dtype)
    after = merged.state_dict()
    changed = before.keys() != after.keys() or not all(torch.equal(before[name].to(dtype), after[name]) for name in before)
    if refuse_unchanged and not changed:
        raise DataError(f"the adapter in {adapter} changes no weight of {base_folder}", fix=UNCHANGED_FIX)
    out.mkdir(parents=True, exist_ok=True)
    merged.save_pretrained(out)
    _copy_tokenizer(adapter, base_folder, out)
    _check_written(out, after)
    return changed


def scale_is_lost(adapter: Path) -> bool:
    """Whether the configuration says lora_alpha 0, which verl's merger writes if it was not told the real one."""
    return _configuration(adapter).get("lora_alpha") == 0


def _check_written(out: Path, weights: dict[str, Any]) -> None:
    """Raises EngineError unless the folder holds exactly these weights, and they are finite.

    Log-probabilities cannot tell: rounding to bfloat16 alone may move them as far as a small adapter does.
    """
    import torch

    written = _load(out).state_dict()
    wrong = sorted(written.keys() ^ weights.keys())
    wrong = wrong or [name for name, tensor in weights.items() if not torch.equal(tensor.to(written[name].dtype), written[name])]
    if wrong:
        raise EngineError(f"the model that was written to {out} is not the merged one: {wrong[0]} differs")
    infinite = [name for name, tensor in weights.items() if tensor.is_floating_point() and not torch.isfinite(tensor).all()]
    if infinite:
        raise EngineError(f"the merged model is not finite in the base's precision: {infinite[0]}", fix="convert the base to float32 or bfloat16 first")


def _configuration(adapter: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{adapter / 'adapter_config.json'} cannot be read: {error}", fix="name a folder that peft wrote") from error


def _base_folder(adapter: Path, base: str | None) -> Path:
    named = _configuration(adapter).get("base_model_name_or_path")
    folder = Path(base or named or "").expanduser()
    if not base and named and not folder.is_absolute() and not folder.is_dir():
        folder = adapter / named
    if not (base or named) or not (folder / "config.json").is_file():
        raise DataError(
            f"the base of the adapter {adapter} is not there: {base or named or 'none is named'}", fix="name its folder, or a registered model: --base MODEL"
        )
    return folder


def _dtype(folder: Path) -> Any:
    """The precision of the base's weights as they are stored; float32 where that is no usual one."""
    import torch
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (ValueError, OSError, KeyError) as error:
        raise DataError(f"model folder {folder}: config.json cannot be used: {first_line(error)}") from error
    return config.dtype if config.dtype in (torch.bfloat16, torch.float16) else torch.float32


def _load(folder: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True).eval()
    except Exception as error:  # transformers raises whatever its parts raise
        raise DataError(f"model folder {folder} cannot be loaded: {first_line(error)}") from error


def _with_adapter(adapter: Path, base_folder: Path) -> Any:
    from peft import PeftModel

    model = _load(base_folder)
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # of transformers, to developers of peft
            return PeftModel.from_pretrained(model, str(adapter), is_trainable=False).float().eval()
    except Exception as error:  # peft raises whatever its parts raise
        raise DataError(
            f"the adapter in {adapter} does not fit {base_folder}: {first_line(error)}", fix="name the model that it was trained on: --base MODEL"
        ) from error


def _copy_tokenizer(adapter: Path, base_folder: Path, out: Path) -> None:
    """The adapter's tokenizer if it brings one, else the base's, file by file so that nothing about it changes."""
    source = adapter if (adapter / "tokenizer_config.json").is_file() else base_folder
    for name in _TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, out / name)
