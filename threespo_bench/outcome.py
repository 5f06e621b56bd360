"""How a run ended, as the command line and a comparison need to know it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from threespo_bench.errors import BenchError
from threespo_bench.recorder import peak_memory_mb
from threespo_bench.rows import Row, RowFile
from threespo_bench.store import METRICS, read_status

_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory")


@dataclass
class Outcome:
    """The end of a run, or of an attempt at one.

    Attributes:
        run: the run's folder; None if it failed before there was one.
        state: ``finished``, ``failed`` or ``interrupted``.
        error, fix: one line each about a failure. exit_code: what a process that did only this returns.
        start_success, final_success: held-out success at the first and the last evaluation.
        env_steps: spent in training.
        nothing_to_do: the run had finished before.
        tracker: how to look at the run in its tracker, or empty.
    """

    run: Path | None
    state: str
    error: str | None = None
    fix: str = ""
    exit_code: int = 0
    start_success: float | None = None
    final_success: float | None = None
    env_steps: int = 0
    nothing_to_do: bool = False
    tracker: str = ""

    def to_plain(self) -> dict[str, Any]:
        """As JSON types."""
        return asdict(self) | {"run": str(self.run) if self.run else None}

    @staticmethod
    def from_plain(data: dict[str, Any]) -> Outcome:
        """From :meth:`to_plain`."""
        return Outcome(**{**data, "run": Path(data["run"]) if data["run"] else None})


@dataclass(frozen=True)
class Failure:
    """An exception in the words of a status: one line, advice, exit code."""

    error: str
    fix: str
    exit_code: int


def failure(error: BaseException) -> Failure:
    """What to record about an exception that ended a run."""
    error = root_cause(error)
    text = " ".join(str(error).split())
    if isinstance(error, BenchError):
        return Failure(text, error.fix, error.exit_code)
    if isinstance(error, MemoryError) or any(sign in text.lower() for sign in _OUT_OF_MEMORY):
        fix = "run fewer episodes at a time (algorithm.tasks_per_iteration, algorithm.group_size), a smaller engine batch, or on a larger machine"
        return Failure(f"out of memory; the peak of this process was {peak_memory_mb():.0f} MB", fix, 1)
    return Failure(f"{type(error).__name__}: {text}" if text else type(error).__name__, "events.log in the run folder has the traceback", 1)


def root_cause(error: BaseException) -> BaseException:
    """The first expected failure inside an exception group, or else its first exception."""
    while isinstance(error, BaseExceptionGroup):
        expected = [inner for inner in error.exceptions if isinstance(inner, BenchError)]
        error = expected[0] if expected else error.exceptions[0]
    return error


def read_outcome(path: Path, **more: Any) -> Outcome:
    """The outcome of the run in ``path`` as it is written there."""
    status, rows = read_status(path), RowFile(path / METRICS).read()
    start, final = successes(rows)
    return Outcome(
        run=path,
        state=status.get("state", "failed"),
        error=status.get("error"),
        fix=status.get("fix", ""),
        exit_code=int(status.get("exit_code", 0)),
        start_success=start,
        final_success=final,
        env_steps=int(rows[-1]["env_steps"]) if rows else 0,
        **more,
    )


def successes(rows: list[Row]) -> tuple[float | None, float | None]:
    """Held-out success at the first and at the last evaluation."""
    found = [row.get("success") for row in rows if row["kind"] == "eval"]
    return (found[0], found[-1]) if found else (None, None)
