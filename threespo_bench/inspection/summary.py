"""One recorded run in a few facts, read quickly: for listings, live views and rankings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from threespo_bench.errors import StorageError
from threespo_bench.rows import Row, RowFile
from threespo_bench.store import CONFIG, METRICS, TIMINGS, find_runs, read_config, read_manifest, read_status, run_state

DAMAGED = "damaged"
_TAIL = 1 << 16
_RECENT = 12  # rows of timings that say how fast a run is now


@dataclass(frozen=True)
class RunSummary:
    """A run.

    Attributes:
        state: ``running``, ``finished``, ``failed``, ``interrupted``, ``none`` or ``damaged``. error: one line about a failure or the damage.
        budget: limits by name, without those that are not set. spent: totals by the same names.
        start, success: held-out success at the first and the newest evaluation.
        seconds: wall-clock time in training and evaluation. speed: environment steps a second lately.
        changed: when it ended, or else when it was started, in seconds since the epoch.
    """

    path: Path
    algorithm: str = "?"
    env: str = "?"
    seed: int | None = None
    state: str = DAMAGED
    error: str = ""
    budget: dict[str, int] = field(default_factory=dict)
    spent: dict[str, int] = field(default_factory=dict)
    start: float | None = None
    success: float | None = None
    seconds: float | None = None
    speed: float | None = None
    changed: float | None = None

    @property
    def experiment(self) -> str:
        """The folder that the run stands in."""
        return self.path.parent.name

    @property
    def env_steps(self) -> int:
        """Spent in training."""
        return self.spent.get("env_steps", 0)

    @property
    def fraction(self) -> float:
        """The share of the tightest limit that is spent, in [0, 1]."""
        return min(1.0, max((self.spent.get(name, 0) / limit for name, limit in self.budget.items()), default=0.0))


def summarise(path: Path) -> RunSummary:
    """The summary of the run in ``path``; of a folder whose files cannot be read, what they say all the same."""
    path = path.resolve()
    try:
        status, manifest = read_status(path), read_manifest(path)
        state = run_state(path)
        budget = manifest.get("budget") or read_config(path).get("budget") or {}
        rows, timings = tail(path / METRICS), tail(path / TIMINGS)[-_RECENT:]
    except (StorageError, ValueError) as error:
        return RunSummary(path, error=" ".join(str(error).split()))
    last = rows[-1] if rows else {}
    spent = {name: int(last.get(name) or 0) for name in ("env_steps", "tokens", "updates")}
    start, success = status.get("start_success"), _newest_success(rows)
    return RunSummary(
        path=path,
        algorithm=_name(manifest, "algorithm"),
        env=_name(manifest, "env"),
        seed=manifest.get("seed"),
        state=state,
        error=status.get("error") or "",
        budget={name: limit for name, limit in budget.items() if limit is not None},
        spent=spent | {"iterations": int(last.get("iteration") or 0)},
        start=start,
        success=status.get("final_success") if success is None else success,
        seconds=timings[-1].get("seconds") if timings else None,
        speed=_speed(timings),
        changed=_time(status.get("ended")) or _time(manifest.get("incidental", {}).get("started")),
    )


def runs_in(folder: Path) -> list[Path]:
    """The runs that ``folder`` is or holds: a run, an experiment, or a store of experiments; sorted.

    Raises:
        StorageError: there is no such folder.
    """
    if (folder / CONFIG).is_file():
        return [folder]
    if not folder.is_dir():
        raise StorageError(f"there is no folder {folder}", fix="give a run, an experiment's folder or a folder of experiments; runs are in ./runs by default")
    return [*find_runs(folder), *(run for experiment in sorted(folder.iterdir()) if experiment.is_dir() for run in find_runs(experiment))]


def one_run(path: Path) -> Path:
    """``path``, if it is a run's folder. Raises StorageError."""
    if not (path / CONFIG).is_file():
        raise StorageError(f"{path} is not a run folder: it has no {CONFIG}", fix="threespo-bench ls lists the runs")
    return path


def tail(path: Path) -> list[Row]:
    """The last rows of a file, without reading a long one whole; none if there is no file."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    lines = text.split("\n")[:-1]
    rows = [row for line in (lines if size <= _TAIL else lines[1:]) if (row := _row(line)) is not None]
    if rows and size > _TAIL and path.name == METRICS and _newest_success(rows) is None:
        return RowFile(path).read()
    return rows


def _row(line: str) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _newest_success(rows: list[Row]) -> float | None:
    return next((row.get("success") for row in reversed(rows) if row.get("kind") == "eval"), None)


def _name(manifest: Mapping[str, Any], section: str) -> str:
    part = manifest.get(section)
    return str(part.get("name", "?")) if isinstance(part, Mapping) else "?"


def _speed(timings: list[Row]) -> float | None:
    if len(timings) < 2:
        return None
    seconds = timings[-1].get("seconds", 0.0) - timings[0].get("seconds", 0.0)
    steps = timings[-1].get("env_steps", 0) - timings[0].get("env_steps", 0)
    return steps / seconds if seconds > 0 and steps > 0 else None


def _time(text: Any) -> float | None:
    try:
        return datetime.strptime(str(text), "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        return None
