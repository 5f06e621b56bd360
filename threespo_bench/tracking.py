"""Trackers kept at arm's length: whatever one does wrong is said once and never stops a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from threespo_bench.contracts.tracker import TaskSet, Tracker
from threespo_bench.errors import BenchError, UsageError

_GIVE_UP = 3


class SafeTracker:
    """Calls a tracker and survives it.

    The first failure is reported through ``warn``; after three in a row the tracker is left alone until :meth:`finish`, because each
    further call may cost a time-out. A tracker whose options have ``required=true`` may refuse to start, and only that passes.

    Args:
        make: makes the tracker; a failure here counts as well.
        warn: gets one line.
    """

    def __init__(self, make: Callable[[], Tracker], warn: Callable[[str], None]) -> None:
        self._warn, self._warned, self._failures = warn, False, 0
        self._started = self._finished = self._lost = False
        self.run_id: str | None = None
        self._tracker: Tracker | None = None
        self._tracker = self._guard("construct", make)

    def start(self, experiment: str, run_name: str, params: dict[str, Any], tags: dict[str, str], parent: str | None, resume: str | None) -> str | None:
        """Open the run; its id, or None if that failed.

        Raises:
            UsageError: the tracker cannot start and its options say that it is required.
        """
        if self._tracker is None:
            return None
        required = bool(getattr(self._tracker.config, "required", False))
        try:
            self.run_id = self._tracker.start(experiment, run_name, params, tags, parent, resume)
            self._started = True
        except Exception as error:
            if required:
                fix = getattr(error, "fix", "") or "tracker.required=false trains without it"
                raise UsageError(f"the tracker cannot start: {_line(error)}", fix=fix) from error
            self._failed("start", error)
        return self.run_id

    def log(self, metrics: Mapping[str, float], step: int, when: float | None = None) -> None:
        """Pass metrics on; ``when`` they were measured, in seconds since the epoch, if that was not now."""
        values = dict(metrics)
        self._call("log", lambda tracker: tracker.log(values, step) if when is None else tracker.log_at(values, step, when))

    def inputs(self, tasks: Sequence[TaskSet]) -> None:
        """Pass the names of the tasks on."""
        self._call("name the tasks", lambda tracker: tracker.inputs(tasks))

    def artifact(self, path: Path) -> None:
        """Pass a file or a folder on, if it exists."""
        if path.exists():
            self._call("artifact", lambda tracker: tracker.artifact(path))

    def finish(self, status: str) -> None:
        """Close the run."""
        tracker = self._tracker
        if tracker is not None and self._started:
            self._started = False
            self._guard("finish", lambda: tracker.finish(status))
            self._finished = True

    @property
    def complete(self) -> bool:
        """Whether the tracker got everything, to its end, without a failure."""
        return self._finished and not self._lost and not self._warned

    def target(self) -> str:
        """Where the copies go; empty if that is not known."""
        return self._guard("say where it copies to", self._tracker.target) or "" if self._tracker is not None else ""

    def describe(self) -> str:
        """How to look at the results, or nothing."""
        if self._tracker is None or self.run_id is None:
            return ""
        return self._guard("describe", self._tracker.describe) or ""

    def _call(self, doing: str, call: Callable[[Tracker], Any]) -> None:
        """A call while the run goes on; none after too many failures."""
        tracker = self._tracker
        if tracker is not None and self._started and self._failures < _GIVE_UP:
            self._guard(doing, lambda: call(tracker))
        else:
            self._lost = True

    def _guard(self, doing: str, call: Callable[[], Any]) -> Any:
        try:
            result = call()
        except Exception as error:
            self._failed(doing, error)
            return None
        self._failures = 0
        return result

    def _failed(self, doing: str, error: Exception) -> None:
        self._failures += 1
        if not self._warned:
            self._warned = True
            later = "threespo-bench sync sends what is missing later" if getattr(self._tracker, "can_sync", False) else ""
            fix = (error.fix if isinstance(error, BenchError) else "") or later
            advice = f" ({fix})" if fix else ""
            self._warn(f"the tracker failed to {doing}, training goes on without it: {_line(error)}{advice}")


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    name = "" if isinstance(error, BenchError) else f"{type(error).__name__}: "
    return f"{name}{text}"[:400] if text else type(error).__name__
