"""From a GGUF file to an ordinary Hugging Face folder."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from threespo_bench.atomic import sha256, storage_errors, write_json
from threespo_bench.errors import DataError


def convert(source: Path, folder: Path) -> None:
    """Write the model in ``source``, dequantised to float32, to ``folder``, which appears whole or not at all.

    Two processes may do this at the same time: each writes a folder of its own, and the first to be ready wins.

    Raises:
        DataError: the file cannot be read. StorageError: the folder cannot be written.
    """
    with storage_errors(f"write {folder}"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            _write(source, draft)
            write_json(draft / "complete.json", {"source": source.name, "sha256": sha256(source)})
            draft.chmod(0o755)
            _put(draft, folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _write(source: Path, draft: Path) -> None:
    transformers_logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name, local_files_only=True)
    except Exception as error:  # transformers and gguf raise whatever their parts raise
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise DataError(f"{source} cannot be read: {first}") from error
    _forget_quantisation(model)
    model.save_pretrained(draft)
    # As tokenizer.json describes it, under the general class, so that every loader makes the same tokenizer of it.
    plain = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer,
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
        pad_token=tokenizer.pad_token,
        unk_token=tokenizer.unk_token,
        model_max_length=model.config.max_position_embeddings,
        clean_up_tokenization_spaces=False,
    )
    plain.chat_template = tokenizer.chat_template
    plain.save_pretrained(draft)


def _forget_quantisation(model: torch.nn.Module) -> None:
    """The weights are ordinary floats now; the marks of how they were stored would make transformers refuse to save or load them."""
    model.is_quantized = False
    model.hf_quantizer = None
    for holder in (model.config, model):
        for name in ("quantization_config", "_pre_quantization_dtype", "quantization_method"):
            if hasattr(holder, name):
                try:
                    delattr(holder, name)
                except AttributeError:  # set on the class
                    setattr(holder, name, None)


def _put(draft: Path, folder: Path) -> None:
    try:
        os.replace(draft, folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not (folder / "complete.json").is_file():
            raise
