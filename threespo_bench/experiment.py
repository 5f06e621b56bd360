"""A comparison: algorithms x environments x seeds as an ordered plan of runs, carried out whatever single runs do, and reported.

A plan can be carried out again: finished runs of the same configuration and code are kept, stopped ones go on, missing ones are made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from threespo_bench.atomic import storage_errors
from threespo_bench.errors import BenchError, Interrupted, PartialFailure, UsageError
from threespo_bench.experiment_plan import PlannedRun, Step, Variant, experiment_folder, plan, steps
from threespo_bench.experiment_record import ExperimentRecord, this_process
from threespo_bench.host import PluginHost
from threespo_bench.interruption import StopRequest
from threespo_bench.outcome import Outcome, failure, read_outcome
from threespo_bench.recorder import NoProgress, Progress
from threespo_bench.reporting import COMPARISON, write_comparison
from threespo_bench.runner import flat_params
from threespo_bench.tracking import SafeTracker
from threespo_bench.training import TrainingRun
from threespo_bench.worker import Job, Worker, attempt

REPORT = "report"
__all__ = ["Comparison", "PlannedRun", "Variant", "execute", "experiment_folder", "plan"]


@dataclass
class Comparison:
    """What became of a plan.

    Attributes:
        outcomes: by planned run, in the order of the plan; runs that were not reached are missing.
        mismatches: a line for everything that should be equal between the algorithms of a seed and is not.
        report: what the report writer returned, or None.
        interrupted: the user stopped it.
    """

    planned: list[PlannedRun]
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    mismatches: list[str] = field(default_factory=list)
    report: Any = None
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
            return None
        name, first = next(iter(self.failed.items()))
        message = f"{len(self.failed)} of {len(self.planned)} runs failed, first {name}: {first.error}"
        error = PartialFailure(message, fix=first.fix)
        if len(self.failed) == len(self.planned):
            error.exit_code = first.exit_code  # nothing finished: the cause says more than "some failed"
        return error


def execute(
    planned: Sequence[PlannedRun],
    host: PluginHost,
    *,
    jobs: int = 1,
    progress: Callable[[str], Progress] = lambda name: NoProgress(),
    say: Callable[[str], None] = lambda text: None,
    baseline: str | None = None,
    title: str = "",
    retry: bool = True,
) -> Comparison:
    """Carry out a plan and write the report of its experiment: also of the runs that earlier plans added to it.

    Args:
        jobs: runs at the same time. One runs in this process; more run in a process each.
        progress: makes the display of the run of that name. say: gets a line about the comparison.
        baseline, title: of the report. retry: go on with runs that failed before; else they are only reported.

    Returns:
        The comparison; failures of runs are in it and not raised.
    """
    folder = experiment_folder(planned[0].config)
    with storage_errors(f"create the folder {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    record = ExperimentRecord(folder)
    parent = _Parent(planned, host, folder, record.read().get("tracker_run"), say)
    work = _Execution(host, Comparison(list(planned)), progress, say, record, parent.run_id, steps(planned, host, retry=retry))
    status = "failed"
    try:
        work.carry_out([(run, job) for run in planned if (job := work.job(run)) is not None], jobs)
        comparison = work.comparison
        if not comparison.interrupted:
            _report(comparison, record, host, folder / REPORT, baseline, title, say)
            parent.tracker.artifact(folder / REPORT)
        status = "interrupted" if comparison.interrupted else "failed" if comparison.failed else "finished"
    finally:
        work.record()
        parent.tracker.finish(status)
    return comparison


@dataclass
class _Execution:
    """The work on one plan: what is left to do, doing it, and keeping ``experiment.json`` up to date."""

    host: PluginHost
    comparison: Comparison
    progress: Callable[[str], Progress]
    say: Callable[[str], None]
    kept: ExperimentRecord
    tracker_run: str | None
    steps: Mapping[str, Step]
    folders: dict[str, Path] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    running: dict[str, Worker] = field(default_factory=dict)
    stopping: bool = False

    def job(self, run: PlannedRun) -> Job | None:
        """What is left to do for a planned run: all of it, a continuation, or nothing because the same run finished before."""
        step = self.steps[run.name]
        if step.run is not None:
            self.folders[run.name] = step.run
        if step.action == "skip":
            self.say(f"{run.name}: finished before, in {step.run.name}")
            self.comparison.outcomes[run.name] = read_outcome(step.run, nothing_to_do=True)
            return None
        if step.action == "failed":
            self.say(f"{run.name}: failed before and is not retried")
            self.comparison.outcomes[run.name] = read_outcome(step.run) if step.run else Outcome(None, "failed", step.error, exit_code=UsageError.exit_code)
            return None
        if step.run is not None:
            self.say(f"{run.name}: goes on from {step.run.name}")
        return Job(run.config, run.name, step.run, self.tracker_run)

    def carry_out(self, todo: Sequence[tuple[PlannedRun, Job]], jobs: int) -> None:
        """Do the jobs, in this process or ``jobs`` at a time in others."""
        self.record()
        if jobs == 1 or len(todo) <= 1:
            self._one_by_one(todo)
        else:
            self._at_once(todo, jobs)
        done = self.comparison.outcomes
        self.comparison.outcomes = {run.name: done[run.name] for run in self.comparison.planned if run.name in done}

    def record(self) -> None:
        """Write the plan and where each of its runs stands, those without a folder too."""
        rows = []
        for planned in self.comparison.planned:
            config, outcome = planned.config, self.comparison.outcomes.get(planned.name)
            folder = outcome.run if outcome else self.folders.get(planned.name)
            row: dict[str, Any] = {"name": planned.name, "algorithm": config.algorithm.name, "env": config.env.name, "seed": config.seed}
            row |= {"budget": asdict(config.budget), "state": outcome.state if outcome else "running" if planned.name in self.begun else "planned"}
            row |= {"error": outcome.error if outcome else None, "run": folder.name if folder else None, "identity": dict(self.steps[planned.name].identity)}
            rows.append(row if outcome else row | {"process": this_process()})
        self.comparison.mismatches = self.kept.write(rows, self.tracker_run)

    def shown(self, run: PlannedRun) -> Progress:
        """The display of a run, which also tells the record where the run is."""

        def started(path: Path) -> None:
            self.folders[run.name] = path
            self.begun.add(run.name)
            self.record()

        return _Noting(self.progress(run.name), started)

    def _one_by_one(self, todo: Sequence[tuple[PlannedRun, Job]]) -> None:
        """The runner itself takes care of Ctrl-C."""
        for run, job in todo:
            try:
                outcome = attempt(job, self.host, self.shown(run))
            except KeyboardInterrupt:
                self.comparison.interrupted = True
                return
            self._ended(run, outcome)
            if outcome.state == "interrupted":
                self.comparison.interrupted = True
                return

    def _at_once(self, todo: Sequence[tuple[PlannedRun, Job]], jobs: int) -> None:
        """Ctrl-C is passed on to the processes that run, and no further one is started."""
        with StopRequest(self._interrupt), ThreadPoolExecutor(jobs) as pool:
            futures = [(run, pool.submit(self._in_process, run, job)) for run, job in todo]
            try:
                for run, future in futures:
                    outcome = _result(future)
                    if outcome is not None:
                        self._ended(run, outcome)
            except KeyboardInterrupt:
                self._interrupt("stopping at once; the runs can be resumed")
        states = [self.comparison.outcomes[run.name].state if run.name in self.comparison.outcomes else "interrupted" for run, _ in todo]
        self.comparison.interrupted = self.stopping and "interrupted" in states

    def _in_process(self, run: PlannedRun, job: Job) -> Outcome | None:
        """In a thread that waits for the run's process; None if the user asked to stop before it was started."""
        if self.stopping:
            return None
        worker = self.running[run.name] = Worker(job, self.host)
        try:
            if self.stopping:
                worker.interrupt()
            return worker.wait(self.shown(run))
        finally:
            worker.close()
            del self.running[run.name]

    def _interrupt(self, text: str) -> None:
        self.stopping = True
        self.say(text)
        for worker in list(self.running.values()):
            worker.interrupt()

    def _ended(self, run: PlannedRun, outcome: Outcome) -> None:
        self.comparison.outcomes[run.name] = outcome
        self.record()
        success = "" if outcome.final_success is None else f", success {outcome.final_success:.1%}"
        self.say(f"{run.name}: {outcome.state} after {outcome.env_steps:,} env steps{success}" + (f": {outcome.error}" if outcome.error else ""))


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


