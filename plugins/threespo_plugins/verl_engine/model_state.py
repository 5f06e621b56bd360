"""The weights of one of verl's engines, sharded over the ranks: copies, digests, and the whole of them as a Hugging Face folder.

Every function is called on all ranks at the same time: gathering a weight needs them all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.pytorch_utils import Conv1D
from verl.utils.device import get_device_id
from verl.utils.model import convert_weight_keys


class Snapshot:
    """Copies of a rank's part of the trained weights and of the optimiser's state, in the CPU's memory."""

    def __init__(self, engine: Any) -> None:
        self._weights = [_part(parameter).detach().to("cpu", copy=True) for parameter in _parameters(engine)]
        state = engine.optimizer.state
        self._state = [_copied(state[parameter]) if parameter in state else None for parameter in _parameters(engine)]

    def restore(self, engine: Any) -> None:
        """Put everything back."""
        optimizer = engine.optimizer
        with torch.no_grad():
            for parameter, weights, state in zip(_parameters(engine), self._weights, self._state, strict=True):
                _part(parameter).copy_(weights)
                if state is None:
                    optimizer.state.pop(parameter, None)
                    continue
                for name, value in state.items():
                    _part(optimizer.state[parameter][name]).copy_(value)
        optimizer.zero_grad()


def copy(source: Any, target: Any) -> None:
    """Give ``target``, which has no adapters, the weights of ``source``, adapters merged. Both are sharded in the same way."""
    own = target.module.state_dict()
    with torch.no_grad():
        if source.model_config.lora_rank == 0:
            weights = source.module.state_dict()
            for name, tensor in own.items():
                _part(tensor).copy_(_part(weights[name]))
            return
        for name, whole in merged_tensors(source):
            tensor = own[name]
            if isinstance(tensor, DTensor):
                whole = distribute_tensor(whole.to(get_device_id()), source.device_mesh, tensor.placements).to_local()
            _part(tensor).copy_(whole)


def digest(engine: Any) -> str:
    """Digest of every parameter and buffer that is saved, in the order of their names, as they are on one device."""
    found = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(engine.module.state_dict().items()):
        whole = _whole(tensor)
        found.update(f"{name} {whole.dtype} {tuple(whole.shape)}".encode())
        found.update(whole.contiguous().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()


def export(engine: Any, folder: Path) -> None:
    """Write configuration and weights of the policy, adapters merged; the first rank writes."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    first = engine.rank == 0
    weights = {}
    for name, tensor in merged_tensors(engine):
        if first:
            weights[name] = tensor
    if not first:
        return
    config = engine.model_config.hf_config
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    source = Path(engine.model_config.local_path)
    if (source / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(source)
    folder.mkdir(parents=True, exist_ok=True)
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    model.save_pretrained(folder)


def merged_tensors(engine: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, whole tensor on the CPU) as a checkpoint of the plain model names them; adapters are merged in float32."""
    state = engine.module.state_dict()
    for name, tensor in state.items():
        if ".lora_" in name:
            continue
        whole, stem = _whole(tensor), name.removesuffix(".base_layer.weight")
        if f"{stem}.lora_A.default.weight" in state:
            a, b = (_whole(state[f"{stem}.lora_{side}.default.weight"]) for side in "AB")
            scale = engine.model_config.lora_alpha / engine.model_config.lora_rank
            whole = whole + adapter_delta(a, b, scale, engine.module.get_submodule(f"{stem}.base_layer"))
        yield name.removeprefix("base_model.model.").replace(".base_layer.", "."), whole


def served_tensors(engine: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """:func:`merged_tensors` on the rank's device, by the names in a checkpoint, which a rollout server reads."""
    for name, tensor in merged_tensors(engine):
        yield from convert_weight_keys({name: tensor.to(get_device_id())}, engine.module).items()


def adapter_delta(a: torch.Tensor, b: torch.Tensor, scale: float, layer: torch.nn.Module) -> torch.Tensor:
    """scale * B A, in the orientation in which ``layer`` keeps its weight. LoRA: arXiv:2106.09685."""
    delta = scale * (b.float() @ a.float())
    return delta.T if isinstance(layer, Conv1D) else delta


def _parameters(engine: Any) -> list[torch.Tensor]:
    """The sharded parameters that the optimiser moves, in its order."""
    return [parameter for group in engine.optimizer.param_groups for parameter in group["params"]]


def _part(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _copied(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: _part(value).detach().to("cpu", copy=True) for name, value in state.items() if isinstance(value, torch.Tensor)}


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, DTensor):
        tensor = tensor.to(get_device_id()).full_tensor()
    return tensor.detach().cpu()
