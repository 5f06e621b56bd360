"""Helpers for tests that run whole runs."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.runner import toy_bench
from threespo_bench.recorder import NoProgress


class Watcher(NoProgress):
    """A progress display that remembers, and presses Ctrl-C at the given iteration.

    Args:
        stop_at: iteration after which to interrupt; 0 is at the first evaluation. presses: how often.
    """

    def __init__(self, stop_at: int | None = None, presses: int = 1) -> None:
        self.stop_at, self.presses = stop_at, presses
        self.messages: list[str] = []
        self.rows: list[Mapping[str, Any]] = []
        self.ticks = 0

    def tick(self) -> None:
        self.ticks += 1

    def iteration(self, row: Mapping[str, Any]) -> None:
        self.rows.append(row)
        if row["iteration"] == self.stop_at:
            self._press()

    def evaluation(self, row: Mapping[str, Any]) -> None:
        self.rows.append(row)
        if row["iteration"] == self.stop_at == 0:
            self._press()

    def message(self, text: str) -> None:
        self.messages.append(text)

    def _press(self) -> None:
        for _ in range(self.presses):
            signal.raise_signal(signal.SIGINT)


def fingerprint(run: Path) -> dict[str, bytes]:
    """Everything that must be equal between equal runs: the metrics and the digests of all files of the newest checkpoint."""
    newest = sorted((run / "checkpoints").iterdir())[-1]
    return {"metrics": (run / "metrics.jsonl").read_bytes(), newest.name: (newest / "complete.json").read_bytes()}


@pytest.fixture
def host():
    return toy_bench.host()


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of ten iterations."""
    from threespo_bench.runner import run

    return run(toy_bench.configuration(tmp_path_factory.mktemp("reference"), "save_turns=true"), toy_bench.host()).run
