"""``tracking.json`` in the folder of a run or a comparison: which trackers have a copy of it, and whether that copy is complete.

``id`` is what a tracker finds the copy by; ``copies`` has, by tracker and address, the tracker's run, the digest of what was copied, and whether all arrived.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from threespo_bench.atomic import digest_of, sha256, write_json
from threespo_bench.store import CONFIG, METRICS

TRACKING = "tracking.json"


@dataclass(frozen=True)
class Copy:
    """One copy.

    Attributes:
        run: the tracker's id; None if it could not even be opened. content: digest of what was copied. complete: all of it arrived.
    """

    run: str | None
    content: str = ""
    complete: bool = False


class TrackingRecord:
    """The record in ``folder``; there need be none yet."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / TRACKING

    @property
    def id(self) -> str:
        """The folder's identity for trackers, made when it is first asked for. Raises StorageError."""
        found = self._read()
        if not found.get("id"):
            found["id"] = uuid.uuid4().hex
            write_json(self._path, found)
        return str(found["id"])

    def known(self) -> bool:
        """Whether anything was ever recorded."""
        return bool(self._copies())

    def copy(self, key: str) -> Copy | None:
        """The copy under ``key`` (:func:`key_of`)."""
        found = self._copies().get(key)
        return Copy(found.get("run"), str(found.get("content", "")), bool(found.get("complete"))) if isinstance(found, dict) else None

    def write(self, key: str, copy: Copy) -> None:
        """Replace the copy under ``key``. Raises StorageError."""
        found = self._read()
        write_json(self._path, found | {"copies": self._copies() | {key: asdict(copy)}})

    def _copies(self) -> dict[str, Any]:
        copies = self._read().get("copies")
        return copies if isinstance(copies, dict) else {}

    def _read(self) -> dict[str, Any]:
        try:
            record = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}


def key_of(tracker: str, target: str) -> str:
    """Under which name a copy is recorded."""
    return f"{tracker} {target}".strip()


def run_content(path: Path, state: str) -> str:
    """Digest of all that a tracker gets of the run in ``path``."""
    files = {name: sha256(path / name) for name in (CONFIG, METRICS) if (path / name).is_file()}
    return digest_of(files | {"state": state})


def comparison_content(report: Path, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Digest of all that a tracker gets of a comparison: the files of its report, and where its runs stand."""
    files = {path.relative_to(report).as_posix(): sha256(path) for path in sorted(report.rglob("*")) if path.is_file()} if report.is_dir() else {}
    return digest_of({"report": files, "runs": {name: row.get("state") for name, row in rows.items()}})
