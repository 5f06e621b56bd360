"""From a checkpoint to an ordinary Hugging Face folder, whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from threespo_bench.assembly import model_path
from threespo_bench.atomic import storage_errors
from threespo_bench.config.plain import from_plain
from threespo_bench.errors import BenchError, DataError, UsageError
from threespo_bench.host import PluginHost
from threespo_bench.policies.opened import restore, started_engine
from threespo_bench.policies.source import FOLDER, MODEL, RUN, Source, as_shards, merge_into, run_of, unchanged
from threespo_bench.store import read_config


def merge(source: Source, host: PluginHost, out: Path, report: Callable[[str], None] = lambda text: None) -> Path:
    """Write the policy to ``out`` as a Hugging Face folder: weights, configuration, tokenizer.

    Args:
        out: does not exist, or is an empty folder.
        report: told if the result could not be compared with what it was trained from.

    Raises:
        UsageError: ``out`` is in use, or the source is such a folder already.
        DataError: the result would be the base itself: nothing was learned, or the adapter is zero.
        StorageError: it cannot be written; then nothing is left in ``out``.
    """
    if source.kind in (FOLDER, MODEL):
        raise UsageError(f"{source.text} is an ordinary model already: there is nothing to merge", fix="use it as it is")
    with new_folder(out) as draft:
        shards = as_shards(source)
        if shards is not None:
            if not merge_into(shards, host, draft):
                _compare(shards, host, draft, report)
        elif source.kind == RUN:
            _export(source, host, draft)
        else:
            merge_into(source, host, draft)
    return out


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """An empty folder beside ``out`` that takes its place at the end, unless the block raises. Raises UsageError if ``out`` is in use."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UsageError(f"{out} is there already and is not an empty folder", fix="choose another name: nothing is overwritten")
    with storage_errors(f"write {out}"):
        out.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        try:
            yield draft
            draft.chmod(0o755)
            os.replace(draft, out)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _compare(shards: Source, host: PluginHost, merged: Path, report: Callable[[str], None]) -> None:
    """Raises DataError if the merged weights are those that the run of the shards started from, as far as that can be told."""
    run = run_of(shards)
    if run is None:
        report("not compared with what it was trained from: the shards are in no run folder, so nothing names those weights")
        return
    try:
        base = Path(model_path(from_plain(read_config(run), host), host)).expanduser()
    except BenchError as error:
        report(f"not compared with what it was trained from: {error}")
        return
    same = unchanged(merged, base)
    if same is None:
        report(f"not compared with what it was trained from: {base} has no weights of the same names, or is no model that can be loaded")
    elif same:
        raise DataError(
            f"{shards}: the weights are those that the run started from, in the precision that verl's merger writes, bfloat16",
            fix="there is nothing to merge; use the starting model",
        )


def _export(source: Source, host: PluginHost, folder: Path) -> None:
    """Load the checkpoint into its engine and let that write the policy."""
    assert source.path is not None
    config = from_plain(read_config(source.path), host)
    with started_engine(source, config, host) as (engine, algorithm):
        assert algorithm is not None
        start = engine.digest()
        restore(source, engine, algorithm)
        if engine.digest() == start:
            raise DataError(f"{source}: the weights are those that the run started from", fix="there is nothing to merge; use the starting model")
        engine.learner.export(folder)