def _result(future: Future[Outcome | None]) -> Outcome | None:
    try:
        return future.result()
    except Exception as error:  # the process could not be started at all
        ended = failure(error)
        return Outcome(None, "failed", ended.error, ended.fix, ended.exit_code)


def _report(
    comparison: Comparison, record: ExperimentRecord, host: PluginHost, out: Path, baseline: str | None, title: str, say: Callable[[str], None]
) -> None:
    """Write the report of all runs of the experiment that have a folder. The runs stay worth their time if it fails."""
    earlier = [path for row in record.others(run.name for run in comparison.planned) if (path := record.run(row)) is not None]
    runs = [*earlier, *(outcome.run for outcome in comparison.outcomes.values() if outcome.run is not None)]
    if not runs or COMPARISON not in host.reports:
        return
    try:
        comparison.report = write_comparison(host, runs, out, baseline, title, warn=say)
    except Exception as error:
        say(f"the report was not written: {failure(error).error}")


class _Parent:
    """The comparison's own run in the tracker, under which its runs are nested."""

    def __init__(self, planned: Sequence[PlannedRun], host: PluginHost, folder: Path, known: str | None, say: Callable[[str], None]) -> None:
        config = planned[0].config
        contribution = host.find("trackers", config.tracker.name)
        self.tracker = SafeTracker(lambda: contribution.load()(config.tracker.options, folder.parent.resolve()), say)
        shared = flat_params(config)
        for run in planned[1:]:
            other = flat_params(run.config)
            shared = {key: value for key, value in shared.items() if key in other and other[key] == value}
        params = shared | {key: ", ".join(dict.fromkeys(str(flat_params(run.config)[key]) for run in planned)) for key in ("algorithm", "env", "seed")}
        self.run_id = self.tracker.start(config.experiment, f"comparison {config.experiment}", params, {"kind": "comparison"}, None, known)
