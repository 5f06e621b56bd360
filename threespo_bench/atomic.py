"""Writing files so that a reader sees the old content or the new one, whatever kills the writer; and so that a full disk is one clear line."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from threespo_bench.errors import StorageError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def storage_errors(doing: str) -> Iterator[None]:
    """Turn an OSError inside the block into a StorageError that says what could not be done and why."""
    try:
        yield
    except OSError as error:
        raise storage_error(doing, error) from error


def storage_error(doing: str, error: OSError) -> StorageError:
    """The StorageError for ``error``, met while ``doing``."""
    if error.errno in _FULL:
        fix = "make room on the disk, then continue the run with --resume: everything measured up to the last checkpoint is kept"
        return StorageError(f"cannot {doing}: the disk is full ({error.strerror})", fix=fix)
    return StorageError(f"cannot {doing}: {error.strerror or error}")


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text``, atomically and durably. Raises StorageError; the old content then stays."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with storage_errors(f"write {path.name}"):
            with open(temporary, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_folder(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` by ``value`` as indented JSON, atomically and durably."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def sync_folder(folder: Path) -> None:
    """Make renames and new names in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a folder; a rename is then as durable as they make it.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make the content of ``path`` durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def digest_of(value: Any) -> str:
    """Hexadecimal SHA-256 of plain data, independent of the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
