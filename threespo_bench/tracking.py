"""Trackers kept at arm's length: whatever one does wrong is said once and never stops a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from threespo_bench.contracts.tracker import Tracker
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
        self._started = False
        self.run_id: str | None = None
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

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Pass metrics on."""
        if self._started and self._failures < _GIVE_UP:
            self._guard("log", lambda: self._tracker.log(dict(metrics), step))

    def artifact(self, path: Path) -> None:
        """Pass a file on, if it exists."""
        if self._started and self._failures < _GIVE_UP and path.exists():
            self._guard("artifact", lambda: self._tracker.artifact(path))

    def finish(self, status: str) -> None:
        """Close the run."""
        if self._started:
            self._started = False
            self._guard("finish", lambda: self._tracker.finish(status))

    def describe(self) -> str:
        """How to look at the results, or nothing."""
        if self._tracker is None or self.run_id is None:
            return ""
        return self._guard("describe", self._tracker.describe) or ""

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
            advice = f" ({error.fix})" if isinstance(error, BenchError) and error.fix else ""
            self._warn(f"the tracker failed to {doing}, training goes on without it: {_line(error)}{advice}")


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    name = "" if isinstance(error, BenchError) else f"{type(error).__name__}: "
    return f"{name}{text}"[:400] if text else type(error).__name__
