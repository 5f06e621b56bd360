"""A comparison: algorithms x environments x seeds as an ordered plan of runs, carried out whatever single runs do, and reported.

A plan can be carried out again: finished runs of the same configuration and code are kept, stopped ones go on, missing ones are made.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from threespo_bench import manifest as manifests
from threespo_bench.assembly import display_name
from threespo_bench.atomic import storage_errors, write_json
from threespo_bench.config.compose import compose
from threespo_bench.config.schema import RunConfig
from threespo_bench.errors import BenchError, Interrupted, PartialFailure, StorageError, UsageError
from threespo_bench.host import PluginHost
from threespo_bench.interruption import StopRequest
from threespo_bench.outcome import Outcome, failure, read_outcome
from threespo_bench.recorder import NoProgress, Progress
from threespo_bench.reporting import COMPARISON, write_comparison
from threespo_bench.runner import flat_params
from threespo_bench.store import find_runs, read_manifest, run_state, safe_name
from threespo_bench.tracking import SafeTracker
from threespo_bench.worker import Job, Worker, attempt

RECORD, REPORT = "experiment.json", "report"


@dataclass(frozen=True)
class Variant:
    """An algorithm of a comparison: its name, the overrides that only its runs get, and a label if the name alone would not tell."""

    algorithm: str
    overrides: tuple[str, ...] = ()
    label: str = ""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan; ``name`` is unique in it and names the folder."""

    name: str
    config: RunConfig


def plan(
    algorithms: Sequence[str | Variant],
    environments: Sequence[str],
    seeds: Sequence[int],
    host: PluginHost,
    *,
    overrides: Sequence[str] = (),
    out: str | None = None,
    experiment: str | None = None,
) -> list[PlannedRun]:
    """All runs, seed by seed, so that the runs that are compared with one another stand together and a stop leaves whole seeds.

    Args:
        overrides: for every run; those of a :class:`Variant` come after them.

    Raises:
        UsageError: as :func:`~threespo_bench.config.compose.compose`; every run is composed before any starts.
    """
    variants = [Variant(chosen) if isinstance(chosen, str) else chosen for chosen in algorithms]
    runs: list[tuple[Variant, RunConfig]] = [
        (variant, compose(variant.algorithm, env, [*overrides, *variant.overrides], host, seed=seed, out=out, experiment=experiment))
        for seed in dict.fromkeys(seeds)
        for env in dict.fromkeys(environments)
        for variant in dict.fromkeys(variants)
    ]
    shown = Counter(display_name(host, config) for _, config in runs[: len(dict.fromkeys(variants))])
    return _distinct([PlannedRun(safe_name(f"{_label(variant, config, host, shown)}-{config.env.name}-seed{config.seed}"), config) for variant, config in runs])


