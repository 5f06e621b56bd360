"""What a tracker offers: a copy of a run's numbers in somebody's favourite tool. The run store stays the source of truth."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

RUN_TAG = "threespo_bench.id"
"""The tag by which a tracker finds a run again of which nobody knows the id any more; it stays with the run folder."""


@dataclass(frozen=True)
class TaskSet:
    """Tasks that a run was given, as a tracker names them.

    Attributes:
        name: environment and split, e.g. ``household/train``. context: ``training`` or ``evaluation``.
        digest: of the tasks, hexadecimal. source: plain data that says where they come from.
    """

    name: str
    context: str
    digest: str
    source: Mapping[str, Any] = field(default_factory=dict)


class Tracker(ABC):
    """One run's connection to a tracking tool. The host wraps every call: what it raises is warned about once and never stops training.

    Attributes:
        Config: dataclass of options under ``tracker.``.
        can_sync: recorded runs can be sent to it later, as often as one likes: it passes over what it has.
        began, ended: seconds since the epoch, set before :meth:`start` for a run that is sent later; None is now.
        sent: values that this process sent.
    """

    Config: ClassVar[type]
    can_sync: ClassVar[bool] = False
    began: float | None = None
    ended: float | None = None
    sent: int = 0

    def __init__(self, config: Any, runs_folder: Path) -> None:
        self.config, self.runs_folder = config, runs_folder

    @abstractmethod
    def start(self, experiment: str, run_name: str, params: dict[str, Any], tags: dict[str, str], parent: str | None, resume: str | None) -> str:
        """Open a run and return its id.

        ``parent`` is the id of a comparison's parent run. ``resume`` is the id of the run to go on with, or empty if nobody knows it and the run with
        the same :data:`RUN_TAG` is meant; where there is none, a new one is made. None is a run that begins.
        """

    @abstractmethod
    def log(self, metrics: dict[str, float], step: int) -> None:
        """Buffer metrics at ``step`` (see ``tracked.step_of``). NaN stands for every value that was not finite."""

    def log_at(self, metrics: dict[str, float], step: int, when: float | None) -> None:
        """The same for metrics that were measured at ``when``, in seconds since the epoch; a tracker without times ignores it."""
        self.log(metrics, step)

    def inputs(self, tasks: Sequence[TaskSet]) -> None:
        """Name the tasks of the run."""

    @abstractmethod
    def artifact(self, path: Path) -> None:
        """Attach a file, or a folder with its files."""

    @abstractmethod
    def finish(self, status: str) -> None:
        """Flush and close with ``finished``, ``failed`` or ``interrupted``."""

    def target(self) -> str:
        """Where the copies go, without passwords; ``store`` for a place in the runs folder itself."""
        return ""

    def check(self) -> None:
        """Raise what keeps the tool from being reached, if anything does."""

    def holds(self, run_id: str, parent: str | None) -> bool:
        """Whether the tool still has a run, and (unless ``parent`` is None) under that one."""
        return False

    def describe(self) -> str:
        """A line that tells the user how to look at the results."""
        return ""
