"""Which weights of a Hugging Face folder its model loads, and which it lacks, as transformers sees it."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from threespo_bench.errors import DataError
from threespo_plugins.messages import first_line

_OPTIONS: dict[str, Any] = {"dtype": "auto", "output_loading_info": True, "local_files_only": True}


@dataclass(frozen=True)
class Loading:
    """What loading a folder would do.

    Attributes:
        missing: names of weights that the model has and the folder has not, sorted; tied ones are not missing.
    """

    missing: tuple[str, ...]
    _unexpected: frozenset[str]
    _ignored: tuple[str, ...]

    def loads(self, name: str) -> bool:
        """Whether a weight that may be in the folder's files has a place in the model."""
        return name not in self._unexpected and not any(re.search(pattern, name) for pattern in self._ignored)


def loading(folder: Path) -> Loading:
    """What loading the model in ``folder`` would do. Raises DataError if it cannot be loaded."""
    import transformers
    from transformers.utils import logging

    before, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        architectures = transformers.AutoConfig.from_pretrained(folder, local_files_only=True).architectures or ()
        model_class = getattr(transformers, next(iter(architectures), ""), transformers.AutoModelForCausalLM)
        model, found = _load(model_class, folder)
    except Exception as error:  # transformers raises whatever its parts raise
        raise DataError(f"model folder {folder} cannot be loaded: {first_line(error)}") from error
    finally:
        logging.set_verbosity(before)
        if bar:
            logging.enable_progress_bar()
    ignored = tuple(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ())
    return Loading(tuple(sorted(found["missing_keys"])), frozenset(found["unexpected_keys"]), ignored)


def _load(model_class: Any, folder: Path) -> tuple[Any, dict[str, Any]]:
    """The model and what was said about loading it; without its weights where that is possible."""
    if find_spec("accelerate") is not None:
        with contextlib.suppress(NotImplementedError):  # of torch, where transformers compares an output layer with the embedding
            return model_class.from_pretrained(folder, device_map="meta", **_OPTIONS)
    return model_class.from_pretrained(folder, **_OPTIONS)