@dataclass
class Comparison:
    """What became of a plan.

    Attributes:
        outcomes: by planned run, in the order of the plan; runs that were not reached are missing.
        report: what the report writer returned, or None.
        interrupted: the user stopped it.
    """

    planned: list[PlannedRun]
    outcomes: dict[str, Outcome] = field(default_factory=dict)
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
) -> Comparison:
    """Carry out a plan and write its report.

    Args:
        jobs: runs at the same time. One runs in this process; more run in a process each.
        progress: makes the display of the run of that name. say: gets a line about the comparison.
        baseline, title: of the report.

    Returns:
        The comparison; failures of runs are in it and not raised.
    """
    folder = experiment_folder(planned[0].config)
    with storage_errors(f"create the folder {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    parent = _Parent(planned, host, folder, say)
    work = _Execution(host, Comparison(list(planned)), progress, say, folder, parent.run_id)
    status = "failed"
    try:
        work.carry_out([(run, job) for run in planned if (job := work.job(run)) is not None], jobs)
        comparison = work.comparison
        if not comparison.interrupted:
            _report(comparison, host, folder / REPORT, baseline, title, say)
            parent.tracker.artifact(folder / REPORT)
        status = "interrupted" if comparison.interrupted else "failed" if comparison.failed else "finished"
    finally:
        work.record()
        parent.tracker.finish(status)
    return comparison


def experiment_folder(config: RunConfig) -> Path:
    """The folder of all runs of a configuration's experiment."""
    return Path(config.out) / safe_name(config.experiment)


def _label(variant: Variant, config: RunConfig, host: PluginHost, shown: Mapping[str, int]) -> str:
    """What tells the runs of a variant apart: its label, or the algorithm's name, with its own overrides if that name is there twice."""
    name = display_name(host, config)
    if variant.label or shown[name] == 1:
        return variant.label or name
    return "-".join([name, *(text.rpartition(".")[2].removeprefix("preset=") for text in variant.overrides)])


def _distinct(runs: list[PlannedRun]) -> list[PlannedRun]:
    twice = [name for name, count in Counter(run.name for run in runs).items() if count > 1]
    if twice:
        raise UsageError(f"two runs of the comparison would both be called {twice[0]}", fix="give the variants of one algorithm different labels")
    return runs


def _identity(path: Path) -> Any:
    try:
        return read_manifest(path).get("run")
    except StorageError:
        return None


@dataclass
class _Execution:
    """The work on one plan: what is left to do, doing it, and keeping ``experiment.json`` up to date."""

    host: PluginHost
    comparison: Comparison
    progress: Callable[[str], Progress]
    say: Callable[[str], None]
    folder: Path
    tracker_run: str | None
    running: dict[str, Worker] = field(default_factory=dict)
    stopping: bool = False

    def job(self, run: PlannedRun) -> Job | None:
        """What is left to do for a planned run: all of it, a continuation, or nothing because the same run finished before."""
        identity = manifests.run_identity(run.config, self.host)
        same = [path for path in find_runs(self.folder) if _identity(path) == identity]
        finished = [path for path in same if run_state(path) == "finished"]
        if finished:
            self.say(f"{run.name}: finished before, in {finished[0].name}")
            self.comparison.outcomes[run.name] = read_outcome(finished[0], nothing_to_do=True)
            return None
        if same:
            self.say(f"{run.name}: goes on from {same[-1].name}")
        return Job(run.config, run.name, same[-1] if same else None, self.tracker_run)

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
        runs = []
        for planned in self.comparison.planned:
            outcome = self.comparison.outcomes.get(planned.name)
            row = {"name": planned.name, "algorithm": planned.config.algorithm.name, "env": planned.config.env.name, "seed": planned.config.seed}
            row |= {"state": outcome.state if outcome else "planned", "error": outcome.error if outcome else None}
            runs.append(row | {"run": outcome.run.name if outcome and outcome.run else None})
        write_json(self.folder / RECORD, {"runs": runs, "tracker_run": self.tracker_run})

    def _one_by_one(self, todo: Sequence[tuple[PlannedRun, Job]]) -> None:
        """The runner itself takes care of Ctrl-C."""
        for run, job in todo:
            try:
                outcome = attempt(job, self.host, self.progress(run.name))
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
            return worker.wait(self.progress(run.name))
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


def _result(future: Future[Outcome | None]) -> Outcome | None:
    try:
        return future.result()
    except Exception as error:  # the process could not be started at all
        ended = failure(error)
        return Outcome(None, "failed", ended.error, ended.fix, ended.exit_code)


def _report(comparison: Comparison, host: PluginHost, out: Path, baseline: str | None, title: str, say: Callable[[str], None]) -> None:
    """Write the report of all runs that have a folder. The runs stay worth their time if it fails."""
    runs = [outcome.run for outcome in comparison.outcomes.values() if outcome.run is not None]
    if not runs or COMPARISON not in host.reports:
        return
    try:
        comparison.report = write_comparison(host, runs, out, baseline, title, warn=say)
    except Exception as error:
        say(f"the report was not written: {failure(error).error}")


class _Parent:
    """The comparison's own run in the tracker, under which its runs are nested."""

    def __init__(self, planned: Sequence[PlannedRun], host: PluginHost, folder: Path, say: Callable[[str], None]) -> None:
        config = planned[0].config
        contribution = host.find("trackers", config.tracker.name)
        self.tracker = SafeTracker(lambda: contribution.load()(config.tracker.options, folder.parent.resolve()), say)
        shared = flat_params(config)
        for run in planned[1:]:
            other = flat_params(run.config)
            shared = {key: value for key, value in shared.items() if key in other and other[key] == value}
        params = shared | {key: ", ".join(dict.fromkeys(str(flat_params(run.config)[key]) for run in planned)) for key in ("algorithm", "env", "seed")}
        known = _read_record(folder).get("tracker_run")
        self.run_id = self.tracker.start(config.experiment, f"comparison {config.experiment}", params, {"kind": "comparison"}, None, known)


def _read_record(folder: Path) -> dict[str, Any]:
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
