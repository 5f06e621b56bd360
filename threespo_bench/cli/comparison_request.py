"""What ``compare`` was asked for: a file, options, or a file with options that override it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from threespo_bench.cli.overrides import algorithm_and_preset, budget_overrides, scoped
from threespo_bench.cli.overrides import seeds as read_seeds
from threespo_bench.errors import UsageError

if TYPE_CHECKING:
    from threespo_bench.config.schema import Component
    from threespo_bench.experiment import PlannedRun, Variant
    from threespo_bench.experiment_file import ExperimentFile
    from threespo_bench.host import PluginHost

DEFAULT_SEEDS = "0..2"


@dataclass(frozen=True)
class Options:
    """The options of the command line, empty or None where they were not given; ``words`` are overrides, and at most one file among them."""

    algorithms: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    seeds: str | None = None
    budgets: tuple[str, ...] = ()
    out: str | None = None
    experiment: str | None = None
    baseline: str | None = None
    jobs: int | None = None
    words: tuple[str, ...] = ()
    launcher: str | None = None


@dataclass(frozen=True)
class Request:
    """What shall be compared. ``overrides`` are for every run; ``launcher`` are overrides that choose where the runs are carried out."""

    variants: tuple[Variant, ...]
    environments: tuple[str, ...]
    seeds: tuple[int, ...]
    overrides: tuple[str, ...]
    out: str | None
    experiment: str
    baseline: str | None
    jobs: int | None
    launcher: tuple[str, ...] = ()

    def plan(self, host: PluginHost) -> list[PlannedRun]:
        """The runs, composed and checked. Raises UsageError."""
        from threespo_bench.experiment import plan

        return plan(self.variants, self.environments, self.seeds, host, overrides=self.overrides, out=self.out, experiment=self.experiment)

    def choose_launcher(self, host: PluginHost) -> Component:
        """The launcher with its options. Raises UsageError."""
        from threespo_bench.config.launcher import compose_launcher

        return compose_launcher(self.launcher, host, jobs=self.jobs)


def request(options: Options, host: PluginHost) -> Request:
    """Put options and file together; what an option says wins. Raises UsageError.

    Args:
        host: knows which environment a model was made for.
    """
    files, texts = _separate(options.words)
    launcher, overrides = _of_the_launcher(texts)
    if len(files) > 1:
        raise UsageError(f"{files[1]}: a comparison has one file, and {files[0]} was named before")
    if not files and not options.algorithms:
        raise UsageError("no algorithm was named", fix="add --algo NAME (threespo-bench list shows them), or name an experiment file, e.g. experiment.yaml")
    seeds = read_seeds(options.seeds) if options.seeds is not None else []
    budget = budget_overrides(options.budgets)
    asked = _with_file(options, files[0], overrides, seeds, budget, host) if files else _alone(options, overrides, seeds, budget, host)
    chosen = (f"launcher={options.launcher}",) if options.launcher is not None else ()
    return replace(asked, launcher=(*asked.launcher, *chosen, *launcher))


def _separate(words: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Names of YAML files, and overrides."""
    files = [word for word in words if "=" not in word and word.lower().endswith((".yaml", ".yml"))]
    return [Path(file) for file in files], [word for word in words if word not in files]


def _of_the_launcher(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Overrides of the launcher, and those of runs."""
    own = [text for text in texts if text.partition("=")[0].partition(".")[0] == "launcher"]
    return own, [text for text in texts if text not in own]


def _alone(options: Options, texts: Sequence[str], seeds: Sequence[int], budget: Sequence[str], host: PluginHost) -> Request:
    common, own = scoped(texts, options.algorithms)
    environments = options.environments or _default_environment(common, host)
    return Request(
        variants=tuple(_variant(text, own) for text in dict.fromkeys(options.algorithms)),
        environments=tuple(environments),
        seeds=tuple(seeds or read_seeds(DEFAULT_SEEDS)),
        overrides=(*budget, *common),
        out=options.out,
        experiment=options.experiment or "-".join(dict.fromkeys([*options.algorithms, *environments])).replace("@", "-"),
        baseline=options.baseline,
        jobs=options.jobs,
    )


def _with_file(options: Options, path: Path, texts: Sequence[str], seeds: Sequence[int], budget: Sequence[str], host: PluginHost) -> Request:
    from threespo_bench.experiment_file import read_experiment_file

    file = read_experiment_file(path)
    chosen = _choose(options.algorithms, file)
    names = [name for variant in chosen for name in (variant.algorithm, variant.label) if name]
    common, own = scoped(texts, list(dict.fromkeys([*options.algorithms, *names])))
    last = {variant: [*common, *own.get(variant.algorithm, []), *(own.get(variant.label, []) if variant.label else [])] for variant in chosen}
    return Request(
        variants=tuple(replace(variant, last=(*variant.last, *last[variant])) for variant in chosen),
        environments=options.environments or file.environments or _default_environment([*file.overrides, *common], host),
        seeds=tuple(seeds) or file.seeds or tuple(read_seeds(DEFAULT_SEEDS)),
        overrides=(*(budget or file.budget), *file.overrides),
        out=options.out or file.out,
        experiment=options.experiment or file.name,
        baseline=options.baseline or file.baseline,
        jobs=options.jobs or file.jobs,
        launcher=file.launcher,
    )


def _choose(wanted: Sequence[str], file: ExperimentFile) -> list[Variant]:
    """The file's algorithms, or of those that were asked for the file's entries of that name or label, and new ones for the others."""
    if not wanted:
        return list(file.algorithms)
    chosen: list[Variant] = []
    for text in dict.fromkeys(wanted):
        chosen += [variant for variant in file.algorithms if text in (variant.algorithm, variant.label)] or [_variant(text, {})]
    return chosen


def _variant(text: str, own: Mapping[str, Sequence[str]]) -> Variant:
    from threespo_bench.experiment import Variant

    name, preset = algorithm_and_preset(text)
    return Variant(name, (*preset, *own.get(text, [])))


def _default_environment(overrides: Sequence[str], host: PluginHost) -> tuple[str]:
    from threespo_bench.config.compose import default_environment

    return (default_environment(overrides, host),)
