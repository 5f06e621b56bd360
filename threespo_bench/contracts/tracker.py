"""What a tracker offers: a copy of a run's numbers in somebody's favourite tool. The run store stays the source of truth."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar


class Tracker(ABC):
    """One run's connection to a tracking tool. The host wraps every call: what it raises is warned about once and never stops training.

    Attributes:
        Config: dataclass of options under ``tracker.``.
    """

    Config: ClassVar[type]

    def __init__(self, config: Any, runs_folder: Path) -> None:
        self.config, self.runs_folder = config, runs_folder

    @abstractmethod
    def start(self, experiment: str, run_name: str, params: dict[str, Any], tags: dict[str, str], parent: str | None, resume: str | None) -> str:
        """Open (or with ``resume`` re-open) a run and return its id. ``parent`` is the id of a comparison's parent run."""

    @abstractmethod
    def log(self, metrics: dict[str, float], step: int) -> None:
        """Buffer metrics at ``step`` (environment steps)."""

    @abstractmethod
    def artifact(self, path: Path) -> None:
        """Attach a file."""

    @abstractmethod
    def finish(self, status: str) -> None:
        """Flush and close with ``finished``, ``failed`` or ``interrupted``."""

    def describe(self) -> str:
        """A line that tells the user how to look at the results."""
        return ""
