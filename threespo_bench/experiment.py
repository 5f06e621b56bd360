"""A comparison: algorithms x environments x seeds as an ordered plan of runs, carried out whatever single runs do, and reported.

A plan can be carried out again: finished runs of the same configuration and code are kept, stopped ones go on, missing ones are made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from threespo_bench.atomic import storage_errors
from threespo_bench.config.launcher import compose_launcher
from threespo_bench.config.plain import to_plain
from threespo_bench.config.schema import Component
from threespo_bench.contracts.launcher import Cell, Launcher
from threespo_bench.errors import BenchError, Interrupted, PartialFailure, StorageError, UsageError
from threespo_bench.experiment_plan import PlannedRun, Step, Variant, experiment_folder, plan, steps
from threespo_bench.experiment_record import ExperimentRecord, this_process
from threespo_bench.host import PluginHost
from threespo_bench.outcome import Outcome, failure, read_outcome
from threespo_bench.recorder import NoProgress, Progress
from threespo_bench.reporting import COMPARISON, write_comparison
from threespo_bench.tracked_comparison import REPORT, Parent
from threespo_bench.training import TrainingRun

__all__ = ["Comparison", "PlannedRun", "Variant", "execute", "experiment_folder", "plan"]


@dataclass
class Comparison:
    """What became of a plan.

    Attributes:
        outcomes: by planned run, in the order of the plan; runs that were not reached are missing.
        mismatches: a line for everything that should be equal between the algorithms of a seed and is not.
        report: what the report writer returned, or None.
        elsewhere: by planned run, the folders of those that another process works on; they are left to it.
        interrupted: the user stopped it.
    """

    planned: list[PlannedRun]
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    mismatches: list[str] = field(default_factory=list)
    report: Any = None
    elsewhere: dict[str, Path] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def failed(self) -> dict[str, Outcome]:
        """The failed runs."""
        return {name: outcome for name, outcome in self.outcomes.items() if outcome.state == "failed"}

    def error(self) -> BenchError | None:
        """What a command should end with: nothing, if all runs finished."""
        if self.interrupted:
            left = sum(1 for run in self.planned if run.name not in self.outcomes or self.outcomes[run.name].state != "finished")
            return Interrupted(f"interrupted: {left} of {len(self.planned)} runs are not finished", fix="the same command goes on from there")
        if not self.failed:
            return self._incomplete()
        name, first = next(iter(self.failed.items()))
        message = f"{len(self.failed)} of {len(self.planned)} runs failed, first {name}: {first.error}"
        error = PartialFailure(message, fix=first.fix)
        if len(self.failed) == len(self.planned):
            error.exit_code = first.exit_code  # nothing finished: the cause says more than "some failed"
        return error

    def _incomplete(self) -> BenchError | None:
        if not self.elsewhere:
            return None
        name, path = next(iter(self.elsewhere.items()))
        message = f"{len(self.elsewhere)} of {len(self.planned)} runs were left to another process, first {name}, which is locked: {path}"
        return StorageError(message, fix="the same command adds them when they are finished, and goes on with them if they are stopped")


def execute(
    planned: Sequence[PlannedRun],
    host: PluginHost,
    *,
    jobs: int = 1,
    launcher: Component | None = None,
    progress: Callable[[str], Progress] = lambda name: NoProgress(),
    say: Callable[[str], None] = lambda text: None,
    baseline: str | None = None,
    title: str = "",
    retry: bool = True,
) -> Comparison:
    """Carry out a plan and write the report of its experiment: also of the runs that earlier plans added to it.

    Args:
        jobs: runs at the same time, with the launcher ``local``: one runs in this process, more run in a process each.
        launcher: where the runs are carried out (:func:`threespo_bench.config.launcher.compose_launcher`), instead of ``jobs``.
        progress: makes the display of the run of that name. say: gets a line about the comparison.
        baseline, title: of the report. retry: go on with runs that failed before; else they are only reported.

    Returns:
        The comparison; failures of runs are in it and not raised.
    """
    folder = experiment_folder(planned[0].config)
    launches = _launcher(launcher or compose_launcher([], host, jobs=jobs), host, folder)
    with storage_errors(f"create the folder {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    record = ExperimentRecord(folder)
    parent = Parent(planned, host, folder, record.read().get("tracker_run"), say)
    work = _Execution(host, Comparison(list(planned)), progress, say, record, parent.run_id, steps(planned, host, retry=retry))
    status = "failed"
    try:
        work.carry_out(launches)
        comparison = work.comparison
        if not comparison.interrupted:
            _report(comparison, record, host, folder / REPORT, baseline, title, say)
            parent.tracker.artifact(folder / REPORT)
            parent.reported = True
        status = "interrupted" if comparison.interrupted else "failed" if comparison.failed else "finished"
    finally:
        work.record()
        parent.finish(status, record.rows())
    return comparison


def _launcher(chosen: Component, host: PluginHost, folder: Path) -> Launcher:
    return host.find("launchers", chosen.name).load()(chosen.options, host, folder)


@dataclass
class _Execution:
    """The work on one plan: what is left to do, what became of it, and keeping ``experiment.json`` up to date. It is the launcher's monitor."""

    host: PluginHost
    comparison: Comparison
    display: Callable[[str], Progress]
    say: Callable[[str], None]
    kept: ExperimentRecord
    tracker_run: str | None
    steps: Mapping[str, Step]
    folders: dict[str, Path] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)

    def cell(self, run: PlannedRun) -> Cell | None:
        """What is left to do for a planned run: all of it, a continuation, or nothing because the same run finished before."""
        step = self.steps[run.name]
        if step.run is not None:
            self.folders[run.name] = step.run
        if step.action == "skip" and step.run is not None:
            self.say(f"{run.name}: finished before, in {step.run.name}")
            self.comparison.outcomes[run.name] = read_outcome(step.run, nothing_to_do=True)
            return None
        if step.action == "busy" and step.run is not None:
            self.say(f"{run.name}: another process works on it, in {step.run.name}; it is left to that")
            self.comparison.elsewhere[run.name] = step.run
            return None
        if step.action == "failed":
            self.say(f"{run.name}: failed before and is not retried")
            self.comparison.outcomes[run.name] = read_outcome(step.run) if step.run else Outcome(None, "failed", step.error, exit_code=UsageError.exit_code)
            return None
        if step.run is not None:
            self.say(f"{run.name}: goes on from {step.run.name}")
        return Cell(run.name, to_plain(run.config), step.run, self.tracker_run)

    def carry_out(self, launcher: Launcher) -> None:
        """Have the launcher do what is left."""
        cells = [cell for run in self.comparison.planned if (cell := self.cell(run)) is not None]
        self.record()
        try:
            launcher.launch(cells, self)
        except KeyboardInterrupt:
            self.say("stopped at once; the runs can be resumed")
        done = self.comparison.outcomes
        self.comparison.interrupted = any(cell.name not in done or done[cell.name].state == "interrupted" for cell in cells)
        self.comparison.outcomes = {run.name: done[run.name] for run in self.comparison.planned if run.name in done}

    def record(self) -> None:
        """Write the plan and where each of its runs stands, those without a folder too."""
        rows = []
        for planned in self.comparison.planned:
            if planned.name in self.comparison.elsewhere:
                continue  # its process keeps its row
            config, outcome = planned.config, self.comparison.outcomes.get(planned.name)
            folder = outcome.run if outcome else self.folders.get(planned.name)
            row: dict[str, Any] = {"name": planned.name, "algorithm": config.algorithm.name, "env": config.env.name, "seed": config.seed}
            row |= {"budget": asdict(config.budget), "state": outcome.state if outcome else "running" if planned.name in self.begun else "planned"}
            row |= {"error": outcome.error if outcome else None, "run": folder.name if folder else None, "identity": dict(self.steps[planned.name].identity)}
            rows.append(row if outcome else row | {"process": this_process()})
        self.comparison.mismatches = self.kept.write(rows, self.tracker_run)

    def progress(self, name: str) -> Progress:
        """The display of a run, which also tells the record where the run is."""

        def started(path: Path) -> None:
            self.folders[name] = path
            self.begun.add(name)
            self.record()

        return _Noting(self.display(name), started)

    def ended(self, name: str, outcome: Outcome) -> None:
        """Keep and show an outcome."""
        self.comparison.outcomes[name] = outcome
        self.record()
        success = "" if outcome.final_success is None else f", success {outcome.final_success:.1%}"
        self.say(f"{name}: {outcome.state} after {outcome.env_steps:,} env steps{success}" + (f": {outcome.error}" if outcome.error else ""))


