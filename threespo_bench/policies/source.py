"""What a user may name as a checkpoint, and how it becomes a Hugging Face folder."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

from threespo_bench.checkpointing import Checkpoints, SavedCheckpoint, damage
from threespo_bench.errors import DataError, StorageError, suggest
from threespo_bench.host import PluginHost
from threespo_bench.store import CONFIG

RUN, FOLDER, ADAPTER, SHARDS, MODEL = "run", "folder", "adapter", "shards", "model"
_CHECKPOINT = re.compile(r"iteration-(\d+)")
_MERGE_ADAPTER = "threespo_plugins.lora:merge_adapter"
_MERGE_SHARDS = "threespo_plugins.verl_engine.merging:merge_shards"
_UNCHANGED = "threespo_plugins.verl_engine.merging:unchanged"
SHARDING_ENGINE = "verl"
"""The engine whose checkpoints are shards; any other one gets them merged."""


@dataclass(frozen=True)
class Source:
    """A policy that was found.

    Attributes:
        text: how the user named it.
        kind: ``run`` (a checkpoint of ours), ``folder`` (Hugging Face), ``adapter`` (LoRA), ``shards`` (verl) or ``model`` (registered).
        path: the run folder, the model folder, the adapter folder or the folder with the shards; None for a registered model.
        checkpoint: of a run.
        base: the model an adapter belongs to, if it was named.
    """

    text: str
    kind: str
    path: Path | None
    checkpoint: SavedCheckpoint | None = None
    base: str | None = None

    def __str__(self) -> str:
        if self.checkpoint is not None:
            return f"{self.path}, iteration {self.checkpoint.iteration}"
        return str(self.path or self.text)


def find(text: str, host: PluginHost, base: str | None = None, report: Callable[[str], None] = lambda text: None) -> Source:
    """The policy that ``text`` names. A registered name wins over a folder, which can always be written ``./NAME``.

    Args:
        base: the model an adapter belongs to. report: told of damaged checkpoints that were passed over.

    Raises:
        DataError: it is nothing of this kind. StorageError: the run has no usable checkpoint.
    """
    if text in host.names("models"):
        return Source(text, MODEL, None)
    path = Path(text).expanduser()
    if not path.is_dir():
        raise DataError(f"there is no folder {text}, and no model of that name", fix=suggest(text, host.names("models")))
    path = path.resolve()
    if (path / CONFIG).is_file():
        return Source(text, RUN, path, _newest(path, report))
    if _CHECKPOINT.fullmatch(path.name) and (path.parent.parent / CONFIG).is_file():
        return Source(text, RUN, path.parent.parent, _checkpoint(path))
    if (path / "adapter_config.json").is_file():
        return Source(text, ADAPTER, path, base=base)
    shards = shards_in(path)
    if shards is not None:
        return Source(text, SHARDS, shards)
    if (path / "config.json").is_file():
        return Source(text, FOLDER, path)
    raise DataError(
        f"{text} holds no policy: neither config.yaml of a run, nor adapter_config.json, nor config.json of a model, nor shards of verl",
        fix="name a run folder, a folder under its checkpoints, a Hugging Face folder, a LoRA folder, or a model that threespo-bench list shows",
    )


def shards_in(folder: Path) -> Path | None:
    """The folder whose ``actor`` holds model shards as verl's FSDP engines write them: this one, its ``learner``, or the parent of an ``actor``."""
    for parent in (folder, folder / "learner", folder.parent):
        actor = parent / "actor"
        if (parent != folder.parent or folder.name == "actor") and (actor / "huggingface").is_dir() and any(actor.glob("model_world_size_*_rank_*.pt")):
            return parent
    return None


def as_shards(source: Source) -> Source | None:
    """The shards of a run's checkpoint, or shards themselves; None for anything else."""
    if source.kind == SHARDS:
        return source
    shards = shards_in(source.checkpoint.folder) if source.checkpoint is not None else None
    return None if shards is None else replace(source, kind=SHARDS, path=shards)


def run_of(source: Source) -> Path | None:
    """The run that the shards belong to, if they lie in one."""
    assert source.path is not None
    return next((folder for folder in source.path.parents[:3] if (folder / CONFIG).is_file()), None)


@contextmanager
def model_folder(source: Source, host: PluginHost, starting_model: Callable[[], str]) -> Iterator[str]:
    """The Hugging Face folder that an engine can be built on: of a run, ``starting_model``; adapters and shards are merged into one for the while."""
    if source.kind == RUN:
        yield starting_model()
    elif source.kind == FOLDER:
        yield str(source.path)
    elif source.kind == MODEL:
        yield registered_model(source.text, host)
    else:
        with tempfile.TemporaryDirectory(prefix="threespo-bench-") as scratch:
            out = Path(scratch) / "model"
            merge_into(source, host, out, refuse_unchanged=False)
            yield str(out)


def merge_into(source: Source, host: PluginHost, out: Path, *, refuse_unchanged: bool = True) -> bool:
    """Write an adapter's or shards' model to the new folder ``out``; tells whether it was an adapter, which is compared with its base here."""
    assert source.path is not None
    if source.kind == ADAPTER:
        base = registered_model(source.base, host) if source.base in host.names("models") else source.base
        _function(_MERGE_ADAPTER)(source.path, base, out, refuse_unchanged=refuse_unchanged)
        return True
    return bool(_function(_MERGE_SHARDS)(source.path, out, refuse_unchanged=refuse_unchanged))


def unchanged(out: Path, base: Path) -> bool | None:
    """The merged model is its base, in the precision of the merged one; None if it cannot be told: no weights of the same names, or no model."""
    answer = _function(_UNCHANGED)(out, base)
    return None if answer is None else bool(answer)


def registered_model(name: str | None, host: PluginHost) -> str:
    """The folder of a registered model."""
    return str(host.find("models", name or "").load()())


def _function(target: str) -> Callable[..., object]:
    """A built-in plugin's function; the host imports no plugin before one is needed."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def _newest(run: Path, report: Callable[[str], None]) -> SavedCheckpoint:
    newest = Checkpoints(run / "checkpoints").newest(report)
    if newest is None:
        raise StorageError(f"the run in {run} has no checkpoint yet", fix="wait for its first checkpoint, or name the model that it starts from")
    return newest


def _checkpoint(folder: Path) -> SavedCheckpoint:
    problem = damage(folder)
    if problem is not None:
        raise StorageError(f"checkpoint {folder} cannot be used: {problem}", fix="name the run folder: its newest complete checkpoint is then taken")
    match = _CHECKPOINT.fullmatch(folder.name)
    assert match is not None
    return SavedCheckpoint(folder, int(match[1]), {})
