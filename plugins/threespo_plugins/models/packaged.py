"""Models that ship with this distribution: a folder ``files`` beside the module that names them."""

from __future__ import annotations

from pathlib import Path

from threespo_bench.errors import DataError


def packaged_model(module_file: str, name: str) -> Path:
    """The folder with the weights and the tokenizer.

    Args:
        module_file: ``__file__`` of the model's package. name: what the model is called in ``model=NAME``.

    Raises:
        DataError: it was not packaged.
    """
    folder = Path(module_file).parent / "files"
    if not (folder / "config.json").is_file():
        raise DataError(f"{name} is not in {folder}", fix=f"make it: threespo-bench warm-start --model {name} --out FOLDER, then set model.path=FOLDER")
    return folder