class _Noting:
    """A progress display that also passes on where the run is."""

    def __init__(self, display: Progress, started: Callable[[Path], None]) -> None:
        self._display, self._started = display, started

    def __getattr__(self, name: str) -> Any:
        return getattr(self._display, name)

    def start(self, run: TrainingRun, path: Path) -> None:
        """The loop begins in ``path``."""
        self._started(path)
        self._display.start(run, path)


def _report(
    comparison: Comparison, record: ExperimentRecord, host: PluginHost, out: Path, baseline: str | None, title: str, say: Callable[[str], None]
) -> None:
    """Write the report of all runs of the experiment that have a folder. The runs stay worth their time if it fails."""
    earlier = [path for row in record.others(run.name for run in comparison.planned) if (path := record.run(row)) is not None]
    runs = [*earlier, *(outcome.run for outcome in comparison.outcomes.values() if outcome.run is not None)]
    if not runs or COMPARISON not in host.reports:
        return
    for chosen in dict.fromkeys((baseline, None)):
        try:
            comparison.report = write_comparison(host, runs, out, chosen, title, warn=say)
            return
        except UsageError as error:
            told = f"{error}{f' ({error.fix})' if error.fix else ''}"
            say(f"the report was not written: {told}" if chosen is None else f"the report has not the baseline that was asked for: {told}")
        except Exception as error:
            say(f"the report was not written: {failure(error).error}")
            return
