"""Checkpoints that are complete or not there: written aside, listed with the digest of every file, then renamed.

A checkpoint folder ``iteration-000004`` is trusted only if its ``complete.json`` exists and every file has the size and SHA-256 written
there. A kill at any moment leaves at most a hidden temporary folder, or one that fails this test; the one before is then used.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from threespo_bench.atomic import sha256, storage_error, storage_errors, sync_file, sync_folder, write_json
from threespo_bench.errors import BenchError, PluginError, StorageError

_COMPLETE = "complete.json"
_NAME = re.compile(r"iteration-(\d+)")
_TEMPORARY = ".writing-"
_WRITE_FAILURES = ("no space left", "file write failed", "disk quota", "file too large", "os error")


@dataclass(frozen=True)
class SavedCheckpoint:
    """A complete checkpoint: its folder, the iterations done when it was written, and the notes written with it."""

    folder: Path
    iteration: int
    notes: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: their parent. keep: how many of the newest stay.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep

    def write(self, iteration: int, fill: Callable[[Path], None], notes: dict[str, Any]) -> SavedCheckpoint:
        """Write the checkpoint of ``iteration`` and drop the oldest ones.

        Args:
            fill: writes the content into the folder it is given. notes: plain data kept beside it.

        Raises:
            StorageError: it could not be written; what was there before is untouched and nothing half-written stays.
        """
        final = self.folder / f"iteration-{iteration:06d}"
        temporary = self.folder / f"{_TEMPORARY}{final.name}"
        try:
            with storage_errors(f"write the checkpoint of iteration {iteration}"):
                self.clean()
                temporary.mkdir(parents=True)
                _fill(fill, temporary, iteration)
                _seal(temporary, iteration, notes)
                if final.exists():
                    shutil.rmtree(final)
                os.replace(temporary, final)
                sync_folder(self.folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        self._prune()
        return SavedCheckpoint(final, iteration, notes)

    def newest(self, report: Callable[[str], None]) -> SavedCheckpoint | None:
        """The newest complete checkpoint, or None if none was ever written. ``report`` is told about each one that is skipped.

        Raises:
            StorageError: there are checkpoints, and not one is complete.
        """
        folders = self._folders()
        for iteration, folder in reversed(folders):
            problem = damage(folder)
            if problem is None:
                return SavedCheckpoint(folder, iteration, _read_list(folder)["notes"])
            report(f"checkpoint {folder.name} is skipped: {problem}")
        if folders:
            raise StorageError(
                f"no usable checkpoint in {self.folder}: all {len(folders)} are damaged",
                fix=f"start over with a new run, or delete {self.folder} and resume from nothing",
            )
        return None

    def forget_after(self, iteration: int) -> None:
        """Remove checkpoints newer than ``iteration``: the run goes on from there and will write them again."""
        with storage_errors("remove damaged checkpoints"):
            for newer, folder in self._folders():
                if newer > iteration:
                    shutil.rmtree(folder)

    def clean(self) -> None:
        """Remove what a killed writer left behind."""
        for leftover in self.folder.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(leftover)

    def _folders(self) -> list[tuple[int, Path]]:
        if not self.folder.is_dir():
            return []
        matches = [(_NAME.fullmatch(path.name), path) for path in self.folder.iterdir()]
        return sorted((int(match[1]), path) for match, path in matches if match)

    def _prune(self) -> None:
        for _, folder in self._folders()[: -self.keep]:
            shutil.rmtree(folder, ignore_errors=True)


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint folder, or None: a missing list, a missing file, or one whose size or digest is not the listed one."""
    try:
        listed = _read_list(folder)["files"]
        for name, expected in listed.items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != expected["bytes"] or sha256(path) != expected["sha256"]:
                return f"{name} is not what was written"
    except FileNotFoundError:
        return f"it has no {_COMPLETE}: it was not finished"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"it cannot be read ({error})"
    return None


def write_state(folder: Path, name: str, state: dict[str, Any], owner: str) -> None:
    """Write a ``state_dict`` as ``name.json`` and, for its arrays, ``name.npz``.

    Raises:
        PluginError: it holds something else than JSON types and NumPy arrays; names ``owner`` and the place.
    """
    arrays: dict[str, np.ndarray] = {}
    encoded = _encode(state, arrays, owner, name)
    (folder / f"{name}.json").write_text(json.dumps(encoded, ensure_ascii=False), encoding="utf-8")
    if arrays:
        np.savez(folder / f"{name}.npz", allow_pickle=False, **arrays)


def read_state(folder: Path, name: str) -> dict[str, Any]:
    """Read what :func:`write_state` wrote."""
    encoded = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    path = folder / f"{name}.npz"
    if not path.exists():
        return _decode(encoded, {})
    with np.load(path, allow_pickle=False) as arrays:
        return _decode(encoded, arrays)


def _encode(value: Any, arrays: dict[str, np.ndarray], owner: str, place: str) -> Any:
    """JSON for ``value`` with every array replaced by a reference; anything that would come back changed is refused."""
    if value is None or (isinstance(value, (bool, int, float, str)) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
        name = f"a{len(arrays)}"
        arrays[name] = np.asarray(value)
        return {"__array__": name, "scalar": isinstance(value, np.generic)}
    if isinstance(value, list):
        return [_encode(item, arrays, owner, f"{place}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value) and "__array__" not in value:
        return {key: _encode(item, arrays, owner, f"{place}.{key}") for key, item in value.items()}
    kind = "a dict whose keys are not all strings" if isinstance(value, dict) else f"a {type(value).__name__}"
    raise PluginError(f"{owner} cannot be checkpointed: {place} is {kind}", fix="state_dict() must hold only JSON types and NumPy arrays")


def _decode(value: Any, arrays: Any) -> Any:
    if isinstance(value, dict):
        if "__array__" in value:
            array = arrays[value["__array__"]]
            return array[()] if value["scalar"] else array
        return {key: _decode(item, arrays) for key, item in value.items()}
    return [_decode(item, arrays) for item in value] if isinstance(value, list) else value


def _fill(fill: Callable[[Path], None], folder: Path, iteration: int) -> None:
    """Call ``fill``. Serialisers report a full disk as errors of their own types; those become StorageErrors, anything else is a defect and passes."""
    try:
        fill(folder)
    except (OSError, BenchError):
        raise
    except Exception as error:
        text = str(error).strip().split("\n")[0]
        if shutil.disk_usage(folder).free < 1 << 16 or any(sign in str(error).lower() for sign in _WRITE_FAILURES):
            full = storage_error(f"write the checkpoint of iteration {iteration}", OSError(28, text))
            raise full from error
        raise


def _seal(folder: Path, iteration: int, notes: dict[str, Any]) -> None:
    """Make every file durable and list it with its size and digest; the list is written last."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        sync_file(path)
        files[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    for path in folder.rglob("*"):
        if path.is_dir():
            sync_folder(path)
    write_json(folder / _COMPLETE, {"iteration": iteration, "notes": notes, "files": files})


def _read_list(folder: Path) -> dict[str, Any]:
    return json.loads((folder / _COMPLETE).read_text(encoding="utf-8"))
