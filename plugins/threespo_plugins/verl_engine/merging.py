"""From verl's FSDP shards to an ordinary Hugging Face folder, by verl's own merger, in whichever environment has verl."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from threespo_bench.errors import DataError, EngineError
from threespo_plugins.lora import UNCHANGED_FIX, merge_adapter, scale_is_lost
from threespo_plugins.weights import loading

_ADAPTER = "lora_adapter"
PYTHON_VARIABLE = "THREESPO_BENCH_VERL_PYTHON"
"""The Python of an environment that has verl, if it is another than the present one."""


def verl_python() -> str:
    """The Python that has verl. Raises DataError if none is known."""
    named = os.environ.get(PYTHON_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise DataError(f"{PYTHON_VARIABLE}={named}: there is no such file", fix="name the python of an environment that has verl")
        return named
    if find_spec("verl") is None:
        raise DataError(
            "merging shards of verl needs verl, which is not installed here",
            fix=f"make an environment with it, scripts/verl_env.sh DIR, and set {PYTHON_VARIABLE}=DIR/bin/python",
        )
    return sys.executable


def merge_shards(folder: Path, out: Path, *, refuse_unchanged: bool = True) -> bool:
    """Write the policy in ``folder``, which holds ``actor/model_world_size_*_rank_*.pt`` and ``actor/huggingface``, to ``out``.

    Args:
        refuse_unchanged: a LoRA adapter that changes nothing is an error; without LoRA nothing is compared here, see :func:`unchanged`.

    Returns:
        Whether it was trained with LoRA.

    Raises:
        DataError: verl is not there, or the policy is a LoRA adapter of unknown scale, or one that changes nothing.
        EngineError: its merger failed, or wrote no model, or one that lacks weights or cannot be loaded.
    """
    command = [verl_python(), "-m", "verl.model_merger", "merge", "--backend", "fsdp", "--local_dir", str(folder / "actor"), "--target_dir", str(out)]
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "")}
    variables.pop("PYTHONPATH", None)  # of this environment; the other one has packages of its own
    done = subprocess.run(command, capture_output=True, text=True, env=variables, stdin=subprocess.DEVNULL)
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
        raise EngineError(f"verl's merger failed on {folder / 'actor'}: {lines[-1] if lines else f'exit code {done.returncode}'}")
    if not (out / "config.json").is_file() or not any(out.glob("*.safetensors")):
        raise EngineError(f"verl's merger wrote no model to {out}", fix=f"run it yourself: {' '.join(command)}")
    yourself = f"run it yourself: {' '.join(command)}"
    try:
        missing = loading(out).missing
    except DataError as error:
        raise EngineError(f"verl's merger wrote a model that cannot be loaded: {error}", fix=yourself) from error
    if missing:
        raise EngineError(f"the model that verl's merger wrote lacks {len(missing)} of its weights, first {missing[0]}", fix=yourself)
    if not (out / _ADAPTER).is_dir():
        return False
    if scale_is_lost(out / _ADAPTER):
        file = folder / "actor" / "lora_train_meta.json"
        raise DataError(
            f"the scale of the LoRA adapter is unknown: {file} does not say lora_alpha", fix='write {"r": RANK, "lora_alpha": ALPHA} of the training there'
        )
    if not _add_adapter(out) and refuse_unchanged:
        raise DataError(f"the LoRA adapter in {folder / 'actor'} changes no weight of its base", fix=UNCHANGED_FIX)
    return True


def unchanged(out: Path, base: Path) -> bool | None:
    """Whether ``out`` has the weights of ``base``, in the precision of ``out``; None if no weight has one name in both, or one cannot be loaded.

    A weight that only one of them has makes them different, unless no model of that architecture has it (nothing loads it), or it is a copy of another
    weight of the same folder: an output layer that is tied to the embedding is written by some programs and not by others.
    """
    import torch

    with ExitStack() as stack:
        mine, theirs = (_tensors(folder, stack) for folder in (out, base))
        shared = sorted(mine.keys() & theirs.keys())
        if not shared:
            return None
        for name in shared:
            tensor = mine[name]()
            if not torch.equal(tensor, theirs[name]().to(tensor.dtype)):
                return False
        try:
            return not (_count(mine.keys() - theirs.keys(), mine, out) or _count(theirs.keys() - mine.keys(), theirs, base))
        except DataError:  # weights of an architecture that nobody here knows
            return None


def _count(only: Collection[str], tensors: Mapping[str, Callable[[], Any]], folder: Path) -> bool:
    """Whether one of these weights, which only this folder has, makes its model another one."""
    import torch

    if not only:
        return False
    found = loading(folder)
    for name in only:
        if not found.loads(name):
            continue
        tensor = tensors[name]()
        others = (read() for other, read in tensors.items() if other not in only)
        if not any(other.dtype == tensor.dtype and torch.equal(other, tensor) for other in others):
            return True
    return False


def _tensors(folder: Path, stack: ExitStack) -> dict[str, Callable[[], Any]]:
    """For every weight in a folder's safetensors files, what reads it."""
    from safetensors import safe_open

    opened = [stack.enter_context(safe_open(file, "pt")) for file in sorted(folder.glob("*.safetensors"))]
    return {name: partial(file.get_tensor, name) for file in opened for name in list(file.keys())}


def _add_adapter(out: Path) -> bool:
    """Of a policy trained with LoRA the merger writes the base, unchanged, and the adapter beside it; this makes one model of the two.

    Returns:
        Whether it is another than the base.
    """
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
        apart = Path(scratch) / "apart"
        shutil.copytree(out, apart)
        for path in out.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return merge_adapter(apart / _ADAPTER, str(apart), out, refuse_unchanged=False)
