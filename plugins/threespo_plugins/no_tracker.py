"""The tracker that tracks nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from threespo_bench.contracts.tracker import Tracker


@dataclass
class NoTrackerConfig:
    """No options."""


class NoTracker(Tracker):
    """The run folder stays the only record."""

    Config: ClassVar[type] = NoTrackerConfig

    def start(self, experiment: str, run_name: str, params: dict[str, Any], tags: dict[str, str], parent: str | None, resume: str | None) -> str:
        """Nothing to open."""
        return ""

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Nothing to write."""

    def artifact(self, path: Path) -> None:
        """Nothing to keep."""

    def finish(self, status: str) -> None:
        """Nothing to close."""
