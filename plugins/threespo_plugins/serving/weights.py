"""Weights from one process to another on the same machine, through a file in shared memory where there is some."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from threespo_bench.contracts.rollout import Weights
from threespo_bench.errors import StorageError

_SHARED_MEMORY = Path("/dev/shm")
_FILE = "model.safetensors"


class StoredWeights(Weights):
    """Those of a Hugging Face folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """See :meth:`Weights.tensors`."""
        from safetensors import safe_open

        for file in sorted(self._folder.glob("*.safetensors")):
            with safe_open(file, "pt") as opened:
                yield from ((name, opened.get_tensor(name)) for name in opened.keys())  # noqa: SIM118, it is no dictionary

    def write(self, folder: Path) -> None:
        """See :meth:`Weights.write`."""
        shutil.copytree(self._folder, folder, dirs_exist_ok=True)


class WeightsFolder:
    """A folder of one's own that weights are put into, one set at a time.

    Args:
        parent: where; None means shared memory, or else the folder of temporary files.

    Attributes:
        path: the folder.

    Raises:
        StorageError: it cannot be made.
    """

    def __init__(self, parent: str | Path | None = None) -> None:
        if parent is None:
            parent = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else tempfile.gettempdir()
        else:
            parent = Path(parent).expanduser()
        try:
            Path(parent).mkdir(parents=True, exist_ok=True)
            self.path = Path(tempfile.mkdtemp(prefix="threespo-weights-", dir=parent))
        except OSError as error:
            raise StorageError(f"no folder for weights can be made in {parent}: {error}", fix="rollout.weights_folder=FOLDER") from error

    @contextmanager
    def holding(self, tensors: Iterable[tuple[str, Any]], dtype: str = "float32") -> Iterator[Path]:
        """While it is open, the folder that it gives holds (name, torch tensor) as ``model.safetensors`` in ``dtype`` (``float32``, ``bfloat16``).

        Raises:
            StorageError: they cannot be written, for example because they do not fit.
        """
        import torch
        from safetensors.torch import save_file

        held: dict[str, torch.Tensor] = {}
        places: set[int] = set()
        for name, tensor in tensors:
            copy = tensor.detach().to("cpu", getattr(torch, dtype)).contiguous()
            held[name] = copy.clone() if copy.data_ptr() in places else copy  # the format knows no shared tensors
            places.add(copy.data_ptr())
        # A new folder each time: a reader that still maps the former file keeps it.
        try:
            folder = Path(tempfile.mkdtemp(dir=self.path))
        except OSError as error:
            raise StorageError(f"weights cannot be written to {self.path}: {error}", fix="rollout.weights_folder=FOLDER") from error
        try:
            try:
                save_file(held, folder / _FILE, metadata={"format": "pt"})
            except Exception as error:  # safetensors has its own error for a full disk
                size = sum(tensor.nbytes for tensor in held.values()) / 2**30
                raise StorageError(f"weights of {size:.2f} GiB cannot be written to {folder}: {error}", fix="rollout.weights_folder=FOLDER") from error
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Remove it. May be called more than once."""
        shutil.rmtree(self.path, ignore_errors=True)
