"""Every failure a user can cause or meet, each with the exit code that the command line returns for it.

A :class:`BenchError` carries one line that names the thing that is wrong and, in ``fix``, what to do about it. The command line
prints both and never a traceback; any other exception is a defect of the program and is reported as such.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class BenchError(Exception):
    """Base of all expected failures. ``exit_code`` is what the process returns; ``fix`` is the advice printed under the message."""

    exit_code = 1

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.fix = fix


class UsageError(BenchError):
    """A wrong name, override, value or combination of options; nothing was started."""

    exit_code = 2


class PluginError(BenchError):
    """A plugin is broken, contributes a name twice, or differs between this process and the one that started it."""

    exit_code = 3


class DataError(BenchError):
    """Games, a model folder or a recorded batch is missing or cannot be read."""

    exit_code = 4


class EngineError(BenchError):
    """The engine broke its contract: log-probabilities that disagree, stale weights, a loss that is not finite."""

    exit_code = 5


class StorageError(BenchError):
    """The run store cannot be written or read: full disk, a run locked by another process, no usable checkpoint."""

    exit_code = 6


class PartialFailure(BenchError):
    """Some runs of a comparison failed; the others finished and the report was written."""

    exit_code = 7


class NotReproduced(BenchError):
    """A run that was made again did not measure what the recorded one did."""

    exit_code = 8


class TrackerError(BenchError):
    """A tracking server cannot be reached or did not take everything; the run folders have it all."""

    exit_code = 9


class Interrupted(BenchError):
    """The user pressed Ctrl-C (or the process got SIGTERM); the run can be resumed."""

    exit_code = 130


def suggest(name: str, known: Iterable[str]) -> str:
    """A "did you mean" line for ``name``: its close matches among ``known``, or else all of them."""
    names = sorted(known)
    close = get_close_matches(name, names, n=3, cutoff=0.6)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    return "known: " + ", ".join(names) if names else "none is installed"
