"""The plan of a comparison: its runs in their order, and what is left to do for each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from threespo_bench import manifest as manifests
from threespo_bench.assembly import display_name
from threespo_bench.checkpointing import Checkpoints
from threespo_bench.config.compose import compose
from threespo_bench.config.schema import RunConfig
from threespo_bench.errors import StorageError, UsageError
from threespo_bench.experiment_record import ExperimentRecord
from threespo_bench.host import PluginHost
from threespo_bench.store import find_runs, is_locked, read_manifest, run_state, safe_name


@dataclass(frozen=True)
class Variant:
    """An algorithm of a comparison.

    Attributes:
        algorithm: its name. overrides: those that only its runs get. label: if the name alone would not tell.
        last: overrides that come after all others and are no part of its label, e.g. of the command line over those of a file.
    """

    algorithm: str
    overrides: tuple[str, ...] = ()
    label: str = ""
    last: tuple[str, ...] = ()


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
        (variant, compose(variant.algorithm, env, [*overrides, *variant.overrides, *variant.last], host, seed=seed, out=out, experiment=experiment))
        for seed in dict.fromkeys(seeds)
        for env in dict.fromkeys(environments)
        for variant in dict.fromkeys(variants)
    ]
    shown = Counter(display_name(host, config) for _, config in runs[: len(dict.fromkeys(variants))])
    return _distinct([PlannedRun(safe_name(f"{_label(variant, config, host, shown)}-{config.env.name}-seed{config.seed}"), config) for variant, config in runs])


def experiment_folder(config: RunConfig) -> Path:
    """The folder of all runs of a configuration's experiment."""
    return Path(config.out) / safe_name(config.experiment)


@dataclass(frozen=True)
class Step:
    """What is left to do for a planned run.

    Attributes:
        action: ``run`` from the beginning, ``resume`` an interrupted one, ``retry`` a failed one, ``skip`` a finished one, ``busy``: another process works
            on it, ``failed``: it failed before and shall not be retried.
        run: its folder, if there is one. identity: of the run that the plan asks for. error: of a failed run.
    """

    action: str
    run: Path | None
    identity: Mapping[str, str]
    error: str = ""


def steps(planned: Sequence[PlannedRun], host: PluginHost, *, retry: bool = True) -> dict[str, Step]:
    """What is left to do, by planned run: a run counts as the same one if options and code are the same."""
    folder = experiment_folder(planned[0].config)
    there = [(path, _identity(path)) for path in find_runs(folder)]
    earlier = ExperimentRecord(folder).rows()
    found = {}
    for run in planned:
        identity = manifests.run_identity(run.config, host)
        same = [path for path, other in there if other == identity]
        found[run.name] = _step(identity, same, retry) if same else _without_folder(identity, earlier.get(run.name, {}), retry)
    return found


def _step(identity: Mapping[str, str], same: Sequence[Path], retry: bool) -> Step:
    states = {path: _state(path) for path in same}
    finished = [path for path, state in states.items() if state == "finished"]
    if finished:
        return Step("skip", finished[0], identity)
    newest = same[-1]
    if is_locked(newest):
        return Step("busy", newest, identity)
    if states[newest] == "failed" and not retry:
        return Step("failed", newest, identity)
    if not _can_go_on(newest):
        return Step("run", None, identity)
    return Step("retry" if states[newest] == "failed" else "resume", newest, identity)


def _without_folder(identity: Mapping[str, str], row: Mapping[str, Any], retry: bool) -> Step:
    """A run that could not even be built has no folder; the record remembers it."""
    before = row.get("identity") == identity and row.get("state") == "failed"
    if not before:
        return Step("run", None, identity)
    return Step("retry" if retry else "failed", None, identity, row.get("error") or "")


def _can_go_on(path: Path) -> bool:
    """Whether the run has a sound checkpoint, or none and begins again; the damaged ones of a broken disk are not worth a failure."""
    try:
        Checkpoints(path / "checkpoints").newest(lambda text: None)
    except StorageError:
        return False
    return True


def _state(path: Path) -> str:
    try:
        return run_state(path)
    except StorageError:
        return "damaged"


def _identity(path: Path) -> Any:
    try:
        return read_manifest(path).get("run")
    except StorageError:
        return None


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
