"""Fine-tuning SmolLM2 on an oracle's episodes, as ``warm-start --model smollm2`` does it."""

from __future__ import annotations

from pathlib import Path

from threespo_plugins.models.fine_tuning import Progress, WarmStartOptions, fine_tune
from threespo_plugins.models.smollm2 import path

__all__ = ["WarmStartOptions", "warm_start"]


def warm_start(out: Path, seed: int = 0, options: WarmStartOptions | None = None, progress: Progress = lambda *_: None) -> Path:
    """Write the fine-tuned model to ``out``; see :func:`~threespo_plugins.models.fine_tuning.fine_tune`."""
    return fine_tune(path(), out, seed, options, progress)
