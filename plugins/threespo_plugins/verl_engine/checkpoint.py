"""A model's state on disk: the shards that verl's checkpoint manager writes, one a rank, and our counters. The folder is new and empty."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threespo_bench.errors import EngineError, StorageError

if TYPE_CHECKING:
    from threespo_plugins.verl_engine.groups import Workers
    from threespo_plugins.verl_engine.policy import RemotePolicy

ACTOR, CRITIC = "actor", "critic"
"""Folders of the shards, as verl calls them; the counters stand beside them, in ``actor.json`` and ``critic.json``."""
_HUGGING_FACE = "huggingface"  # in such a folder, where verl's merger looks for configuration and tokenizer
_REFERENCE = "reference"


def save(folder: Path, name: str, workers: Workers, policy: RemotePolicy, state: Mapping[str, object]) -> None:
    """Write weights, optimiser, a refreshed reference policy, and counters. ``name``: one of :data:`ACTOR` and :data:`CRITIC`."""
    folder.mkdir(parents=True, exist_ok=True)
    workers.all("save_checkpoint", str(folder / name))
    policy.tokenizer.save_pretrained(folder / name / _HUGGING_FACE)
    if state.get("refreshed"):
        workers.all("save_reference", str(folder / _REFERENCE))
    (folder / f"{name}.json").write_text(json.dumps({**state, "ranks": workers.ranks}, indent=1))


def check_ranks(folder: Path, name: str, ranks: int) -> dict[str, Any]:
    """Require that so many ranks wrote the folder; returns the counters.

    Raises:
        StorageError: there are no counters, or it was another number of ranks.
    """
    try:
        state = dict(json.loads((folder / f"{name}.json").read_text()))
        written = state["ranks"]
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise StorageError(f"{folder} is not a usable checkpoint of the learner: {error}") from error
    if written != ranks:
        fix = f"engine.ranks x engine.nodes must be {written} (to resume a run, in its config.yaml); threespo-bench merge makes a model for any number"
        raise StorageError(f"{folder} was written by {written} rank{'s' * (written != 1)}, and there are {ranks} now", fix=fix)
    return state


def load(folder: Path, name: str, workers: Workers, refreshed: bool = False) -> dict[str, Any]:
    """Put back weights, optimiser and reference policy; returns the counters.

    Args:
        refreshed: the present reference policy is not that of the starting weights.

    Raises:
        StorageError: the folder is not such a checkpoint of this model, or of another number of ranks.
    """
    state = check_ranks(folder, name, workers.ranks)
    missing = [rank for rank in range(workers.ranks) for kind in ("model", "optim") if not _shard(folder / name, kind, rank, workers.ranks).is_file()]
    if missing:
        raise StorageError(f"{folder / name} lacks the shard of rank {missing[0]}", fix="all nodes must see one folder: put the runs on shared storage")
    try:
        workers.all("load_checkpoint", str(folder / name))
        if state.get("refreshed"):
            workers.all("load_reference", str(folder / _REFERENCE))
        elif refreshed:
            workers.all("reset_reference")
    except EngineError as error:
        raise StorageError(f"{folder} is not a usable checkpoint of the learner: {error}", fix=error.fix) from error
    return state


def _shard(folder: Path, kind: str, rank: int, ranks: int) -> Path:
    return folder / f"{kind}_world_size_{ranks}_rank_{rank}.pt"
