"""What a launcher offers: it carries out the runs of a comparison somewhere, and tells what becomes of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from threespo_bench.errors import UsageError

if TYPE_CHECKING:
    from threespo_bench.host import PluginHost
    from threespo_bench.outcome import Outcome
    from threespo_bench.recorder import Progress


@dataclass(frozen=True)
class Cell:
    """One run of a plan, as plain data.

    Attributes:
        name: unique in the plan, and the name of the run folder if it is new.
        config: the configuration of the run (:func:`threespo_bench.config.plain.to_plain`).
        resume: the folder of the run to continue; None begins a new one.
        parent_tracker_run: id of the comparison's run in the tracker.
    """

    name: str
    config: Mapping[str, Any]
    resume: Path | None = None
    parent_tracker_run: str | None = None


class Monitor(Protocol):
    """The comparison, as a launcher sees it. Every method may be called from any thread."""

    def progress(self, name: str) -> Progress:
        """The display of the run of that name. Its ``start`` also tells the comparison in which folder the run is."""

    def ended(self, name: str, outcome: Outcome) -> None:
        """The run of that name ended; to be called as soon as it is known."""

    def say(self, text: str) -> None:
        """A line for the user."""


@dataclass
class LauncherConfig:
    """Options that every launcher has.

    Attributes:
        jobs: runs at the same time; null lets the launcher decide.
    """

    jobs: int | None = None

    def validate(self) -> None:
        """Raises UsageError naming the key for a value out of range."""
        require(self.jobs is None or self.jobs >= 1, "jobs", self.jobs, ">= 1, or null")


class Launcher(ABC):
    """Carries out the runs of one comparison.

    Args:
        config: its options. host: the plugins. folder: of the experiment; the run folders are made in it.

    Attributes:
        Config: dataclass of options under ``launcher.``, derived from :class:`LauncherConfig`.
    """

    Config: ClassVar[type[LauncherConfig]] = LauncherConfig

    def __init__(self, config: Any, host: PluginHost, folder: Path) -> None:
        self.config, self.host, self.folder = config, host, folder

    @abstractmethod
    def launch(self, cells: Sequence[Cell], monitor: Monitor) -> None:
        """Carry the runs out and report each to ``monitor`` as it ends. Called once, in the main thread.

        A run that fails, or whose process or machine is lost, is an outcome with the state ``failed`` and costs no other run. On Ctrl-C the launcher stops
        what is running so that it can be resumed, starts nothing further, and returns; or it lets KeyboardInterrupt through. What it has not reported by then
        counts as not done.

        Raises:
            BenchError: nothing can be launched at all.
        """


def require(good: bool, key: str, value: Any, allowed: str) -> None:
    """Raises UsageError for an option under ``launcher.`` that is out of range."""
    if not good:
        raise UsageError(f"launcher.{key}={'null' if value is None else value} is out of range: must be {allowed}")
