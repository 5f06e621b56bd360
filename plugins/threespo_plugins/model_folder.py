"""A Hugging Face folder: what its files say and whether they are whole, before anything is loaded. Nothing here imports torch or transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from threespo_bench.errors import DataError

_AGAIN = "copy or fetch the file again"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model")


def read_config(folder: Path) -> dict[str, Any]:
    """The model's config.json. Raises DataError if it cannot be read."""
    fix = "give the path of a local Hugging Face folder"
    if not folder.is_dir():
        raise DataError(f"model folder {folder} does not exist", fix=fix)
    if not (folder / "config.json").exists() and (folder / "adapter_config.json").exists():
        raise DataError(f"model folder {folder} holds an adapter, not a model", fix=f"threespo-bench merge {folder} MERGED, and the folder MERGED")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"model folder {folder}: config.json cannot be read: {error}", fix=fix) from error
    if not isinstance(config, dict):
        raise DataError(f"model folder {folder}: config.json is no JSON object", fix=fix)
    return config


def check_model_folder(folder: Path) -> None:
    """Raises DataError if an engine could not load the model: configuration, weights or tokenizer are missing, damaged, or do not fit."""
    read_config(folder)
    check_weights(folder)
    check_tokenizer(folder)


def check_weights(folder: Path) -> None:
    """Raises DataError if there are no weights in the folder, or a safetensors file is missing or damaged. Only headers are read."""
    for name in ("model.safetensors", "pytorch_model.bin"):  # in the order in which transformers looks for them
        index = folder / f"{name}.index.json"
        files = [folder / name] if (folder / name).is_file() else _indexed(folder, index) if index.is_file() else []
        for file in files:
            if file.suffix == ".safetensors" and (reason := _damage(file)):
                raise DataError(f"model folder {folder}: {file.name} is damaged: {reason}", fix=_AGAIN)
        if files:
            return
    raise DataError(f"model folder {folder} has no weights", fix="the folder needs model.safetensors (save_pretrained writes it)")


def _indexed(folder: Path, index: Path) -> list[Path]:
    """The files that an index names. Raises DataError if it cannot be read, or one is missing."""
    try:
        files = [folder / name for name in sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"model folder {folder}: {index.name} cannot be read: {error}", fix=_AGAIN) from error
    if missing := [file.name for file in files if not file.is_file()]:
        raise DataError(f"model folder {folder}: {index.name} names {missing[0]}, which is not there", fix=_AGAIN)
    return files


def check_adapter(folder: Path) -> None:
    """Raises DataError if an adapter has no weights, or they are damaged. Only the header is read."""
    file = folder / "adapter_model.safetensors"
    if not file.is_file() and not (folder / "adapter_model.bin").is_file():
        raise DataError(f"the adapter in {folder} has no weights", fix="name a folder that peft wrote, with adapter_model.safetensors")
    if file.is_file() and (reason := _damage(file)):
        raise DataError(f"the adapter in {folder}: {file.name} is damaged: {reason}", fix=_AGAIN)


def check_tokenizer(folder: Path) -> None:
    """Raises DataError if there is no tokenizer, or one of its tokens has no row in the embedding: what ``tokenizer.json`` tells of that."""
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):  # transformers would make an empty one
        raise DataError(f"model folder {folder} has no tokenizer", fix=f"save one there: tokenizer.save_pretrained({str(folder)!r})")
    file = folder / "tokenizer.json"
    if not file.is_file():
        return
    try:
        tokenizer = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"model folder {folder}: {file.name} cannot be read: {error}", fix=_AGAIN) from error
    try:
        fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        known = tokenizer["model"]["vocab"]
        ids = [token["id"] for token in tokenizer.get("added_tokens") or ()]
        ids += known.values() if isinstance(known, dict) else range(len(known))
        rows = int((fields.get("text_config") or fields)["vocab_size"])
        highest = max(map(int, ids), default=-1)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return
    if highest >= rows:
        raise DataError(
            f"the tokenizer in {folder} has the token {highest}, but the model embeds {rows} tokens, from 0",
            fix="give the model the tokenizer that it was trained with",
        )


def vocabulary_size(folder: Path) -> int:
    """Tokens that the model embeds. Raises DataError if config.json does not say."""
    config = read_config(folder)
    size = (config.get("text_config") or config).get("vocab_size")
    if not isinstance(size, int):
        raise DataError(f"model folder {folder}: config.json has no vocab_size", fix="use a causal language model")
    return size


def _damage(file: Path) -> str:
    """What is wrong with a safetensors file: 8 bytes that say how long its header is, the header (JSON with the place of each tensor), the tensors."""
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > size - 8:
                return "it is no safetensors file, or only its beginning"
            header = json.loads(opened.read(length))
        end = 8 + length + max((tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"), default=0)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        return f"its header cannot be read: {error}"
    return "" if end == size else f"it has {size} bytes, and its header says {end}"
