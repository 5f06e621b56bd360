"""``experiment.json``: the plan of a comparison, where each run stands, and what the runs of a seed have in common.

    runs           a row per run, in the order of the plan: name, algorithm, env, seed, budget, state, error, folder, identity, process
    must_match     what must be equal for a seed across algorithms
    matched        for every environment and seed the values of that, and the differences
    tracker_run    the comparison's own run in the tracker

Carrying out more of an experiment (another seed, another algorithm) adds rows and leaves the others.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from threespo_bench import matching
from threespo_bench.atomic import write_json

RECORD = "experiment.json"
WAITING = ("planned", "running")
_LOCK = ".experiment.lock"


class ExperimentRecord:
    """The record of the experiment in ``folder``; there need be none yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._thread_lock = threading.Lock()
        self._conditions: dict[str, dict[str, Any]] = {}

    def read(self) -> dict[str, Any]:
        """All of it; empty if there is none or it is damaged."""
        try:
            record = json.loads((self.folder / RECORD).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}

    def rows(self) -> dict[str, dict[str, Any]]:
        """The rows of the runs, by name."""
        found = self.read().get("runs")
        return {row["name"]: row for row in found if isinstance(row, dict) and "name" in row} if isinstance(found, list) else {}

    def others(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """The rows of runs that are not among ``names`` and that exist, or that another process is about to make."""
        mine = set(names)
        return [row for name, row in self.rows().items() if name not in mine and (self.run(row) is not None or is_expected(row))]

    def run(self, row: Mapping[str, Any]) -> Path | None:
        """The folder of a row's run, if it is there."""
        path = self.folder / str(row.get("run") or "")
        return path if row.get("run") and path.is_dir() else None

    def write(self, rows: list[dict[str, Any]], tracker_run: str | None) -> list[str]:
        """Replace the rows of these names, keep the others. Returns a line for everything that should match and does not."""
        with self._thread_lock, FileLock(self.folder / _LOCK):
            everything = [*self.others(row["name"] for row in rows), *rows]
            matched = matching.match(row | {"conditions": self._of(row)} for row in everything)
            write_json(self.folder / RECORD, {"runs": everything, "must_match": list(matching.MUST_MATCH), "matched": matched, "tracker_run": tracker_run})
        return matching.warnings(matched)

    def _of(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """What the manifest of a row's run says; read again only while the run can change it."""
        path = self.run(row)
        if path is None:
            return {}
        if row["state"] in WAITING or path.name not in self._conditions:
            self._conditions[path.name] = matching.conditions(path)
        return self._conditions[path.name]


def this_process() -> dict[str, Any]:
    """What a row says about the process that will carry it out."""
    return {"pid": os.getpid(), "host_name": socket.gethostname()}


def is_expected(row: Mapping[str, Any]) -> bool:
    """Whether a run that has not begun will still be begun: its process lives. Of another machine nobody can tell, so it is believed."""
    process = row.get("process") or {}
    if row.get("state") not in WAITING or "pid" not in process:
        return False
    if process.get("host_name") != socket.gethostname():
        return True
    with suppress(OSError):
        os.kill(int(process["pid"]), 0)
        return True
    return False
