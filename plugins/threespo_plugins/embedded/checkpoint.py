"""The learner's state on disk. The folder is new and empty; making the write atomic is the run store's part."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from threespo_bench.errors import StorageError
from threespo_plugins.embedded.optimizer import Optimizer

_WEIGHTS, _OPTIMIZER, _STATE = "weights.safetensors", "optimizer.safetensors", "learner.json"


def save(folder: Path, model: torch.nn.Module, optimizer: Optimizer, state: Mapping[str, object]) -> None:
    """Write weights, optimiser and counters."""
    folder.mkdir(parents=True, exist_ok=True)
    save_weights(folder / _WEIGHTS, model)
    save_file(_on_cpu(optimizer.state()), folder / _OPTIMIZER)
    (folder / _STATE).write_text(json.dumps(state, indent=1))


def load(folder: Path, model: torch.nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Put back weights and optimiser; returns the counters. Raises StorageError if the folder is not such a checkpoint of this model."""
    try:
        state = json.loads((folder / _STATE).read_text())
        moments = load_file(folder / _OPTIMIZER)
    except (OSError, ValueError, SafetensorError) as error:
        raise StorageError(f"{folder} is not a usable checkpoint of the learner: {error}") from error
    load_weights(folder / _WEIGHTS, model)
    optimizer.load_state(moments)
    return state


def save_weights(path: Path, model: torch.nn.Module) -> None:
    """Write the weights of a model."""
    save_file(_on_cpu(_tensors(model)), path)


def load_weights(path: Path, model: torch.nn.Module) -> None:
    """Put back what :func:`save_weights` wrote. Raises StorageError if the file cannot be read or is of another model."""
    try:
        weights = load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise StorageError(f"{path.parent} is not a usable checkpoint of the learner: {error}") from error
    own = _tensors(model)
    if {name: tensor.shape for name, tensor in own.items()} != {name: tensor.shape for name, tensor in weights.items()}:
        raise StorageError(f"{path.parent} holds the weights of another model")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])


def export(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write an ordinary Hugging Face folder: configuration, weights, tokenizer with its chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and saved buffers by name; of tied ones, the first name only."""
    saved = model.state_dict()
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return tensors | {name: buffer for name, buffer in model.named_buffers() if name in saved}


def _on_cpu(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
