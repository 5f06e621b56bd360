"""The plan of a comparison as ``compare --dry-run`` prints it: what is done, what is left, and how long that takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from threespo_bench.cli.output import console, note, say, table, warn
from threespo_bench.cli.progress import duration
from threespo_bench.cli.run import limits, refuse_what_is_lacking
from threespo_bench.errors import BenchError, EngineError

if TYPE_CHECKING:
    from threespo_bench.experiment_plan import PlannedRun, Step
    from threespo_bench.host import PluginHost

_WORDS = {
    "run": "run",
    "resume": "resume",
    "retry": "retry",
    "skip": "skip: finished",
    "busy": "leave: another process works on it",
    "failed": "report: failed",
}
_TO_DO = ("run", "resume", "retry")


def show_plan(planned: Sequence[PlannedRun], host: PluginHost, *, retry: bool, jobs: int, elsewhere: bool = False) -> None:
    """Build what costs little of every combination, so that mistakes show, and print the plan with what is left to do.

    Args:
        elsewhere: the runs are carried out on other machines, so that what this one lacks in programs and devices is no error.

    Raises:
        BenchError: the plan cannot be carried out; at the end, if only this machine is at fault.
    """
    from threespo_bench.experiment_plan import experiment_folder, steps
    from threespo_bench.inspection.estimate import finished_runs

    lacking = _check(planned, host)
    folder = experiment_folder(planned[0].config)
    left = steps(planned, host, retry=retry)
    finished = finished_runs(Path(planned[0].config.out))
    times = {run.name: _seconds(run, left[run.name], finished) for run in planned}
    shown = table("run", "algorithm", "env", "seed", "budget", "to do", "time")
    for run in planned:
        config, seconds = run.config, times[run.name]
        time = "-" if left[run.name].action not in _TO_DO else "unknown" if seconds is None else f"about {duration(seconds)}"
        shown.add_row(run.name, config.algorithm.name, config.env.name, str(config.seed), limits(config.budget), _WORDS[left[run.name].action], time)
    console().print(shown)
    say(_total(planned, left, times, jobs))
    note(f"{len(planned)} runs, in {folder}; nothing was started")
    if elsewhere:
        for error in lacking:
            if isinstance(error, EngineError):
                warn(f"not here, but perhaps where the runs go: {error}")
        lacking = [error for error in lacking if not isinstance(error, EngineError)]
    refuse_what_is_lacking(lacking)


def _check(planned: Sequence[PlannedRun], host: PluginHost) -> list[BenchError]:
    """Warn about every combination once; returns what is lacking on this machine."""
    from threespo_bench import assembly

    checked, lacking = set(), {}
    for run in planned:
        kind = (run.name.rpartition("-seed")[0], run.config.env.name)
        if kind not in checked:
            checked.add(kind)
            parts, errors = assembly.examine(run.config, host)
            lacking.update({str(error): error for error in errors})
            for line in [] if parts is None else assembly.warnings(run.config, parts):
                warn(f"{run.name}: {line}")
    return list(lacking.values())


def _seconds(run: PlannedRun, step: Step, finished: Sequence) -> float | None:
    from threespo_bench.inspection.estimate import seconds_needed
    from threespo_bench.inspection.summary import summarise

    if step.action not in _TO_DO:
        return 0.0
    spent = summarise(step.run).spent if step.run else {}
    return seconds_needed(run.config.algorithm.name, run.config.env.name, asdict(run.config.budget), finished, spent)


def _total(planned: Sequence[PlannedRun], left: Mapping[str, Step], times: Mapping[str, float | None], jobs: int) -> str:
    """What is left to do, counted, and how long it takes as far as finished runs tell."""
    counts = Counter(step.action for step in left.values())
    parts = [f"{counts[action]} to {action}" for action in _TO_DO if counts[action]]
    parts += [
        f"{counts[action]} {word}"
        for action, word in (("skip", "finished"), ("busy", "in another process"), ("failed", "failed, not retried"))
        if counts[action]
    ]
    unknown = sorted({f"{run.config.algorithm.name} on {run.config.env.name}" for run in planned if times[run.name] is None})
    known = sum(seconds for seconds in times.values() if seconds)
    if unknown:
        time = f"time unknown: no finished run of {', '.join(unknown)} in {planned[0].config.out}"
        time += f" (the others about {duration(known)})" if known else ""
    else:
        most = max((seconds for seconds in times.values() if seconds), default=0.0)
        time = f"about {duration(max(known / jobs, most))}" + (f" with {jobs} at a time" if jobs > 1 else "") if known else "nothing to wait for"
    return f"{', '.join(parts)}; {time}"
